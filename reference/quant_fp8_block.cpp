// SPDX-License-Identifier: Apache-2.0
// quant_fp8_block: numbers as e4m3 codes, with one fp32 scale for 128 of them.
#include <array>
#include <vector>

#include "base/error.hpp"
#include "fp8_block.hpp"
#include "operator/operator.hpp"
#include "quantized.hpp"

namespace checkop {

extern const Emulation kQuantFp8BlockForward;  // emulation/quant_fp8_block.cpp

namespace quant_fp8_block {
namespace {

using fp8_block::kBlock;

constexpr TensorSpec kX{"x", "batch seq hidden", Fill::normal, "", {}, false, /*constant=*/true};
constexpr std::array kForwardIn{kX};
constexpr TensorSpec kCodesT{"codes_t", "hidden batch*seq", Fill::normal, "", DType::e4m3, /*optional=*/true};
constexpr std::array kForwardOut{
    OutputSpec{{"codes", "batch seq hidden", Fill::normal, "", DType::e4m3}, Numerics::exact, "", /*sampled=*/true},
    OutputSpec{{"scales", "batch seq hidden/128", Fill::normal, "", DType::f32}, Numerics::exact, "", /*sampled=*/true},
    OutputSpec{kCodesT, Numerics::exact, "", /*sampled=*/true},
    OutputSpec{{"scales_t", "hidden (batch*seq)/128", Fill::normal, "", DType::f32, /*optional=*/true, false, "",
                /*follows=*/kCodesT.name},
               Numerics::exact,
               "",
               /*sampled=*/true},
};
enum Output : int { kOfCodes, kOfScales, kOfCodesT, kOfScalesT };

/// Codes and scales of a row, or of a column, whose blocks begin at multiples of 128.
void quantize(std::span<const float> x, std::span<const double> attrs, std::span<double> codes,
              std::span<double> scales) {
  for (size_t b = 0; b < scales.size(); ++b) {
    const size_t first = b * kBlock, n = std::min<size_t>(kBlock, x.size() - first);
    const fp8_block::Scale scale = fp8_block::scale_of(largest_size(x.subspan(first, n)), attrs);
    scales[b] = scale.stored;
    for (size_t i = first; i < first + n; ++i) codes[i] = scale.code(x[i]);
  }
}

/// Gold of quant_fp8_block, for each block of 128 columns of a row, or fewer at its end.
///   in:  x[batch, seq, hidden]     out: codes[batch, seq, hidden] e4m3, scales[batch, seq, hidden/128] fp32
///        codes_t[hidden, batch seq] e4m3, scales_t[hidden, batch seq/128] fp32, optional: the same of x transposed,
///        so that a block is 128 tokens of a column; blocks go on from one sequence to the next
///   scale and code of an element: fp8_block::scale_of, of the largest |x| of its block
///   Codes are rounded to nearest, ties to even; beyond 448 they are 448.
/// amax ignores NaN, and the code of a NaN is NaN.
/// Source: factor_first 0 as per_token_cast_to_fp8 of DeepGEMM's deep_gemm/utils/math.py, factor_first 1 as
/// compute_scale_from_amax of Transformer Engine's common/recipe/recipe_common.cuh; transposed as
/// per_channel_cast_to_fp8 of the former.
void forward(const GoldArgs& args) {
  const Tensor& x = args.in(0);
  quantize_rows(args, x, [&](std::span<const float> row, std::span<double> codes, std::span<double> scales) {
    quantize(row, args.attrs, codes, scales);
  });
  if (args.output_shapes[kOfCodesT].empty()) return;
  const int64_t columns = x.shape.back(), tokens = args.output_shapes[kOfCodesT].back();
  const int64_t blocks = args.output_shapes[kOfScalesT].back();
  const std::vector<double> none(static_cast<size_t>(tokens));
  args.for_rows(kOfCodesT, columns, [&](int64_t column) {
    std::vector<float> values;
    for (int64_t t = 0; t < tokens; ++t) values.push_back(static_cast<float>(x.at(t * columns + column)));
    std::vector<double> codes(static_cast<size_t>(tokens)), scales(static_cast<size_t>(blocks));
    quantize(values, args.attrs, codes, scales);
    args.sink({kOfCodesT, column, 1, tokens, codes.data(), none.data(), none.data()});
    args.sink({kOfScalesT, column, 1, blocks, scales.data(), none.data(), none.data()});
  });
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kQuantFp8BlockForward}};

void validate(const CaseSizes& sizes) {
  fp8_block::validate(sizes, "quant_fp8_block");
  if (sizes.attrs[fp8_block::kNear] != 0 && sizes.has(kCodesT.name))
    throw InputError("--near", "1 keeps quotients of rows from the middle of two codes, not those of codes_t",
                     "leave out --with codes_t, or --near");
}

void refine(const FillArgs& args) {
  const BlockData data = fp8_block::data_of(args.attrs);
  plant_blocks(args, *args.find("x"), data);
  move_from_middles(*args.find("x"), data);
}

}  // namespace
}  // namespace quant_fp8_block

extern const Operator kQuantFp8Block;
constexpr Operator kQuantFp8Block{"quant_fp8_block",
                                  "elementwise",
                                  "scale = max(|x|)/448 of every 128 columns; codes = e4m3(x (1/scale))",
                                  "batch seq",
                                  fp8_block::kAttrs,
                                  quant_fp8_block::kPasses,
                                  quant_fp8_block::validate,
                                  quant_fp8_block::refine};

}  // namespace checkop
