// SPDX-License-Identifier: Apache-2.0
// lm_head / cublas: cublasGemmEx with its default heuristics, sums in fp32.
//   forward   logits = hidden * weight^T + bias
//   backward  dhidden = grad_logits * weight,  dweight = grad_logits^T * hidden,  dbias = sum of grad_logits over rows
//   hidden, dhidden: [rows, hidden]   weight, dweight: [vocab, hidden]   bias, dbias: [vocab], optional
//   logits, grad_logits: [rows, vocab]        all of one dtype, f32|f16|bf16, row-major, contiguous
//   Limits: extents whose product with the element size cuBLAS can address (64-bit).
//   Workspace: 32 MiB.
//   Expected error: contraction class, one fp32 accumulation per element and one output rounding; fp32 inputs never
//   pass through TF32. dbias: reduction class, chains of 512 + rows/512. A bias is added by beta = 1: in 16 bits cuBLAS
//   rounds some products before it adds, and such elements are out of bound.
//   For fp16 and bf16 the partial sums of a split k stay in fp32. Bits may depend on the number of rows: the heuristics
//   choose the kernel by shape.
#include "gemm/cublas_product.cuh"

namespace checkop::kernels {
namespace {

checkop_status launch_forward(const checkop_call* call) { return launch_cublas_lm_head<DefaultCublas>(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch_cublas_lm_head<DefaultCublas>(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cublas", "lm_head", "forward", CHECKOP_CUDA, 80, 0, cublas_workspace, launch_forward},
    {sizeof(checkop_kernel), "cublas", "lm_head", "backward", CHECKOP_CUDA, 80, 0, cublas_workspace, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
