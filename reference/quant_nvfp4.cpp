// SPDX-License-Identifier: Apache-2.0
// quant_nvfp4: numbers as e2m1 codes, two a byte, with an e4m3 scale for 16 of them and one of the tensor.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "operator/operator.hpp"
#include "quantized.hpp"

namespace checkop {

extern const Emulation kQuantNvfp4Forward;  // emulation/quant_nvfp4.cpp

namespace quant_nvfp4 {
namespace {

constexpr int64_t kBlock = 16;
constexpr float kMost = std::numeric_limits<float>::max();
constexpr TensorSpec kX{"x", "batch seq hidden", Fill::normal, "", {}, false, /*constant=*/true};
constexpr TensorSpec kAmax{"amax", "1", Fill::normal, "", DType::f32, false, /*constant=*/true};
constexpr std::array kForwardIn{kX, kAmax};
constexpr std::array kForwardOut{
    OutputSpec{{"codes", "batch seq hidden/2", Fill::normal, "", DType::e2m1x2}, Numerics::exact, "", /*sampled=*/true},
    OutputSpec{{"scales", "batch seq hidden/16", Fill::normal, "", DType::e4m3}, Numerics::exact, "", /*sampled=*/true},
};

enum Attr : size_t { kNear };
constexpr std::array kAttrs{
    AttrSpec{"near", 0, "1: data without quotients near the middle of two codes, for kernels that divide roughly"}};

/// The scales of a tensor, in operations of fp32, each rounded once.
class Scales {
 public:
  explicit Scales(float amax) : of_tensor_(2688 / amax) {  // 448 times 6
    if (amax == 0) of_tensor_ = 1;
    of_tensor_ = std::min(of_tensor_, kMost);
  }
  /// The number that is rounded to e4m3 for the scale of a block with this amax.
  float unrounded(float amax) const { return std::min(amax * (of_tensor_ * (1.0F / 6)), 448.0F); }
  float of_block(float amax) const { return static_cast<float>(stored_in(DType::e4m3, unrounded(amax))); }
  /// What the numbers of the block are multiplied by.
  float factor(float amax) const { return std::min(1 / (of_block(amax) * (1 / of_tensor_)), kMost); }

 private:
  float of_tensor_;
};

/// Gold of quant_nvfp4, for each block of 16 columns of a row, or fewer at its end.
///   in:  x[batch, seq, hidden], amax[1] fp32: the largest |x| of the tensor, or a number above it
///   out: codes[batch, seq, hidden/2] e2m1x2, scales[batch, seq, hidden/16] e4m3
///   of the tensor: S = 2688/amax; 1 where amax is 0, the largest number where it would be infinite
///   of a block:    scale = e4m3(min((largest |x|) (S fl(1/6)), 448))
///   factor = min(1/(scale fl(1/S)), the largest number),  code = e2m1(x factor), to nearest, ties to even, at most 6
///   A byte has the code of an even column in its lower half, that of the next one, or 0 after the last, in its upper.
/// x = code scale/S, nearly. Source: Transformer Engine, common/cast/nvfp4/core_nvfp4.cuh.
void forward(const GoldArgs& args) {
  const Scales scales_of(static_cast<float>(args.in(1).at(0)));
  quantize_rows(args, args.in(0), [&](std::span<const float> x, std::span<double> codes, std::span<double> scales) {
    for (size_t b = 0; b < scales.size(); ++b) {
      const size_t first = b * kBlock, n = std::min<size_t>(kBlock, x.size() - first);
      const float amax = largest_size(x.subspan(first, n)), factor = scales_of.factor(amax);
      scales[b] = scales_of.of_block(amax);
      for (size_t i = first; i < first + n; ++i)
        codes[i / 2] += static_cast<double>(encode_e2m1(x[i] * factor) << (i % 2 == 0 ? 0 : 4));
    }
  });
}

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kQuantNvfp4Forward}};

void validate(const CaseSizes& sizes) {
  const double near = sizes.attrs[kNear];
  if (near == 0 || near == 1) return;
  throw InputError("--near", fmt::format("expected 0 or 1, got {}", near), "see check_operator show quant_nvfp4");
}

/// amax is that of x, or for an even number of rows the next power of two times 2688 above it. Then S is a power of
/// two, and ties are in the data.
void refine(const FillArgs& args) {
  Tensor &x = *args.find("x"), &amax = *args.find("amax");
  BlockData data{kBlock, /*is_e2m1=*/true, /*takes_infinity=*/false, args.attrs[kNear] != 0};
  plant_blocks(args, x, data);
  double largest = 0;
  for (int64_t i = 0; i < x.count(); ++i) largest = std::max(largest, std::abs(x.at(i)));
  const bool is_even = x.shape.back() == 0 || x.count() / x.shape.back() % 2 == 0;
  if (largest > 0 && is_even) largest = 2688 * std::exp2(std::ceil(std::log2(largest / 2688)));
  amax.set(0, largest);
  const Scales scales(static_cast<float>(amax.at(0)));
  data.quotient = [&](float number, float of_block) { return number * scales.factor(of_block); };
  data.scale = [&](float of_block) { return scales.unrounded(of_block); };
  move_from_middles(x, data);
}

}  // namespace
}  // namespace quant_nvfp4

extern const Operator kQuantNvfp4;
constexpr Operator kQuantNvfp4{
    "quant_nvfp4",
    "elementwise",
    "S = 2688/amax; scale = e4m3(max(|x|) S/6) of every 16 columns; codes = e2m1(x S/scale), two a byte",
    "batch seq",
    quant_nvfp4::kAttrs,
    quant_nvfp4::kPasses,
    quant_nvfp4::validate,
    quant_nvfp4::refine};

}  // namespace checkop
