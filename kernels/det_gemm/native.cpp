// SPDX-License-Identifier: Apache-2.0
// det_gemm / native: CPU, fp32 products and sums.
//   c[r,n] = sum_k a[r,k] b[k,n]     da[r,k] = sum_n g[r,n] b[k,n]     db[k,n] = sum_r a[r,k] g[r,n]
//   a, da: [..., k_dim]    b, db: [k_dim, n_dim]    c, grad_c: [..., n_dim]    fp32|bf16|fp16, one dtype for all
//   Limits: contiguous.   Expected error: chains of 67 to 68 additions, then a tree over blocks of 512 or 1024 terms.
#include "cpu/product.hpp"

namespace {

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "det_gemm", "forward", CHECKOP_CPU, 0, 0, nullptr, native::product_forward},
    {sizeof(checkop_kernel), "native", "det_gemm", "backward", CHECKOP_CPU, 0, 0, nullptr, native::product_backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
