// SPDX-License-Identifier: Apache-2.0
// quant_fp8_block_2d: a matrix as e4m3 codes, with one fp32 scale for 128 x 128 of them.
#include <algorithm>
#include <array>
#include <vector>

#include "fp8_block.hpp"
#include "operator/operator.hpp"
#include "quantized.hpp"

namespace checkop {

extern const Emulation kQuantFp8Block2dForward;  // emulation/quant_fp8_block.cpp

namespace quant_fp8_block_2d {
namespace {

using fp8_block::kBlock;

constexpr TensorSpec kX{"x", "n_dim k_dim", Fill::normal, "", {}, false, /*constant=*/true};
constexpr std::array kForwardIn{kX};
constexpr TensorSpec kCodesT{"codes_t", "k_dim n_dim", Fill::normal, "", DType::e4m3, /*optional=*/true};
constexpr std::array kForwardOut{
    OutputSpec{{"codes", "n_dim k_dim", Fill::normal, "", DType::e4m3}, Numerics::exact, "", /*sampled=*/true},
    OutputSpec{{"scales", "n_dim/128 k_dim/128", Fill::normal, "", DType::f32}, Numerics::exact, ""},
    OutputSpec{kCodesT, Numerics::exact, "", /*sampled=*/true},
    OutputSpec{{"scales_t", "k_dim/128 n_dim/128", Fill::normal, "", DType::f32, /*optional=*/true, false, "",
                /*follows=*/kCodesT.name},
               Numerics::exact,
               ""},
};
enum Output : int { kOfCodes, kOfScales, kOfCodesT, kOfScalesT };

int64_t blocks_of(int64_t n) { return (n + kBlock - 1) / kBlock; }

/// The scales of all blocks, by row of blocks.
class Scales {
 public:
  explicit Scales(const GoldArgs& args) : columns_(blocks_of(args.in(0).shape.back())) {
    const Tensor& x = args.in(0);
    const int64_t rows = x.shape[0], columns = x.shape[1];
    scales_.resize(static_cast<size_t>(blocks_of(rows) * columns_));
    args.parallel_for(blocks_of(rows), [&](int64_t block_row) {
      std::vector<float> largest(static_cast<size_t>(columns_));
      std::vector<double> row(static_cast<size_t>(columns));
      for (int64_t r = block_row * kBlock; r < std::min(rows, (block_row + 1) * kBlock); ++r) {
        decode_row(x, r, row);
        const std::vector<float> values(row.begin(), row.end());
        for (size_t b = 0; b < largest.size(); ++b) {
          const size_t first = b * kBlock, n = std::min<size_t>(kBlock, values.size() - first);
          largest[b] = std::max(largest[b], largest_size(std::span(values).subspan(first, n)));
        }
      }
      for (size_t b = 0; b < largest.size(); ++b)
        scales_[static_cast<size_t>(block_row * columns_) + b] = fp8_block::scale_of(largest[b], args.attrs);
    });
  }

  const fp8_block::Scale& at(int64_t block_row, int64_t block_column) const {
    return scales_[static_cast<size_t>(block_row * columns_ + block_column)];
  }

 private:
  int64_t columns_;
  std::vector<fp8_block::Scale> scales_;
};

/// Emits rows of output `output`, whose elements are value(row, column) and have no error.
template <class Value>
void emit(const GoldArgs& args, Output output, const Value& value) {
  const Shape& shape = args.output_shapes[static_cast<size_t>(output)];
  const std::vector<double> none(static_cast<size_t>(shape[1]));
  args.for_rows(output, shape[0], [&](int64_t row) {
    std::vector<double> values;
    for (int64_t column = 0; column < shape[1]; ++column) values.push_back(value(row, column));
    args.sink({output, row, 1, shape[1], values.data(), none.data(), none.data()});
  });
}

/// Gold of quant_fp8_block_2d, for each block of 128 x 128 numbers, or fewer at the ends of rows and columns.
///   in:  x[n_dim, k_dim]     out: codes[n_dim, k_dim] e4m3, scales[n_dim/128, k_dim/128] fp32
///        codes_t[k_dim, n_dim] e4m3, scales_t[k_dim/128, n_dim/128] fp32, optional: those of x transposed
///   scale and code of an element: fp8_block::scale_of, of the largest |x| of its block
///   Codes are rounded to nearest, ties to even; beyond 448 they are 448.
/// amax ignores NaN, and the code of a NaN is NaN.
/// Source: factor_first 0 as per_block_cast_to_fp8 of DeepGEMM's deep_gemm/utils/math.py, factor_first 1 as
/// compute_scale_from_amax of Transformer Engine's common/recipe/recipe_common.cuh.
void forward(const GoldArgs& args) {
  const Tensor& x = args.in(0);
  const int64_t columns = x.shape[1];
  const Scales scales(args);
  const auto code = [&](int64_t row, int64_t column) {
    return scales.at(row / kBlock, column / kBlock).code(static_cast<float>(x.at(row * columns + column)));
  };
  emit(args, kOfCodes, code);
  emit(args, kOfScales, [&](int64_t row, int64_t column) { return scales.at(row, column).stored; });
  if (args.output_shapes[kOfCodesT].empty()) return;
  emit(args, kOfCodesT, [&](int64_t row, int64_t column) { return code(column, row); });
  emit(args, kOfScalesT, [&](int64_t row, int64_t column) { return scales.at(column, row).stored; });
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kQuantFp8Block2dForward}};

void validate(const CaseSizes& sizes) { fp8_block::validate(sizes, "quant_fp8_block_2d"); }

void refine(const FillArgs& args) {
  BlockData data = fp8_block::data_of(args.attrs);
  data.rows = kBlock;
  plant_blocks(args, *args.find("x"), data);
  move_from_middles(*args.find("x"), data);
}

}  // namespace
}  // namespace quant_fp8_block_2d

extern const Operator kQuantFp8Block2d;
constexpr Operator kQuantFp8Block2d{"quant_fp8_block_2d",
                                    "elementwise",
                                    "scale = max(|x|)/448 of every 128 x 128 numbers; codes = e4m3(x (1/scale))",
                                    /*row_dims=*/"",
                                    fp8_block::kAttrs,
                                    quant_fp8_block_2d::kPasses,
                                    quant_fp8_block_2d::validate,
                                    quant_fp8_block_2d::refine};

}  // namespace checkop
