// SPDX-License-Identifier: Apache-2.0
// A bit-exact model of the tensor cores of sm_90: the accumulator after a chain of blocks of 16 products, of 32 for
// e4m3.
#pragma once

#include <cstdint>

#include "operator/model.hpp"
#include "product.hpp"

namespace checkop {

/// Products that a block adds at once, of 16-bit operands and of e4m3 codes. K is padded with zeros to a multiple of
/// it.
inline constexpr int64_t kTensorCoreBlock = kModelledArchs[0].block, kTensorCoreCodes = kModelledArchs[0].code_block;

/// The accumulator after one block. The operands x[i], y[i], i in [0, 16), are fp16 or bf16, as stored bits.
/// The exponent of an operand is that of its leading bit, or of the smallest normal number if it is subnormal. The
/// exponent of a product is the sum of both, so a product of normal operands is in [1, 4) times 2^exponent. All 17
/// terms are truncated toward zero to multiples of 2^(e - 25), with e the largest exponent, and added exactly. The sum
/// is truncated toward zero to 24 significant bits, or below the normal fp32 numbers to a multiple of 2^-149. A sum
/// beyond the largest fp32 is infinite, an empty sum is +0, a NaN is 0x7fffffff.
/// Verified on an H200 with mma.sync m16n8k16: no bit differs in 524288 elements each of normal, wide, cancelling,
/// subnormal, overflowing, zero and non-finite terms, in bf16 and in fp16. Khattak & Mikaitis, "Accurate models of
/// NVIDIA tensor cores", arXiv 2512.07004, found the same structure.
float tensor_core_block(DType factors, const uint16_t* x, const uint16_t* y, float accumulator);

/// The same for 32 products of e4m3 codes x[i], y[i], i in [0, 32). Exponents are as above, so a subnormal code has
/// that of the smallest normal number; products of zero have none. All 33 terms are truncated toward zero to multiples
/// of 2^(e - 13), and added exactly; the sum is truncated toward zero to 14 significant bits, or below the normal fp32
/// numbers to a multiple of 2^-139. An empty sum is +0, a NaN, also that of a NaN times 0, is 0x7fffffff.
/// Verified on an H200 with wgmma.mma_async m64n8k32 and m64n128k32: of 720 formulas (the exponent of a product, places
/// kept below the largest one, rounding of the sum, terms at once, place of the accumulator) only this one has all bits
/// of 49152 results each of one instruction, of one without an accumulator, and of four in a chain, with codes of the
/// whole range, subnormal and NaN ones, one large product beside small ones, cancelling and carrying sums, and
/// accumulators of every size.
float tensor_core_code_block(const uint8_t* x, const uint8_t* y, float accumulator);

/// fp32 scales of an operand of codes: one for kScaledCodes codes of each of `rows_of_scale` rows along k.
struct CodeScales {
  const Tensor* tensor;  ///< [.., k/128 rounded up]
  int64_t rows_of_scale = 1;
  int64_t first_row = 0;  ///< of the tensor
};
/// Those of the rows of x and of the columns of y.
struct ProductScales {
  CodeScales x, y;
};

/// Emits the rows args.rows(index) of x * y + bias as tensor cores compute them, in fp32; bias may be nullptr.
/// args.order gives the order of addition; the bias is added last, in fp32. A block's result depends only on its terms,
/// so the bits do not depend on the tile, the shape of the instruction or the other rows. Both operands must have the
/// same dtype, fp16 or bf16; or e4m3 with `scales`, and blocks of 32. Every 128 products of codes then begin with an
/// accumulator of 0, and  sum = fma(scale_x * scale_y, accumulator, sum)  in fp32.
/// Blocks of 8 model sm_80, which keeps 24 bits below the largest exponent: as published (Xie, Wang & Yang, "MMA-Sim",
/// arXiv 2511.10909), not verified here.
void emit_tensor_core_product(const ModelArgs& args, int index, const Factor& x, const Factor& y,
                              const Tensor* bias = nullptr, const ProductScales* scales = nullptr);

/// The same where x * y are the rows of output `index` from `first` on: emits those of them that are wanted.
void emit_tensor_core_part(const ModelArgs& args, int index, int64_t first, const Factor& x, const Factor& y,
                           const ProductScales* scales = nullptr);

}  // namespace checkop
