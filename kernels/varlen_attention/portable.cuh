// SPDX-License-Identifier: Apache-2.0
// varlen_attention on any GPU: the checks of a call, and the forward pass. cuda.cu has the inputs and outputs.
#pragma once

#include "cuda/sequences.cuh"

namespace checkop::kernels::varlen_attention {

constexpr int kOfSinks = 5;

inline size_t stats_bytes_of(const checkop_tensor& q) {
  return q.rank == 3 ? static_cast<size_t>(q.shape[0] * q.shape[1]) * sizeof(QueryStats) : 0;
}

inline checkop_status check_varlen(const checkop_call* call, bool backward, AttentionParams& p) {
  CallCheck check(call);
  if (check.counts(backward ? 8 : 6, backward ? 4 : 2).failed()) return check.status();
  const checkop_tensor &q = call->inputs[0], &k = call->inputs[1], &v = call->inputs[2], &q_bounds = call->inputs[3],
                       &k_bounds = call->inputs[4];
  if (check.rank_at_least(q, "q", 3).rank_at_least(k, "k", 3).rank_at_least(q_bounds, "cu_seqlens_q", 1).failed())
    return check.status();
  if (q.rank != 3) return say(call, CHECKOP_FAILED, "tensor 'q': rank %d, expected 3", q.rank);
  const auto like = [&](const checkop_tensor& t, const char* name, const checkop_tensor& other, int64_t heads) {
    check.dtype(t, name, q.dtype).shape(t, name, other, 1, {heads, q.shape[2]}).contiguous(t, name);
  };
  check.float_dtype(q, "q").contiguous(q, "q");
  like(k, "k", k, k.shape[1]), like(v, "v", k, k.shape[1]);
  check.dtype(q_bounds, "cu_seqlens_q", CHECKOP_I32).shape(q_bounds, "cu_seqlens_q", q_bounds, 1, {});
  check.contiguous(q_bounds, "cu_seqlens_q");
  if (k_bounds.data != nullptr) {
    check.dtype(k_bounds, "cu_seqlens_k", CHECKOP_I32).shape(k_bounds, "cu_seqlens_k", q_bounds, 1, {});
    check.contiguous(k_bounds, "cu_seqlens_k");
  }
  const auto check_rows = [&](const checkop_tensor& t, const char* name) {
    if (t.data != nullptr) check.dtype(t, name, CHECKOP_F32).shape(t, name, q, 2, {}).contiguous(t, name);
  };
  const auto check_of_heads = [&](const checkop_tensor& t, const char* name) {
    if (t.data != nullptr) check.dtype(t, name, q.dtype).shape(t, name, q, 0, {q.shape[1]}).contiguous(t, name);
  };
  check_of_heads(call->inputs[kOfSinks], "sinks");
  like(call->outputs[0], backward ? "dq" : "o", q, q.shape[1]);
  if (!backward) check_rows(call->outputs[1], "lse");
  if (backward) {
    like(call->inputs[6], "grad_o", q, q.shape[1]);
    check_rows(call->inputs[7], "grad_lse"), check_of_heads(call->outputs[3], "dsinks");
    like(call->outputs[1], "dk", k, k.shape[1]), like(call->outputs[2], "dv", k, k.shape[1]);
    check.workspace(stats_bytes_of(q));
  }
  if (check.failed()) return check.status();
  return shared_params(call, q, k.shape[1], p);
}

/// The bounds of the keys.
inline const int32_t* key_bounds(const checkop_call* call) {
  const checkop_tensor* in = call->inputs;
  return static_cast<const int32_t*>(in[4].data == nullptr ? in[3].data : in[4].data);
}

/// The keys and values of a call that has been checked.
template <typename T>
PackedKeys<const T> packed_keys(const checkop_call* call) {
  const checkop_tensor* in = call->inputs;
  return {static_cast<const T*>(in[1].data), static_cast<const T*>(in[2].data), key_bounds(call), in[3].shape[0] - 1};
}

/// Enqueues the forward pass of a call that has been checked.
inline checkop_status launch_portable(const checkop_call* call, const AttentionParams& p) {
  return launch_sequences_forward(call, p, kOfSinks, "launch varlen_attention forward",
                                  [&](auto tag) { return packed_keys<typename decltype(tag)::type>(call); });
}

}  // namespace checkop::kernels::varlen_attention
