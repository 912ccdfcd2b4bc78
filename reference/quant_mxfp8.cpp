// SPDX-License-Identifier: Apache-2.0
// quant_mxfp8: numbers as e4m3 codes, with one power of two, e8m0, for 32 of them.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>

#include "base/error.hpp"
#include "operator/operator.hpp"
#include "quantized.hpp"

namespace checkop {

extern const Emulation kQuantMxfp8Forward;  // emulation/quant_mxfp8.cpp

namespace quant_mxfp8 {
namespace {

constexpr int64_t kBlock = 32;
constexpr TensorSpec kX{"x", "batch seq hidden", Fill::normal, "", {}, false, /*constant=*/true};
constexpr std::array kForwardIn{kX};
constexpr std::array kForwardOut{
    OutputSpec{{"codes", "batch seq hidden", Fill::normal, "", DType::e4m3}, Numerics::exact, "", /*sampled=*/true},
    OutputSpec{{"scales", "batch seq hidden/32", Fill::normal, "", DType::e8m0}, Numerics::exact, "", /*sampled=*/true},
};

enum Attr : size_t { kRoundUp };
constexpr std::array kAttrs{
    AttrSpec{"round_up", 1, "1: the least power of two from amax/448 on; 0, as OCP has it: that up to amax, over 256"}};

/// The exponent of the scale of a block, from -127 to 127.
int exponent_of(float amax, bool rounds_up) {
  constexpr int kLeast = -127, kMost = 127, kOfLargest = 8;  // 448 = 1.75 2^8
  if (std::isinf(amax)) return kMost;
  const float scaled = rounds_up ? amax * (1.0F / 448) : amax;
  if (scaled == 0) return kLeast;
  const int below = std::ilogb(scaled);
  const int exponent = rounds_up ? below + (std::ldexp(1.0, below) < scaled ? 1 : 0) : below - kOfLargest;
  return std::clamp(exponent, kLeast, kMost);
}

/// What numbers are multiplied by, 2^-exponent. It is exact in fp32, as is the product unless it is subnormal.
float factor_of(float amax, bool rounds_up) { return std::ldexp(1.0F, -exponent_of(amax, rounds_up)); }

/// Gold of quant_mxfp8, for each block of 32 columns of a row, or fewer at its end.
///   in:  x[batch, seq, hidden]     out: codes[batch, seq, hidden] e4m3, scales[batch, seq, hidden/32] e8m0
///   amax = largest |x| of the block
///   round_up 1: scale = the least power of two that is at least amax fl(1/448), a product of fp32
///   round_up 0: scale = (the largest power of two up to amax)/2^8
///   from 2^-127, also for an amax of 0, to 2^127, also for an infinite one
///   code = e4m3(x/scale), to nearest, ties to even; beyond 448 it is 448
/// amax ignores NaN, and the code of a NaN is NaN.
/// Source: round_up 1 as float_to_e8m0 of Transformer Engine, round_up 0 as the OCP Microscaling Formats (MX)
/// Specification 1.0, section 6.3.
void forward(const GoldArgs& args) {
  const bool rounds_up = args.attrs[kRoundUp] != 0;
  quantize_rows(args, args.in(0), [&](std::span<const float> x, std::span<double> codes, std::span<double> scales) {
    for (size_t b = 0; b < scales.size(); ++b) {
      const size_t first = b * kBlock, n = std::min<size_t>(kBlock, x.size() - first);
      const float amax = largest_size(x.subspan(first, n));
      scales[b] = std::ldexp(1.0, exponent_of(amax, rounds_up));
      for (size_t i = first; i < first + n; ++i) codes[i] = stored_in(DType::e4m3, x[i] * factor_of(amax, rounds_up));
    }
  });
}

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kQuantMxfp8Forward}};

void validate(const CaseSizes& sizes) {
  const double round_up = sizes.attrs[kRoundUp];
  if (round_up == 0 || round_up == 1) return;
  throw InputError("--round-up", fmt::format("expected 0 or 1, got {}", round_up),
                   "see check_operator show quant_mxfp8");
}

void refine(const FillArgs& args) {
  BlockData data{kBlock, /*is_e2m1=*/false, /*takes_infinity=*/true, /*stays_away=*/false};
  data.has_least_scales = true;
  plant_blocks(args, *args.find("x"), data);
}

}  // namespace
}  // namespace quant_mxfp8

extern const Operator kQuantMxfp8;
constexpr Operator kQuantMxfp8{
    "quant_mxfp8",
    "elementwise",
    "scale = the power of two from max(|x|)/448 on, of every 32 columns; codes = e4m3(x/scale)",
    "batch seq",
    quant_mxfp8::kAttrs,
    quant_mxfp8::kPasses,
    quant_mxfp8::validate,
    quant_mxfp8::refine};

}  // namespace checkop
