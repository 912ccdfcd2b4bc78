// SPDX-License-Identifier: Apache-2.0
// masked_grouped_gemm / native: CPU, fp32 products and sums; one product per expert.
//   c[e, i] = a[e, i] b[e]^T, da[e, i] = grad_c[e, i] b[e] for i < counts[e], zero from there on
//   db[e] = the sum over i < counts[e] of grad_c[e, i]^T a[e, i], zero for an expert without rows
//   a, da: [experts, capacity, k_dim]   c, grad_c: [experts, capacity, n_dim]   b, db: [experts, n_dim, k_dim]
//   fp32|bf16|fp16, one dtype     counts: [experts] int32     Limits: contiguous. Counts outside [0, capacity] are
//   CHECKOP_FAILED.
//   Expected error: chains of 67 to 68 additions, then a tree over blocks of 512 or 1024 terms.
#include "cpu/grouped_product.hpp"

namespace {

using native::RowLayout;

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "masked_grouped_gemm", "forward", CHECKOP_CPU, 0, 0, nullptr,
     native::grouped_forward<RowLayout::masked>},
    {sizeof(checkop_kernel), "native", "masked_grouped_gemm", "backward", CHECKOP_CPU, 0, 0, nullptr,
     native::grouped_backward<RowLayout::masked>},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
