// SPDX-License-Identifier: Apache-2.0
// quant_fp8_block: numbers as e4m3 codes, with one fp32 scale for 128 of them.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "operator/operator.hpp"
#include "quantized.hpp"

namespace checkop {

extern const Emulation kQuantFp8BlockForward;  // emulation/quant_fp8_block.cpp

namespace {

constexpr int64_t kBlock = 128;
constexpr float kLargest = 448;
constexpr TensorSpec kX{"x", "batch seq hidden", Fill::normal, "", {}, false, /*constant=*/true};
constexpr std::array kForwardIn{kX};
constexpr std::array kForwardOut{
    OutputSpec{{"codes", "batch seq hidden", Fill::normal, "", DType::e4m3}, Numerics::exact, "", /*sampled=*/true},
    OutputSpec{{"scales", "batch seq hidden/128", Fill::normal, "", DType::f32}, Numerics::exact, "", /*sampled=*/true},
};

enum Attr : size_t { kFactorFirst, kPow2, kEps, kNear };
constexpr std::array kAttrs{
    AttrSpec{"factor_first", 0,
             "0, as DeepGEMM: scale = amax/448, codes of x (1/scale); 1, as Transformer Engine: codes of x (448/amax)"},
    AttrSpec{"pow2", 0,
             "1: scales are powers of two, amax/448 the next one above it and 448/amax the next one below it"},
    AttrSpec{"eps", 1e-4, "the least amax of a block"},
    AttrSpec{"near", 0, "1: data without quotients near the middle of two codes, for kernels that divide roughly"}};

struct Scale {
  float stored, factor;  ///< `factor`: what elements are multiplied by
};

/// The power of two that a positive x, or the one above it, is, by the bits of its exponent.
float power_from(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t exponent = (bits >> 23 & 0xff) + ((bits & 0x7fffff) != 0 ? 1 : 0);
  return std::bit_cast<float>(std::clamp<uint32_t>(exponent, 1, 254) << 23);
}

/// The power of two that a positive x, or the one below it, is.
float power_up_to(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xff800000U); }

/// Every operation is one of fp32, rounded once.
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

/// Gold of quant_fp8_block, for each block of 128 columns of a row, or fewer at its end.
///   in:  x[batch, seq, hidden]     out: codes[batch, seq, hidden] e4m3, scales[batch, seq, hidden/128] fp32
///   amax = max(largest |x| of the block, eps)
///   factor_first 0: scale = amax/448, with pow2 the power of two from it on;  code = e4m3(x (1/scale))
///   factor_first 1: factor = 448/amax, with pow2 the power of two up to it;  scale = 1/factor;  code = e4m3(x factor)
///                   factor = 1 where amax is 0 or infinite, the largest number where it would be infinite
///   Codes are rounded to nearest, ties to even; beyond 448 they are 448.
/// A NaN is none of the numbers that amax is the largest of, and its own code is NaN.
/// Source: factor_first 0 as per_token_cast_to_fp8 of DeepGEMM's deep_gemm/utils/math.py, factor_first 1 as
/// compute_scale_from_amax of Transformer Engine's common/recipe/recipe_common.cuh.
void forward(const GoldArgs& args) {
  quantize_rows(args, args.in(0), [&](std::span<const float> x, std::span<double> codes, std::span<double> scales) {
    for (size_t b = 0; b < scales.size(); ++b) {
      const size_t first = b * kBlock, n = std::min<size_t>(kBlock, x.size() - first);
      const Scale scale = scale_of(largest_size(x.subspan(first, n)), args.attrs);
      scales[b] = scale.stored;
      for (size_t i = first; i < first + n; ++i) codes[i] = stored_in(DType::e4m3, x[i] * scale.factor);
    }
  });
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kQuantFp8BlockForward}};

void validate(const CaseSizes& sizes) {
  const auto& at = sizes.attrs;
  for (const Attr flag : {kFactorFirst, kPow2, kNear}) {
    if (at[flag] == 0 || at[flag] == 1) continue;
    throw InputError(flag == kFactorFirst ? "--factor-first" : fmt::format("--{}", kAttrs[flag].name),
                     fmt::format("expected 0 or 1, got {}", at[flag]), "see check_operator show quant_fp8_block");
  }
  if (!(at[kEps] >= 0 && at[kEps] <= 1))
    throw InputError("--eps", fmt::format("expected a number from 0 to 1, got {}", at[kEps]),
                     "DeepGEMM has 1e-4, Transformer Engine 0");
  if (at[kEps] < 1e-30 && at[kFactorFirst] == 0)
    throw InputError("--eps", fmt::format("{} would make the scale of zeros 0", at[kEps]),
                     "give 1e-4, or --factor-first 1");
}

void refine(const FillArgs& args) {
  BlockData data{kBlock, /*is_e2m1=*/false, /*takes_infinity=*/args.attrs[kFactorFirst] == 1, args.attrs[kNear] != 0};
  data.quotient = [&](float x, float amax) { return x * scale_of(amax, args.attrs).factor; };
  plant_blocks(args, *args.find("x"), data);
  move_from_middles(*args.find("x"), data);
}

}  // namespace

extern const Operator kQuantFp8Block;
constexpr Operator kQuantFp8Block{
    "quant_fp8_block", "elementwise", "scale = max(|x|)/448 of every 128 columns; codes = e4m3(x (1/scale))",
    "batch seq",       kAttrs,        kPasses,
    validate,          refine};

}  // namespace checkop
