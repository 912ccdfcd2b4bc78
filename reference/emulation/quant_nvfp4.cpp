// SPDX-License-Identifier: Apache-2.0
// Emulates quant_nvfp4 as kernels compute it: the e4m3 scale of a block, the e2m1 codes of its elements, two a byte.
#include <array>
#include <limits>

#include "emulation/quantized.hpp"

namespace checkop {
namespace quant_nvfp4 {
namespace {

using namespace emulation;

constexpr FaultSpec kHalvesExchanged{"halves_exchanged", "the code of an even column is in the upper half of its byte"};
constexpr FaultSpec kCodesApart{"codes_apart", "a byte has the codes of two columns that are half a row apart"};
constexpr FaultSpec kSignInLowBit{"sign_in_low_bit", "the sign is the lowest bit of a code"};
constexpr FaultSpec kTensorScaleLeftOut{"tensor_scale_left_out", "scales are amax/6, without that of the tensor"};
constexpr FaultSpec kTensorScaleInverse{"tensor_scale_inverse", "codes are multiplied by S where it divides"};
constexpr FaultSpec kTensorAmaxOfRow{"tensor_amax_of_row", "S is that of the amax of the row"};
constexpr FaultSpec kScaleTruncated{"scale_truncated", "scales are rounded toward zero"};
constexpr FaultSpec kScaleRoundedUp{"scale_rounded_up", "scales are rounded away from zero"};
constexpr FaultSpec kScaleUnrounded{"scale_unrounded", "codes are those of the scale before it was rounded to e4m3"};
constexpr FaultSpec kSubnormalScale{"subnormal_scale", "a subnormal scale is decoded as if it were normal"};
constexpr FaultSpec kSubnormalScaleFlushed{"subnormal_scale_flushed", "a subnormal scale becomes 0"};
constexpr FaultSpec kScaledTo4{"scaled_to_4", "amax becomes 4, not 6"};
constexpr FaultSpec kZeroScaleIsOne{"zero_scale_is_one", "where the scale is 0, numbers are not multiplied"};
constexpr FaultSpec kZeroBlockIsNaN{"zero_block_is_nan",
                                    "a scale of 0 has an infinite reciprocal, and zeros become NaN"};
constexpr FaultSpec kBlocksOf32{"blocks_of_32", "two blocks have the amax of both"};

float truncated_e4m3(float x) {
  const float nearest = stored_as(DType::e4m3, x);
  return nearest > x ? nearest - static_cast<float>(2 * half_ulp(DType::e4m3, std::nextafter(nearest, 0.0F))) : nearest;
}

/// The scales of a tensor with `amax`.
struct Scales {
  Scales(const Arithmetic& arithmetic, float amax)
      : a(arithmetic), of_tensor(amax == 0 ? 1.0F : std::min(2688 / amax, std::numeric_limits<float>::max())) {}

  float unrounded(float amax) const {
    const float sixth = 1.0F / (a.has(kScaledTo4.name) ? 4.0F : 6.0F);
    return std::min(a.has(kTensorScaleLeftOut.name) ? amax * sixth : amax * (of_tensor * sixth), 448.0F);
  }
  float of_block(float amax) const {
    const float exact = unrounded(amax), nearest = stored_as(DType::e4m3, exact), below = truncated_e4m3(exact);
    if (a.has(kScaleTruncated.name)) return below;
    if (a.has(kScaleRoundedUp.name) && below < exact)
      return std::min(below + static_cast<float>(2 * half_ulp(DType::e4m3, below)), 448.0F);
    return a.has(kSubnormalScaleFlushed.name) && nearest < 0x1p-6F ? 0.0F : nearest;
  }
  float factor(float amax) const {
    float scale = a.has(kScaleUnrounded.name) ? unrounded(amax) : of_block(amax);
    if (a.has(kZeroScaleIsOne.name) && scale == 0) return 1;
    if (a.has(kSubnormalScale.name) && scale > 0 && scale < 0x1p-6F) scale = 0x1p-7F + scale / 2;
    const float decoded = scale * (a.has(kTensorScaleInverse.name) ? of_tensor : 1 / of_tensor), inverse = 1 / decoded;
    return a.has(kZeroBlockIsNaN.name) ? inverse : std::min(inverse, std::numeric_limits<float>::max());
  }

  const Arithmetic& a;
  float of_tensor;
};

/// The code of q.
unsigned e2m1(const Arithmetic& a, float q) {
  const unsigned code = encode_e2m1(q);
  unsigned size = code & 7;
  if (std::abs(q) < 6) {
    const auto value = [](unsigned of) { return static_cast<float>(decode_e2m1(of)); };
    const unsigned lower = value(size) <= std::abs(q) ? size : size - 1;
    const float chosen = rounded_between(a, q, value(lower), value(lower + 1), value(size));
    size = chosen == value(lower) ? lower : lower + 1;
  }
  const unsigned sign = code >> 3;
  return a.has(kSignInLowBit.name) ? size << 1 | sign : sign << 3 | size;
}

void forward(const EmulationArgs& args) {
  const Blocks blocks(args, 16);
  const Arithmetic& a = args.arithmetic;
  const int64_t columns = blocks.x.columns, bytes = (columns + 1) / 2;
  const float of_tensor = args.floats(1)[0];
  args.parallel_for(blocks.x.rows(), [&](int64_t row) {
    const Scales scales(a, a.has(kTensorAmaxOfRow.name) ? blocks.amax_of(row, 0, columns) : of_tensor);
    const auto amax = [&](int64_t b) {
      const int64_t first = b / 2 * 2;
      return a.has(kBlocksOf32.name)
                 ? blocks.amax_of(row, blocks.begin(first), std::min(columns, blocks.begin(first + 2)))
                 : blocks.amax(row, b);
    };
    std::vector<unsigned> codes(static_cast<size_t>(2 * bytes));
    for (int64_t b = 0; b < blocks.of_row; ++b) {
      args.out(1)[blocks.place(row, b)] = scales.of_block(amax(b));
      const float factor = scales.factor(amax(blocks.scaled_as(b)));
      for (int64_t i = blocks.begin(b); i < blocks.end(b); ++i)
        codes[static_cast<size_t>(i)] = e2m1(a, quotient(a, blocks.x.row(row)[i], factor));
    }
    for (int64_t i = 0; i < bytes; ++i) {
      const bool is_apart = a.has(kCodesApart.name);
      unsigned low = codes[static_cast<size_t>(is_apart ? i : 2 * i)];
      unsigned high = codes[static_cast<size_t>(is_apart ? bytes + i : 2 * i + 1)];
      if (a.has(kHalvesExchanged.name)) std::swap(low, high);
      args.out(0)[static_cast<size_t>(row * bytes + i)] = low | high << 4;
    }
  });
}

constexpr std::array kFaults = joined(
    kBlockFaults, std::array{kHalvesExchanged, kCodesApart, kSignInLowBit, kTensorScaleLeftOut, kTensorScaleInverse,
                             kTensorAmaxOfRow, kScaleTruncated, kScaleRoundedUp, kScaleUnrounded, kSubnormalScale,
                             kSubnormalScaleFlushed, kScaledTo4, kZeroScaleIsOne, kZeroBlockIsNaN, kBlocksOf32});

}  // namespace
}  // namespace quant_nvfp4

extern const Emulation kQuantNvfp4Forward;
const Emulation kQuantNvfp4Forward{quant_nvfp4::forward, quant_nvfp4::kFaults};

}  // namespace checkop
