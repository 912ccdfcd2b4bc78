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
  /// The same, and the size of each number where tensor cores align it: that of a subnormal code counts as 2^-6.
  void decode(int64_t row, double* to, double* aligned) const;
  /// `rows` rows of the part, as a tensor of fp64.
  Tensor dequantised(const IdentityArgs& args, int64_t rows) const;
};

/// Emits rows of output `output`, n columns each: x y^T of the rows `rows` of x, which are those of the output from
/// `first_row` on, and the first n rows of y. An element with a NaN among its codes and scales is NaN, also where that
/// is multiplied by 0.
/// The sums of 128 products each are added up in fp32, hence the magnitude of a product, as in product.hpp. Within one
/// of them FP8 tensor cores keep few bits (tensor_core_code_block()). An instruction adds T = acc_terms products to the
/// sum before it. It cuts what is below 2^e eps from every addend, eps = 2^(1 - acc_bits), with e the largest exponent:
/// that of a product is the sum of its factors' exponents, and a subnormal code has that of 2^-6. Then it cuts the new
/// sum to acc_bits bits. Let p' be products of which a subnormal factor counts as 2^-6, P the root of the sum of their
/// squares in the block, and s_g the sum of the products of the first g instructions. Then 2^e is at most the largest
/// p', or the sum before. The addend with this exponent loses nothing: the last bit of a product is 2^-6 of its
/// exponent, and a sum has acc_bits bits. So at most T addends lose less than 2^e eps each, and the new sum less than
/// eps of it. All that is lost up to instruction g is at most
///   L_g = l + eps (|s_g| + l),  l = L_(g-1) + T eps max(P, |s_(g-1)| + L_(g-1)),  L_0 = 0
/// That of the last one is a bound if instructions take the products in order. The gold has no partial sums of other
/// orders. If signs are random, or all the same, these are of the size |sum| + P, and most addends lose far less
/// than the most they can, so it grants every order
///   ((T + 1) (128/T) eps + 3 u) (|sum| + P),  u = 2^-24
/// where 3 u are for the product of two scales, that with the sum, and storing it. The rounding of a block is this or
/// L + 3 u (|sum| + L), whichever is more; the second one is where large products cancel across instructions, and small
/// ones between them are lost.
/// With acc_terms 1 it is the first one alone, of p' that are the products themselves: ordinary units align nothing.
/// They round to nearest, by at most u times a partial sum; that is u (65 |sum| + 418 P) in a block for any order, as
/// Cauchy and Schwarz say, less than the 512 u (|sum| + P) of acc_bits 24.
/// One large product and 127 that are lost beside it err by almost half of the bound. Sources: DeepGEMM's
/// sm90_fp8_gemm_1d2d.cuh; truncation as in tensor_core_code_block(), which was verified on an H200.
void emit_product(const GoldArgs& args, int output, int64_t first_row, std::span<const int64_t> rows,
                  const ScaledCodes& x, const ScaledCodes& y, int64_t n);

/// The model of rows of output `output`, from `first_row` on: `rows` rows of x times the first n rows of y, as wgmma
/// adds the codes of sm_90. Both operands are whole rows.
void model_product(const ModelArgs& args, int output, int64_t first_row, int64_t rows, const ScaledCodes& x,
                   const ScaledCodes& y, int64_t n);

/// Freivalds' check of rows of output `output`, from `first_row` on: `rows` rows of x times the first n rows of y. What
/// tensor cores lose adds to an element at most units times sum_k |x_k y_jk|, of aligned numbers, since no partial sum
/// is larger; the root of the squares of that over j is at most sum_k |x_k| sqrt(sum_j y_jk^2).
/// With 7 standard deviations the limit is 7 * 132 * 2^-13 = 0.113 of that with the default attributes, for every
/// addend may lose what it can, to one side. It grows as K, the number of terms; a row of both signs grows as the root
/// of K. If its numbers are normal, a row of zeros in its place errs by the limit at a K of about 120, and by a sixth
/// of it at K = 4096, where an error of one element shows from about 7 sqrt(n) times the row's root mean square on. So
/// from K = 120 on, the check sees only gross errors in such rows. Rows of one sign grow as K if rows of y have one
/// sign too: draw() makes every second row so, and the check sees zeros in place of most of them at any K, so that it
/// finds a tile that was not written. A tighter limit needs the size of the partial sums of each row, from y_b^T y_b
/// for every block b: 128 n K operations more. By estimate it would pass a row of zeros from a K of about 1500 on.
/// Rows of x and of y that hold numbers which are not finite say nothing, and are left out of it. Emits a residual
/// "nan" per row: how many elements are NaN but have no factor that is not finite, or have a NaN among their factors
/// but are not NaN.
void check_product(const IdentityArgs& args, int output, int64_t first_row, int64_t rows, const ScaledCodes& x,
                   const ScaledCodes& y, int64_t n);

/// Codes of the whole range, and scales with which numbers of x are of size 1, and sums of `terms` products, too. Every
/// second row has no number below 0: where two of them meet, whatever is lost is lost to one side. With `of_rows` some
/// rows have a block 2^10 times as large as the others, one with a scale of 0, or codes of subnormal numbers. Some rows
/// of either operand are of kinds whose sums tensor cores lose where they meet: see Lost. In mode extreme some rows of
/// either operand have one code that is NaN, and some one scale.
void draw(const FillArgs& args, std::string_view codes, std::string_view scales, int64_t terms, bool of_rows);

}  // namespace checkop::fp8_product
