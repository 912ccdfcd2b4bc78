// SPDX-License-Identifier: Apache-2.0
// lm_head / cuda-sm90: Hopper's wgmma and TMA for fp16 and bf16, fp32 on CUDA cores.
//   forward   logits = hidden * weight^T + bias
//   backward  dhidden = grad_logits * weight,  dweight = grad_logits^T * hidden,  dbias = sum of grad_logits over rows
//   hidden, dhidden: [rows, hidden]   weight, dweight: [vocab, hidden]   bias, dbias: [vocab], optional
//   logits, grad_logits: [rows, vocab]        all of one dtype, f32|f16|bf16, row-major, contiguous
//   Limits: sm_90 only. fp32 as for the candidate cuda: hidden and vocab <= 65535 * 128, outputs at 16-byte boundaries.
//   Workspace: as for the candidate cuda.
//   Expected error: as for the candidate cuda, and on Hopper the same bits. sm90/config.cuh explains that, and why the
//   bits of a row do not depend on the other rows.
#include "lm_head/call.cuh"
#include "sm90/select.cuh"

namespace checkop::kernels {
namespace {

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "lm_head", "forward", CHECKOP_CUDA, 90, 90, lm_head::forward_workspace,
     lm_head::launch_forward<sm90::Product>},
    {sizeof(checkop_kernel), "cuda-sm90", "lm_head", "backward", CHECKOP_CUDA, 90, 90, lm_head::backward_workspace,
     lm_head::launch_backward<sm90::Product>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
