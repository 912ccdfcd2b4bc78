// SPDX-License-Identifier: Apache-2.0
// Products of e4m3 codes with scales for blocks of 128 terms: gold, identity, attributes and data of fp8_block_gemm,
// grouped_fp8_block_gemm and fp8_block_wgrad.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "operator/model.hpp"
#include "operator/operator.hpp"
#include "product.hpp"

namespace checkop::fp8_product {

inline constexpr int64_t kBlock = kScaledCodes;

enum Attr : size_t { kAccBits, kAccTerms };
inline constexpr std::array kAttrs{
    AttrSpec{"acc_bits", 14,
             "bits that an addition keeps of its largest addend: 14 of FP8 tensor cores of sm_90, 24 of fp32"},
    AttrSpec{"acc_terms", 32, "products that are added at once, to what was added before; 1 of ordinary units"}};

/// Throws InputError for attributes without a meaning.
void validate(const CaseSizes& sizes);

/// A part of a matrix of codes, seen as [rows, columns], and its scales: one for 128 columns of `rows_of_scale` rows.
struct ScaledCodes {
  const Tensor &codes, &scales;
  int64_t rows_of_scale;
  int64_t first_row = 0, first_scale_row = 0;  ///< of the part
  int64_t first_column = 0, columns = codes.shape.back();

  /// Row `row` of the part times its scales, exact in fp64.
  void decode(int64_t row, double* to) const;
  /// `rows` rows of the part, as a tensor of fp64.
  Tensor dequantised(const IdentityArgs& args, int64_t rows) const;
};

/// Emits rows of output `output`, n columns each: x y^T of the rows `rows` of x, which are those of the output from
/// `first_row` on, and the first n rows of y.
/// The sums of 128 products each are added up in fp32, hence the magnitude of a product, as in product.hpp. Within one
/// of them FP8 tensor cores keep few bits: an instruction truncates every addend to 2^(1 - acc_bits) of the largest,
/// where a subnormal code counts as 2^-6 (tensor_core_code_block()). The largest is not above the size of partial sums,
/// |sum| + sqrt(sum of squares) of a block, unless all large products have a subnormal factor and cancel: for such a
/// block, which the drawn data do not have, the bound is too small. So
///   rounding = ((acc_terms + 1) (128/acc_terms) 2^(1 - acc_bits)/u + 3) sum over blocks of that size,  u = 2^-24
/// One large product and 127 that are lost beside it err by almost half of that. Sources: DeepGEMM's
/// sm90_fp8_gemm_1d2d.cuh; truncation as in tensor_core_code_block(), which was verified on an H200.
void emit_product(const GoldArgs& args, int output, int64_t first_row, std::span<const int64_t> rows,
                  const ScaledCodes& x, const ScaledCodes& y, int64_t n);

/// The model of rows of output `output`, from `first_row` on: `rows` rows of x times the first n rows of y, as wgmma
/// adds the codes of sm_90. Both operands are whole rows.
void model_product(const ModelArgs& args, int output, int64_t first_row, int64_t rows, const ScaledCodes& x,
                   const ScaledCodes& y, int64_t n);

/// Freivalds' check of rows of output `output`, from `first_row` on: x y^T of dequantised operands. What tensor cores
/// lose adds to an element at most units times sum_k |x_k y_jk|; the root of the squares of that over j is at most
/// sum_k |x_k| sqrt(sum_j y_jk^2).
void check_product(const IdentityArgs& args, int output, int64_t first_row, const Tensor& x, const Tensor& y);

/// Codes of the whole range, and scales with which numbers of x are of size 1, and sums of `terms` products, too. Every
/// second row has no number below 0: where two of them meet, whatever is lost is lost to one side. With `of_rows` some
/// rows have a block 2^10 times as large as the others, one with a scale of 0, or codes of subnormal numbers.
void draw(const FillArgs& args, std::string_view codes, std::string_view scales, int64_t terms, bool of_rows);

}  // namespace checkop::fp8_product
