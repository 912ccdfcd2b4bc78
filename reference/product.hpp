// SPDX-License-Identifier: Apache-2.0
// FP64 matrix products of stored tensors, streamed by blocks of rows. The only code that uses OpenBLAS.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "operator/operator.hpp"
#include "recipes.hpp"

namespace checkop {

/// Rows of a stored tensor as an operand of a matrix product: [rows, columns] row-major, or its transpose.
struct Factor {
  const Tensor* tensor;
  int64_t rows, columns;  ///< as stored
  bool transposed = false;
  int64_t first_row = 0;  ///< of the tensor seen as a matrix with `columns` columns
};

/// Emits the args.rows(index) of output `index` = x * y + bias without further rounding; bias may be nullptr:
///   value[i, j] = sum_k x[i, k] y[k, j] + bias[j]
///   magnitude = |product| + sqrt(sum_k (x[i, k] y[k, j])^2) + |bias[j]|
/// The magnitude is the size of partial sums of terms in an order unrelated to their values: these sums run from 0 to
/// the value and stray from that line by about the root of the sum of squares. The sum of |terms|, which bounds partial
/// sums in any order, is sqrt(k) times larger for terms of both signs, and would hide operands rounded to TF32.
/// Blocks depend only on the sizes, and one thread computes each block, so the bits do not depend on args.threads.
void emit_product(const GoldArgs& args, int index, const Factor& x, const Factor& y, const Tensor* bias = nullptr);

/// out = alpha*out + x[m, k] * y, with y stored as [n, k] (transposed) or [k, n]; all dense row-major with leading
/// dimensions. Uses one thread. Source of the FP64 product: OpenBLAS dgemm.
void dense_product(bool transpose_x, bool transpose_y, int64_t m, int64_t n, int64_t k, const double* x, int64_t ldx,
                   const double* y, int64_t ldy, double alpha, double* out, int64_t ldout);

/// The recipe tf32_operands: values as tensor cores read them, and their squares.
inline constexpr Recipe tf32_operands(std::string_view outputs) {
  return {kTf32Operands,
          outputs,
          "fp32",
          /*exact=*/true,
          "x = round(x), y = round(y) to 11 bits",
          "cuBLAS with torch.backends.cuda.matmul.allow_tf32, and what is built on it"};
}
/// The recipe partials_in_16_bit of a product of k terms that is cut into s parts along k. If the order is unrelated to
/// the values of the terms t, partial sums run from 0 to the result c and stray from that line by about the root of sum
/// t^2. The squares of the parts add up to about c^2/s + sum t^2, which is largest for s = 2.
constexpr Recipe rounds_partials(std::string_view outputs) {
  return {
      kPartials,
      outputs,
      k16Bit,
      /*exact=*/false,
      "c = sum over parts of k of round(sum of the part)",
      "cuBLAS with split K, unless torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction (fp16 likewise) "
      "is off"};
}
/// The recipe product_in_16_bit of a product with a bias.
constexpr Recipe rounds_product(std::string_view outputs, std::string_view formula) {
  Recipe recipe{
      recipe::kProduct, outputs, k16Bit,
      /*exact=*/true,   formula, "F.linear with a bias where PyTorch has no fused kernel: a product, then an addition"};
  recipe.needs = "bias";
  return recipe;
}
void round_to_tf32(std::span<double> value, std::span<double> square);

/// Decodes block [row, row + rows) x [column, column + columns) of a stored row-major matrix into `value` and its
/// squares into `square`; both dense [rows, columns].
void decode_block(const Factor& matrix, int64_t row, int64_t rows, int64_t column, int64_t columns, double* value,
                  double* square);

}  // namespace checkop
