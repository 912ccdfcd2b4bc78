// SPDX-License-Identifier: Apache-2.0
// A model of the tensor cores of sm_90, bit for bit: what a chain of blocks of 16 products leaves in an accumulator.
#pragma once

#include <cstdint>

#include "operator/model.hpp"
#include "product.hpp"

namespace checkop {

/// Products that a block takes at once. A K that is no multiple of it is filled with zeros.
inline constexpr int64_t kTensorCoreBlock = 16;

/// The accumulator after one block: fp16 or bf16 factors x[i], y[i], i in [0, 16), as stored bits, and `accumulator`.
/// A factor's exponent is that of its leading bit, or of the least normal number when it is subnormal; a product's is
/// the sum of two, so that a product of normal factors is in [1, 4) of it. All 17 terms are cut toward zero to
/// multiples of 2^(e - 25), e the largest exponent, and added exactly; the sum is cut toward zero to 24 significant
/// bits, below the normal fp32 numbers to a multiple of 2^-149. A sum beyond the largest fp32 is infinite, one of
/// nothing is +0, a NaN is 0x7fffffff. Seen on an H200 with mma.sync m16n8k16: not one bit differs in 524288 elements
/// each of normal, wide, cancelling, subnormal, overflowing, zero and non-finite terms, in bf16 and in fp16. The same
/// structure was found by Khattak & Mikaitis, "Accurate models of NVIDIA tensor cores", arXiv 2512.07004.
float tensor_core_block(DType factors, const uint16_t* x, const uint16_t* y, float accumulator);

/// Emits the rows args.rows(index) of x * y + bias as tensor cores leave them, in fp32; bias may be nullptr. args.order
/// says how the products of an element are added up; the bias is added in fp32 last. A block's result depends on its
/// terms alone, so these bits do not depend on the tile, the instruction's shape or the other rows. Both factors must
/// have one dtype, fp16 or bf16. Blocks of 8 are those of sm_80, which keeps 24 bits below the largest exponent: as
/// published (Xie, Wang & Yang, "MMA-Sim", arXiv 2511.10909), not seen here.
void emit_tensor_core_product(const ModelArgs& args, int index, const Factor& x, const Factor& y,
                              const Tensor* bias = nullptr);

}  // namespace checkop
