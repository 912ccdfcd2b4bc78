// SPDX-License-Identifier: Apache-2.0
// linear_logp / cuda: logits in fp32 blocks of at most 1024 rows x 16384 columns, portable CUDA, fp32 throughout.
//   x = hidden * lm_head_weight^T + bias,  t = target_ids[row],  g = grad_logp[row],  p = softmax(z[row,:])
//   z = softcap tanhf(x / softcap) / temperature, or x / temperature if softcap is 0
//   forward   logp[row] = z[row,t] - lse(z[row,:])
//   backward  dx[row,c] = g * ((c == t) - p[c]) * dz/dx;  dhidden = dx * lm_head_weight,
//             dlm_head_weight = dx^T * hidden,  dbias[c] = sum_row dx[row,c]
//   hidden, dhidden: [rows, hidden]   lm_head_weight, dlm_head_weight: [vocab, hidden]   bias, dbias: [vocab],
//   optional; all of one dtype, f32|f16|bf16, contiguous      target_ids: [rows] i64      logp, grad_logp: [rows] f32
//   If target_ids[row] = ignore_index: logp is 0 and the row adds nothing to any gradient, whatever hidden[row] holds.
//   dlm_head_weight_carry: [vocab, hidden], dbias_carry: [vocab], f32, optional: with them dlm_head_weight and dbias
//   are f32, one chain of multiply-adds each that begins with the carry; their bits don't depend on how
//   rows are cut into calls.
//   Limits: hidden <= 65535 * 128. Other ids outside [0, vocab) are CHECKOP_FAILED.
//   Workspace: a block of logits, up to 64 MiB, and 8 bytes per 256 columns of vocabulary and row of a block. Backward
//   also 8 bytes per row, 4 + 2 (fp32: 4 + 4) per row and hidden element, and the fp32 sums of a block of
//   dlm_head_weight: up to 256 MiB, or 512 rows of it where these have more.
//   Expected error: sums of n terms have chains of 512 + n/512 fp32 additions, with a carry chains of n; x and dx are
//   never rounded below fp32.
#include "linear_logp/portable.cuh"

namespace checkop::kernels {
namespace {

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "linear_logp", "forward", CHECKOP_CUDA, 80, 0, linear_logp::forward_workspace,
     linear_logp::launch_forward},
    {sizeof(checkop_kernel), "cuda", "linear_logp", "backward", CHECKOP_CUDA, 80, 0, linear_logp::backward_workspace,
     linear_logp::launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
