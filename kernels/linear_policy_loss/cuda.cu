// SPDX-License-Identifier: Apache-2.0
// linear_policy_loss / cuda: logits in fp32 blocks of at most 1024 rows x 16384 columns, portable CUDA, fp32
// throughout.
//   x = hidden * lm_head_weight^T + bias,  t = target_ids[i],  p = softmax(z[i,:])
//   z = softcap tanhf(x / softcap) / temperature, or x / temperature if softcap is 0
//   logps[i] = z[i,t] - lse(z[i,:]),  entropy[i] = ln s + M,  s = sum_v exp(-b_v),  M = sum_v p_v b_v,
//   b_v = max z[i,:] - z[i,v];  loss: of these two as in policy_loss / native
//   backward  dx[i,v] = (c ((v == t) - p_v) + e p_v (b_v - M)) dz/dx,  c, e = grad_loss * dloss by logps[i], by
//             entropy[i];  dhidden = dx * lm_head_weight,  dlm_head_weight = dx^T * hidden,  dbias[v] = sum_i dx[i,v]
//   hidden, dhidden: [batch, seq, hidden]   lm_head_weight, dlm_head_weight: [vocab, hidden]   bias, dbias: [vocab],
//   optional; all of one dtype, f32|f16|bf16, contiguous   target_ids: [batch, seq] i64   mask: [batch, seq] u8
//   old_logps, advantages, logps, entropy, ref_logps, rollout_logps (optional): [batch, seq] f32
//   denom (optional), loss, grad_loss: one f32 element
//   Where the mask is 0 nothing is read, results are 0, and the token adds nothing to any gradient.
//   Limits: tokens < 2^31, hidden <= 65535 * 128. Active ids outside [0, vocab) are CHECKOP_FAILED.
//   Workspace: that of linear_logp / cuda with 12 bytes in place of 8, and 20 bytes per token and 12 per sequence.
//   Expected error: sums of n terms have chains of 512 + n/512 fp32 additions, those over tokens of n/256 or n/1024; x
//   and dx are never rounded below fp32.
#include "linear_policy_loss/portable.cuh"

namespace checkop::kernels {
namespace {

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "linear_policy_loss", "forward", CHECKOP_CUDA, 80, 0,
     linear_policy_loss::workspace_bytes<false>, linear_policy_loss::launch<false>},
    {sizeof(checkop_kernel), "cuda", "linear_policy_loss", "backward", CHECKOP_CUDA, 80, 0,
     linear_policy_loss::workspace_bytes<true>, linear_policy_loss::launch<true>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
