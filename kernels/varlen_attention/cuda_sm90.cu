// SPDX-License-Identifier: Apache-2.0
// varlen_attention / cuda-sm90: Hopper's wgmma and TMA for fp16 and bf16 with head_dim 64 or 128; forward only.
//   o[i] = sum_j p[i,j] v[j],  p = softmax over the keys of query i's sequence that `causal` keeps of scale q[i] k[j]
//   inputs: q, k, v, cu_seqlens_q, cu_seqlens_k, sinks     outputs: o, lse
//   q, o: [tokens_q, q_heads, head_dim]   k, v: [tokens_k, kv_heads, head_dim]   f32|f16|bf16, contiguous
//   cu_seqlens_q, cu_seqlens_k: [seqs + 1] i32, from 0 on, not decreasing, at most the tokens, read on the device
//   alone; the second may be absent: then the keys have the bounds of the queries
//   lse: [tokens_q, q_heads] f32, may be absent
//   causal keeps key j <= i + (keys - queries) of the sequence. A row without keys, or behind the last sequence, is 0,
//   in lse -inf. What lies in rows of other sequences, or of none, reaches no row; but NaN and infinities in the values
//   of keys that `causal` hides from a row reach it if a row of its tile sees a key of their block of 128.
//   Limits: sm_90 only; no window_left, window_right, softcap or sinks. fp32, other head_dim and a scale that is not
//   positive are computed as in the candidate cuda, with its limits. Otherwise 16-bit arrays that do not begin at a
//   16-byte boundary are CHECKOP_UNSUPPORTED.
//   Slower: sequences of few queries, because a tile of 192 or 128 rows has queries of one sequence alone, of as many
//   heads of a group as have room.
//   Workspace: 256 bytes, and 32 for each of tokens_q / 4 + seqs + 1 tiles.
//   Expected error: that of attention's cuda-sm90 of one sequence, p rounded to 16 bits: recipe p_in_16_bit.
// A query's bits are those that attention's cuda-sm90 gives it in its sequence alone: blocks of 128 keys begin at the
// sequence's first key, wherever that lies; see attention/sm90.cuh. They depend neither on the other sequences nor on
// the number of multiprocessors.
#include "attention/sm90_limits.cuh"
#include "attention/sm90_packed.cuh"
#include "varlen_attention/portable.cuh"

namespace checkop::kernels {
namespace {

namespace hopper = attention::hopper;
using namespace varlen_attention;  // NOLINT: the checks of this operator

/// The call, with the outputs of the forward pass.
template <typename T>
hopper::PackedCall<T> packed_call(const checkop_call* call, const AttentionParams& shape) {
  const int64_t keys = call->inputs[1].shape[0];
  auto packed = hopper::packed_call<T>(call, shape, keys, keys);
  packed.sequences.k_bounds = key_bounds(call);
  return packed;
}

checkop_status launch_forward(const checkop_call* call) {
  AttentionParams shape;
  if (auto status = check_varlen(call, false, shape)) return status;
  if (auto status = hopper::decline_options(call, shape, call->inputs[kOfSinks])) return status;
  const auto portable = [&] { return launch_portable(call, shape); };
  const auto run = [&](auto tag, auto head_dim) {
    using Config = hopper::ManyQueries<decltype(head_dim)::value, hopper::Source::rows>;
    const auto packed = packed_call<typename decltype(tag)::type>(call, shape);
    if (!hopper::has_packed(packed)) return portable();
    CallCheck check(call);
    if (check.workspace(hopper::packed_workspace(call)).failed()) return check.status();
    const auto error = hopper::launch_packed<Config>(packed);
    if (auto status = cuda_status(call, error, "launch varlen_attention forward")) return status;
    return say(call, CHECKOP_OK, "wgmma, tile %dx128", Config::kRows);
  };
  return hopper::with_shape(call, shape, run, portable);
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "varlen_attention", "forward", CHECKOP_CUDA, 90, 90, hopper::packed_workspace,
     launch_forward, "p_in_16_bit"},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
