// SPDX-License-Identifier: Apache-2.0
// lm_head / cublas-invariant: cuBLASLt without split k, one algorithm for every number of rows.
//   forward   logits = hidden * weight^T + bias
//   backward  dhidden = grad_logits * weight,  dweight = grad_logits^T * hidden,  dbias = sum of grad_logits over rows
//   hidden, dhidden: [rows, hidden]   weight, dweight: [vocab, hidden]   bias, dbias: [vocab], optional
//   logits, grad_logits: [rows, vocab]        all of one dtype, f32|f16|bf16, row-major, contiguous
//   Limits: tensors at 16-byte boundaries, and sizes for which cuBLASLt has such an algorithm.
//   Workspace: 32 MiB.
//   Expected error: contraction class, one fp32 accumulation per element and one output rounding; fp32 inputs never
//   pass through TF32. dbias: reduction class, chains of 512 + rows/512. A bias is added by beta = 1: in 16 bits cuBLAS
//   rounds some products before it adds, and such elements are out of bound.
//   The bits of a row do not depend on the other rows, as far as cuBLASLt's algorithms add up k in one order.
#include "gemm/cublas_product.cuh"

namespace checkop::kernels {
namespace {

checkop_status launch_forward(const checkop_call* call) { return launch_cublas_lm_head<InvariantCublas>(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch_cublas_lm_head<InvariantCublas>(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cublas-invariant", "lm_head", "forward", CHECKOP_CUDA, 80, 0, cublas_workspace,
     launch_forward},
    {sizeof(checkop_kernel), "cublas-invariant", "lm_head", "backward", CHECKOP_CUDA, 80, 0, cublas_workspace,
     launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
