// SPDX-License-Identifier: Apache-2.0
// masked_grouped_fp8_block_gemm / native: CPU, fp32 products and sums of decoded codes; each block of 128 columns, then
// over blocks.
//   d[e, i] = sum_k (a[e, i] scale_a[e, i, k/128]) (b[e] scale_b[e, n/128, k/128]) for i < counts[e], then zeros
//   a: [experts, capacity, k_dim] e4m3
//   scale_a: [experts, capacity, k_dim/128 rounded up] fp32
//   b: [experts, n_dim, k_dim] e4m3
//   scale_b: [experts, n_dim/128, k_dim/128, both rounded up] fp32
//   counts: [experts] int32
//   d: [experts, capacity, n_dim] fp32|bf16|fp16
//   Limits: contiguous. Counts outside [0, capacity] are CHECKOP_FAILED.
//   Expected error: chains of 12 additions within a block, then a tree over blocks.
#include "cpu/grouped_fp8_product.hpp"

namespace {

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "masked_grouped_fp8_block_gemm", "forward", CHECKOP_CPU, 0, 0, nullptr,
     native::grouped_fp8_forward<native::RowLayout::masked>},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
