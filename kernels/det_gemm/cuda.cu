// SPDX-License-Identifier: Apache-2.0
// det_gemm / cuda: portable CUDA, one fp32 accumulator per element; fp16 and bf16 on tensor cores, fp32 on CUDA cores.
//   forward   c = a * b     backward  da = grad_c * b^T, db = a^T * grad_c
//   a, da: [rows, k_dim]   b, db: [k_dim, n_dim]   c, grad_c: [rows, n_dim]
//   all of one dtype, f32|f16|bf16, row-major, contiguous
//   Limits: fp32: k_dim and n_dim <= 65535 * 128, outputs at 16-byte boundaries.
//   Workspace: fp32: a copy of an output whose rows are not a multiple of 4 long, padded to that; of the larger one in
//   the backward pass. Otherwise none.
//   Expected error: contraction class; fp16 and bf16: a chain of k/16 blocks, fp32: chains of 512 + k/512, then one
//   rounding. The bits of a row do not depend on the other rows: see gemm/mma.cuh and gemm/tile.cuh.
#include "gemm/product.cuh"

namespace checkop::kernels {
namespace {

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "det_gemm", "forward", CHECKOP_CUDA, 80, 0, matmul_forward_workspace,
     launch_matmul_forward<PortableProduct>},
    {sizeof(checkop_kernel), "cuda", "det_gemm", "backward", CHECKOP_CUDA, 80, 0, matmul_backward_workspace,
     launch_matmul_backward<PortableProduct>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
