// SPDX-License-Identifier: Apache-2.0
// matmul / cublas-invariant: cuBLASLt without split k, one algorithm for every number of rows.
//   forward   c = a * b                  a, da: [rows, k_dim]    b, db: [k_dim, n_dim]    c, grad_c: [rows, n_dim]
//   backward  da = grad_c * b^T, db = a^T * grad_c               all of one dtype, f32|f16|bf16, row-major, contiguous
//   Limits: tensors at 16-byte boundaries, and sizes for which cuBLASLt has such an algorithm.
//   Workspace: 32 MiB.
//   Expected error: contraction class, one fp32 accumulation per element and one output rounding; fp32 inputs never
//   pass through TF32. The bits of a row do not depend on the other rows, as far as cuBLASLt's algorithms add up k in
//   one order.
#include "gemm/cublas_product.cuh"

namespace checkop::kernels {
namespace {

checkop_status launch_forward(const checkop_call* call) { return launch_cublas_matmul<InvariantCublas>(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch_cublas_matmul<InvariantCublas>(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cublas-invariant", "matmul", "forward", CHECKOP_CUDA, 80, 0, cublas_workspace,
     launch_forward},
    {sizeof(checkop_kernel), "cublas-invariant", "matmul", "backward", CHECKOP_CUDA, 80, 0, cublas_workspace,
     launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
