// SPDX-License-Identifier: Apache-2.0
// varlen_attention / cuda-sm90: Hopper's wgmma and TMA for fp16 and bf16 with head_dim up to 128.
//   forward   o[i] = sum_j p[i,j] v[j],  p = softmax over the keys of query i's sequence that `causal` keeps of scale
//             q[i] k[j]
//   backward  dq = scale ds k,  dk = scale ds^T q,  dv = p^T do,  ds = p * (do v^T - D),  D = rowsum(do * o)
//   inputs: q, k, v, cu_seqlens_q, cu_seqlens_k, sinks     backward: then grad_o, o, lse, grad_lse
//   outputs: o, lse     backward: dq, dk, dv, dsinks
//   q, o, grad_o, dq: [tokens_q, q_heads, head_dim]   k, v, dk, dv: [tokens_k, kv_heads, head_dim]
//   f32|f16|bf16, contiguous
//   cu_seqlens_q, cu_seqlens_k: [seqs + 1] i32, from 0 on, not decreasing, at most the tokens, read on the device
//   alone; the second may be absent: then the keys have the bounds of the queries
//   lse: [tokens_q, q_heads] f32, may be absent. If the backward pass is given o and lse of a forward pass, it computes
//   neither of them again.
//   causal keeps key j <= i + (keys - queries) of the sequence. A row without keys, or behind the last sequence, is 0,
//   in lse -inf. What lies in rows of other sequences, or of none, reaches no row; but NaN and infinities in the values
//   of keys that `causal` hides from a row reach it if a row of its tile sees a key of their block of 128; in the
//   backward pass so do those in k, and those in the q, grad_o, o and lse of queries that do not see a key.
//   A head_dim below 64 takes the time of 64, and one between 64 and 128 that of 128.
//   Limits: sm_90 only; no window_left, window_right, softcap, sinks or gradient of lse. fp32, a head_dim above 128 or
//   not a multiple of 8, a v_dim that is not head_dim, and a scale that is not positive are computed as in the
//   candidate cuda, with its limits. Otherwise 16-bit arrays that do not begin at a 16-byte boundary are
//   CHECKOP_UNSUPPORTED. In fp16 ds loses bits below 2^-14, and overflows beyond 65504: upstream gradients should have
//   a size of about 1.
//   Slower: sequences of few queries, because a tile of 192 or 128 rows holds queries of one sequence only: of as many
//   heads of a group as have room, in the backward pass of one head.
//   Workspace: forward 256 bytes, and 32 for each of tokens_q / 4 + seqs + 1 tiles. Backward: 8 bytes per query of a
//   head, each sequence rounded up to 128 queries; unless o and lse are given, also o, 4 bytes per query of a head and
//   the workspace of the forward pass; and ds in 16 bits: as much as a key head would need if all tokens were one
//   sequence, or as many key heads as fit 1 GiB.
//   Expected error: that of attention's cuda-sm90 of one sequence: p, ds and the o of D rounded to 16 bits: recipes
//   p_in_16_bit, ds_in_16_bit and o_in_16_bit.
// A query's bits are those that attention's cuda-sm90 gives it in its sequence alone: blocks of 128 keys begin at the
// sequence's first key, wherever that lies; see attention/sm90.cuh. So are those of the gradients, see
// attention/sm90_backward.cuh. They depend neither on the other sequences nor on the number of SMs.
#include <algorithm>

#include "attention/sm90_limits.cuh"
#include "attention/sm90_packed_backward.cuh"
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

/// Workspace if the Hopper kernels might run. Called before the shapes have been checked.
size_t backward_workspace(const checkop_call* call) {
  const checkop_tensor* in = call->inputs;
  if (call->n_inputs != kOfGradLse + 1) return 0;
  const size_t portable = stats_bytes_of(in[0]);
  if (call->n_attrs != 5 || in[0].rank != 3 || in[1].rank != 3 || in[3].rank != 1) return portable;
  AttentionParams shape{};
  shape.q_heads = in[0].shape[1], shape.kv_heads = in[1].shape[1], shape.width = static_cast<int>(in[0].shape[2]);
  shape.causal = call->attrs[0].value != 0;
  const bool is_empty = in[0].shape[0] == 0 || in[1].shape[0] == 0 || in[3].shape[0] == 0 ||
                        shape.q_heads < shape.kv_heads || shape.kv_heads == 0;
  if (is_empty || in[0].dtype == CHECKOP_F32 || !hopper::has_width(shape.width)) return portable;
  const hopper::PackedBackwardLayout layout(shape, in[0].shape[0], in[1].shape[0], in[3].shape[0] - 1,
                                            in[kOfO].rank > 0, in[kOfLse].rank > 0);
  return layout.fits ? std::max(portable, layout.bytes) : portable;
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

checkop_status launch_backward(const checkop_call* call) {
  AttentionParams shape;
  if (auto status = check_varlen(call, true, shape)) return status;
  const checkop_tensor* in = call->inputs;
  if (auto status = hopper::decline_options(call, shape, in[kOfSinks])) return status;
  if (in[kOfGradLse].data != nullptr) return say(call, CHECKOP_UNSUPPORTED, "grad_lse is not supported");
  const auto portable = [&] { return launch_portable_backward(call, shape); };
  const auto run = [&](auto tag, auto head_dim) {
    using T = typename decltype(tag)::type;
    const auto output = [&](int i) { return static_cast<T*>(call->outputs[i].data); };
    hopper::PackedBackwardCall<T> backward{packed_call<T>(call, shape)};
    backward.grad = static_cast<const T*>(in[kOfGrad].data), backward.saved_o = static_cast<const T*>(in[kOfO].data);
    backward.saved_lse = static_cast<const float*>(in[kOfLse].data);
    backward.dq = output(0), backward.dk = output(1), backward.dv = output(2);
    backward.workspace = static_cast<std::byte*>(call->workspace);
    if (!hopper::has_packed_backward(backward)) return portable();
    CallCheck check(call);
    if (check.workspace(backward_workspace(call)).failed()) return check.status();
    constexpr int kHeadDim = decltype(head_dim)::value;
    const auto error = hopper::launch_packed_backward<kHeadDim>(backward);
    if (auto status = cuda_status(call, error, "launch varlen_attention backward")) return status;
    return say(call, CHECKOP_OK, "wgmma, 128 keys by %d queries", hopper::GradientConfig<kHeadDim>::kQueries);
  };
  return hopper::with_shape(call, shape, run, portable);
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "varlen_attention", "forward", CHECKOP_CUDA, 90, 90, hopper::packed_workspace,
     launch_forward, "p_in_16_bit"},
    {sizeof(checkop_kernel), "cuda-sm90", "varlen_attention", "backward", CHECKOP_CUDA, 90, 90, backward_workspace,
     launch_backward, "p_in_16_bit ds_in_16_bit o_in_16_bit"},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
