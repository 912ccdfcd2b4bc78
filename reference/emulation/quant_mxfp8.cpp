// SPDX-License-Identifier: Apache-2.0
// Emulates quant_mxfp8 as kernels compute it: the exponent of a block's amax, the codes of its elements.
#include <array>
#include <bit>
#include <limits>

#include "emulation/quantized.hpp"

namespace checkop {
namespace quant_mxfp8 {
namespace {

using namespace emulation;

constexpr FaultSpec kPowerOfFrexp{"power_of_frexp", "the power of two is that of frexp, which doubles powers of two"};
constexpr FaultSpec kPowerToNearest{"power_to_nearest", "the power of two is the nearest one, so that codes saturate"};
constexpr FaultSpec kPowerOtherWay{"power_other_way", "the power of two is that on the other side"};
constexpr FaultSpec kPowerOfBf16{"power_of_bf16", "amax/448 is rounded to bf16 before its exponent is taken",
                                 "accuracy", "fp32 fp16"};
constexpr FaultSpec kDividedBy512{"divided_by_512", "amax is divided by 2^9, as if 448 were beyond the format"};
constexpr FaultSpec kDividedByLargest{"scaled_to_240", "amax becomes 240, the largest number of e4m3fnuz"};
constexpr FaultSpec kBiasOf128{"bias_of_128", "the code of the scale is its exponent plus 128"};
constexpr FaultSpec kScaleOfZerosIs1{"scale_of_zeros_is_1", "a block of zeros has the scale 1"};
constexpr FaultSpec kScaleOfInfinityIsNaN{"scale_of_infinity_is_nan", "an infinite amax has the scale NaN",
                                          "nonfinite"};
constexpr FaultSpec kOverflowIsNaN{"overflow_is_nan", "a quotient beyond 448 becomes NaN, not 448", "nonfinite"};
constexpr FaultSpec kLeastScaleFlushed{"least_scale_flushed", "amax/448 below the normal numbers of fp32 counts as 0",
                                       "accuracy", "fp32 bf16"};
constexpr FaultSpec kMultipliedByScale{"multiplied_by_scale", "x is multiplied by the scale"};
constexpr FaultSpec kBlocksOf16{"blocks_of_16", "amax is that of 16 columns, the first half of a block"};

/// The exponent, before it is limited to what e8m0 has.
int exponent_of(const Arithmetic& a, float amax, bool rounds_up) {
  if (a.has(kScaleOfZerosIs1.name) && amax == 0) return 0;
  float scaled = !rounds_up ? amax : amax * (1.0F / (a.has(kDividedByLargest.name) ? 240.0F : 448.0F));
  if (a.has(kPowerOfBf16.name)) scaled = Arithmetic::to_bf16(scaled);
  if (scaled == 0 || (a.has(kLeastScaleFlushed.name) && rounds_up && scaled < 0x1p-126F)) return -127;
  int exponent = 0;
  const float fraction = std::frexp(scaled, &exponent);  // from 0.5 to below 1
  const int below = exponent - 1, above = fraction == 0.5F ? below : exponent;
  const int largest = a.has(kDividedBy512.name) || (!rounds_up && a.has(kDividedByLargest.name)) ? 9 : 8;
  const int shift = rounds_up ? largest - 8 : largest;
  if (a.has(kPowerOfFrexp.name)) return exponent - shift;
  if (a.has(kPowerToNearest.name)) return (fraction < 0.75F ? below : exponent) - shift;
  return (rounds_up != a.has(kPowerOtherWay.name) ? above : below) - shift;
}

void forward(const EmulationArgs& args) {
  const Blocks blocks(args, 32);
  const Arithmetic& a = args.arithmetic;
  const bool rounds_up = args.attrs[0] != 0;
  const auto exponent = [&](float amax) {
    return std::isinf(amax) ? 127 : std::clamp(exponent_of(a, amax, rounds_up), -127, 127);
  };
  args.parallel_for(blocks.x.rows(), [&](int64_t row) {
    const auto amax = [&](int64_t b) {
      return a.has(kBlocksOf16.name)
                 ? blocks.amax_of(row, blocks.begin(b), std::min(blocks.begin(b) + 16, blocks.end(b)))
                 : blocks.amax(row, b);
    };
    for (int64_t b = 0; b < blocks.of_row; ++b) {
      const float own = amax(b), other = amax(blocks.scaled_as(b));
      const int stored = exponent(own) + (a.has(kBiasOf128.name) ? 1 : 0);
      args.out(1)[blocks.place(row, b)] = a.has(kScaleOfInfinityIsNaN.name) && std::isinf(own)
                                              ? std::numeric_limits<double>::quiet_NaN()
                                              : std::ldexp(1.0, a.has(kReciprocalStored.name) ? -stored : stored);
      const float factor = std::ldexp(1.0F, a.has(kMultipliedByScale.name) ? exponent(other) : -exponent(other));
      for (int64_t i = blocks.begin(b); i < blocks.end(b); ++i) {
        float q = quotient(a, blocks.x.row(row)[i], factor);
        if (a.has(kOverflowIsNaN.name) && std::abs(q) > 464) q = std::numeric_limits<float>::quiet_NaN();
        args.out(0)[static_cast<size_t>(row * blocks.x.columns + i)] = e4m3(a, q);
      }
    }
  });
}

constexpr std::array kFaults =
    joined(kBlockFaults, std::array{kReciprocalStored, kNanSaturated, kAmaxIsNan, kSubnormalCodesFlushed, kPowerOfFrexp,
                                    kPowerToNearest, kPowerOtherWay, kPowerOfBf16, kDividedBy512, kDividedByLargest,
                                    kBiasOf128, kScaleOfZerosIs1, kScaleOfInfinityIsNaN, kLeastScaleFlushed,
                                    kOverflowIsNaN, kMultipliedByScale, kBlocksOf16});

}  // namespace
}  // namespace quant_mxfp8

extern const Emulation kQuantMxfp8Forward;
const Emulation kQuantMxfp8Forward{quant_mxfp8::forward, quant_mxfp8::kFaults};

}  // namespace checkop
