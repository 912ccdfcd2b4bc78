// SPDX-License-Identifier: Apache-2.0
// varlen_attention / cuda: attention of every packed sequence by itself, on the tiles of cuda/attention.cuh.
//   inputs: q, k, v, cu_seqlens_q, cu_seqlens_k, sinks     backward: then grad_o, o, lse, grad_lse
//   outputs: o, lse     backward: dq, dk, dv, dsinks
//   q, dq: [tokens_q, q_heads, head_dim]   k, dk: [tokens_k, kv_heads, head_dim]   f32|f16|bf16
//   o, grad_o: [tokens_q, q_heads, v_dim]   v, dv: [tokens_k, kv_heads, v_dim]
//   o and lse of a forward pass may each be absent; the backward pass uses them in place of sums over the keys.
//   cu_seqlens_q, cu_seqlens_k: [seqs + 1] i32, from 0 on, not decreasing, at most the tokens; the second may be
//   absent: then the keys have the bounds of the queries. sinks, dsinks: [q_heads], lse, grad_lse: [tokens_q, q_heads]
//   f32; they may be absent. Rows behind the last sequence become 0, in lse -inf.
//   Limits: contiguous, head_dim and v_dim <= 256, q_heads a multiple of kv_heads.
//   Workspace: forward none; backward tokens_q * q_heads * 12 bytes (max, 1/sum and D of every query).
//   Expected error: that of attention of one sequence. A sequence's bits are those of attention of it alone.
#include "varlen_attention/portable.cuh"

namespace checkop::kernels {
namespace {

using namespace varlen_attention;  // NOLINT: the passes of this operator

size_t backward_workspace(const checkop_call* call) { return call->n_inputs > 0 ? stats_bytes_of(call->inputs[0]) : 0; }

checkop_status launch_forward(const checkop_call* call) {
  AttentionParams p;
  if (auto status = check_varlen(call, false, p)) return status;
  return launch_portable(call, p);
}

checkop_status launch_backward(const checkop_call* call) {
  AttentionParams p;
  if (auto status = check_varlen(call, true, p)) return status;
  return launch_portable_backward(call, p);
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "varlen_attention", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
    {sizeof(checkop_kernel), "cuda", "varlen_attention", "backward", CHECKOP_CUDA, 80, 0, backward_workspace,
     launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
