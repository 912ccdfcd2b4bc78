// SPDX-License-Identifier: Apache-2.0
// A bit-exact model of the tensor cores of sm_90: the accumulator after a chain of blocks of 16 products.
#pragma once

#include <cstdint>

#include "operator/model.hpp"
#include "product.hpp"

namespace checkop {

/// Products that a block adds at once. K is padded with zeros to a multiple of it.
inline constexpr int64_t kTensorCoreBlock = 16;

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

/// Emits the rows args.rows(index) of x * y + bias as tensor cores compute them, in fp32; bias may be nullptr.
/// args.order gives the order of addition; the bias is added last, in fp32. A block's result depends only on its terms,
/// so the bits do not depend on the tile, the shape of the instruction or the other rows. Both operands must have the
/// same dtype, fp16 or bf16.
/// Blocks of 8 model sm_80, which keeps 24 bits below the largest exponent: as published (Xie, Wang & Yang, "MMA-Sim",
/// arXiv 2511.10909), not verified here.
void emit_tensor_core_product(const ModelArgs& args, int index, const Factor& x, const Factor& y,
                              const Tensor* bias = nullptr);

}  // namespace checkop
