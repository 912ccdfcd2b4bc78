// SPDX-License-Identifier: Apache-2.0
// The scale of numbers that become e4m3 codes, and the rules of its attributes.
#include "fp8_block.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.hpp"

namespace checkop::fp8_block {
namespace {

constexpr float kLargest = 448;

/// The smallest power of two that is at least x > 0, by the bits of x's exponent.
float power_from(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t exponent = (bits >> 23 & 0xff) + ((bits & 0x7fffff) != 0 ? 1 : 0);
  return std::bit_cast<float>(std::clamp<uint32_t>(exponent, 1, 254) << 23);
}

/// The largest power of two that is at most x > 0, by the bits of x's exponent.
float power_up_to(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xff800000U); }

}  // namespace

Scale scale_of(float amax, std::span<const double> attrs) {
  const auto eps = static_cast<float>(attrs[kEps]);
  const bool is_power = attrs[kPow2] != 0;
  if (amax < eps) amax = eps;
  if (attrs[kFactorFirst] == 0) {
    const float scale = amax / kLargest, stored = is_power ? power_from(scale) : scale;
    return {stored, 1 / stored};
  }
  if (amax == 0 || std::isinf(amax)) return {1, 1};
  float factor = kLargest / amax;
  if (std::isinf(factor)) factor = std::numeric_limits<float>::max();
  if (is_power) factor = power_up_to(factor);
  return {1 / factor, factor};
}

void validate(const CaseSizes& sizes, std::string_view op) {
  const auto& at = sizes.attrs;
  for (const Attr flag : {kFactorFirst, kPow2, kNear}) {
    if (at[flag] == 0 || at[flag] == 1) continue;
    throw InputError(flag == kFactorFirst ? "--factor-first" : fmt::format("--{}", kAttrs[flag].name),
                     fmt::format("expected 0 or 1, got {}", at[flag]), fmt::format("see check_operator show {}", op));
  }
  if (!(at[kEps] >= 0 && at[kEps] <= 1))
    throw InputError("--eps", fmt::format("expected a number from 0 to 1, got {}", at[kEps]),
                     "DeepGEMM has 1e-4, Transformer Engine 0");
  if (at[kEps] < 1e-30 && at[kFactorFirst] == 0)
    throw InputError("--eps", fmt::format("{} would make the scale of zeros 0", at[kEps]),
                     "give 1e-4, or --factor-first 1");
}

BlockData data_of(std::span<const double> attrs) {
  BlockData data{kBlock, /*is_e2m1=*/false, /*takes_infinity=*/attrs[kFactorFirst] == 1, attrs[kNear] != 0};
  data.quotient = [attrs](float x, float amax) { return x * scale_of(amax, attrs).factor; };
  return data;
}

}  // namespace checkop::fp8_block
