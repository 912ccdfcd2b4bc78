// SPDX-License-Identifier: Apache-2.0
// paged_attention / cuda: attention of every packed sequence over the keys in its pages, on the tiles of
// cuda/attention.cuh; forward only.
//   inputs: q, k_cache, v_cache, cu_seqlens_q, block_table, seq_lens, sinks     outputs: o, lse
//   q: [tokens_q, q_heads, head_dim]   k_cache: [pages, page_size, kv_heads, head_dim]   f32|f16|bf16
//   o: [tokens_q, q_heads, v_dim]   v_cache: [pages, page_size, kv_heads, v_dim]
//   cu_seqlens_q: [seqs + 1] i32, from 0 on, not decreasing, at most the tokens   block_table: [seqs, max_pages] i32
//   seq_lens: [seqs] i32, at most max_pages * page_size
//   lse: [tokens_q, q_heads] f32, and sinks: [q_heads] in the dtype of q; both may be absent
//   Table entries behind the pages with keys are not read. Rows behind the last sequence become 0, in lse -inf.
//   Limits: contiguous, head_dim and v_dim <= 256, q_heads a multiple of kv_heads. Workspace: none.
//   Expected error: that of attention of one sequence. A query's bits are those of attention over its keys: they depend
//   neither on the pages that these lie in, nor on the queries of the same launch.
#include "paged_attention/portable.cuh"

namespace checkop::kernels {
namespace {

using namespace paged_attention;  // NOLINT: the passes of this operator

checkop_status launch_forward(const checkop_call* call) {
  AttentionParams p;
  if (auto status = check_paged(call, p)) return status;
  return launch_portable(call, p);
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "paged_attention", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
