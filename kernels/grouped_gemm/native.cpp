// SPDX-License-Identifier: Apache-2.0
// grouped_gemm / native: CPU, fp32 products and sums; one product per expert.
//   c[r] = a[r] b[e]^T, da[r] = grad_c[r] b[e] for offsets[e] <= r < offsets[e + 1], zero from row offsets[experts] on
//   db[e] = grad_c[rows of e]^T a[rows of e], zero for an expert without rows
//   a, da: [rows, k_dim]   b, db: [experts, n_dim, k_dim]   c, grad_c: [rows, n_dim]   fp32|bf16|fp16, one dtype
//   offsets: [experts + 1] int32     Limits: contiguous. Offsets that decrease or leave the rows are CHECKOP_FAILED.
//   Expected error: chains of 67 to 68 additions, then a tree over blocks of 512 or 1024 terms.
#include "cpu/grouped_product.hpp"

namespace {

using native::RowLayout;

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "grouped_gemm", "forward", CHECKOP_CPU, 0, 0, nullptr,
     native::grouped_forward<RowLayout::successive>},
    {sizeof(checkop_kernel), "native", "grouped_gemm", "backward", CHECKOP_CPU, 0, 0, nullptr,
     native::grouped_backward<RowLayout::successive>},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
