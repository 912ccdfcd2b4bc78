// SPDX-License-Identifier: Apache-2.0
// det_gemm / cuda-sm90: Hopper's wgmma and TMA for fp16 and bf16, fp32 on CUDA cores.
//   forward   c = a * b     backward  da = grad_c * b^T, db = a^T * grad_c
//   a, da: [rows, k_dim]   b, db: [k_dim, n_dim]   c, grad_c: [rows, n_dim]
//   all of one dtype, f32|f16|bf16, row-major, contiguous
//   Limits: sm_90 only. fp32 as for the candidate cuda: k_dim and n_dim <= 65535 * 128, outputs at 16-byte boundaries.
//   Workspace: as for the candidate cuda.
//   Expected error: contraction class, as for the candidate cuda, and on Hopper the same bits. sm90/config.cuh explains
//   that, and why the bits of a row do not depend on the other rows.
#include "sm90/select.cuh"

namespace checkop::kernels {
namespace {

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "det_gemm", "forward", CHECKOP_CUDA, 90, 90, matmul_forward_workspace,
     launch_matmul_forward<sm90::Product>},
    {sizeof(checkop_kernel), "cuda-sm90", "det_gemm", "backward", CHECKOP_CUDA, 90, 90, matmul_backward_workspace,
     launch_matmul_backward<sm90::Product>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
