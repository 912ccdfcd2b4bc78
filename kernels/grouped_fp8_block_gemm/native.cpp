// SPDX-License-Identifier: Apache-2.0
// grouped_fp8_block_gemm / native: CPU, fp32 products and sums of decoded codes; each block of 128 columns, then over
// blocks.
//   d[r] = sum_k (a[r] scale_a[r, k/128]) (b[e] scale_b[e, n/128, k/128]) for offsets[e] <= r < offsets[e + 1]
//   d[r] = 0 from row offsets[experts] on
//   a: [rows, k_dim] e4m3              scale_a: [rows, k_dim/128 rounded up] fp32
//   b: [experts, n_dim, k_dim] e4m3    scale_b: [experts, n_dim/128, k_dim/128, both rounded up] fp32
//   offsets: [experts + 1] int32       d: [rows, n_dim] fp32|bf16|fp16
//   Limits: contiguous. Offsets that decrease or leave the rows are CHECKOP_FAILED.
//   Expected error: chains of 12 additions within a block, then a tree over blocks.
#include "cpu/grouped_fp8_product.hpp"

namespace {

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "grouped_fp8_block_gemm", "forward", CHECKOP_CPU, 0, 0, nullptr,
     native::grouped_fp8_forward<native::RowLayout::successive>},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
