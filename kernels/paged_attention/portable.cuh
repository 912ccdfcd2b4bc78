// SPDX-License-Identifier: Apache-2.0
// paged_attention on any GPU: the checks of a call, and the forward pass. cuda.cu has the inputs and outputs.
#pragma once

#include "cuda/sequences.cuh"

namespace checkop::kernels::paged_attention {

constexpr int kOfSinks = 6;

/// Keys or values of one head of a sequence.
template <typename T>
struct PageRows {
  T* first;  // of page 0
  const int32_t* __restrict__ pages;
  int64_t page_size, stride;  // elements from one key to the next in a page
  int width;

  __device__ T* operator[](int64_t row) const {
    return first + (pages[row / page_size] * page_size + row % page_size) * stride;
  }
};

/// Keys and values in caches [pages, page_size, kv_heads, head_dim], and v_dim.
template <typename T>
struct PagedKeys {
  T *k, *v;
  const int32_t *table, *lengths;
  int64_t sequences, max_pages, page_size;

  __device__ int64_t count(int64_t s) const { return s < sequences ? lengths[s] : 0; }
  __device__ PageRows<T> rows(T* all, int width, const AttentionParams& p, int64_t s, int64_t kv_head) const {
    return {all + kv_head * width, table + s * max_pages, page_size, p.kv_heads * width, width};
  }
  __device__ PageRows<T> keys(const AttentionParams& p, int64_t s, int64_t head) const {
    return rows(k, p.width, p, s, head);
  }
  __device__ PageRows<T> values(const AttentionParams& p, int64_t s, int64_t head) const {
    return rows(v, p.v_width, p, s, head);
  }
};

inline checkop_status check_paged(const checkop_call* call, AttentionParams& p) {
  CallCheck check(call);
  if (check.counts(7, 2).failed()) return check.status();
  const checkop_tensor &q = call->inputs[0], &k = call->inputs[1], &v = call->inputs[2], &bounds = call->inputs[3],
                       &table = call->inputs[4], &lengths = call->inputs[5], &o = call->outputs[0],
                       &lse = call->outputs[1];
  check.rank_at_least(q, "q", 3)
      .rank_at_least(k, "k_cache", 4)
      .rank_at_least(v, "v_cache", 4)
      .rank_at_least(bounds, "cu_seqlens_q", 1);
  if (check.rank_at_least(table, "block_table", 2).failed()) return check.status();
  if (q.rank != 3) return say(call, CHECKOP_FAILED, "tensor 'q': rank %d, expected 3", q.rank);
  const int64_t sequences = bounds.shape[0] - 1;
  check.float_dtype(q, "q").contiguous(q, "q");
  const std::initializer_list<int64_t> cache{k.shape[0], k.shape[1], k.shape[2], q.shape[2]};
  const std::initializer_list<int64_t> values{k.shape[0], k.shape[1], k.shape[2], v.shape[3]};
  check.dtype(k, "k_cache", q.dtype).shape(k, "k_cache", q, 0, cache).contiguous(k, "k_cache");
  check.dtype(v, "v_cache", q.dtype).shape(v, "v_cache", q, 0, values).contiguous(v, "v_cache");
  check.dtype(bounds, "cu_seqlens_q", CHECKOP_I32).shape(bounds, "cu_seqlens_q", bounds, 1, {});
  check.contiguous(bounds, "cu_seqlens_q");
  check.dtype(table, "block_table", CHECKOP_I32).shape(table, "block_table", q, 0, {sequences, table.shape[1]});
  check.contiguous(table, "block_table");
  check.dtype(lengths, "seq_lens", CHECKOP_I32).shape(lengths, "seq_lens", q, 0, {sequences});
  check.contiguous(lengths, "seq_lens");
  check.dtype(o, "o", q.dtype).shape(o, "o", q, 2, {v.shape[3]}).contiguous(o, "o");
  if (lse.data != nullptr) {
    check.dtype(lse, "lse", CHECKOP_F32).shape(lse, "lse", q, 2, {}).contiguous(lse, "lse");
  }
  const checkop_tensor& sinks = call->inputs[kOfSinks];
  if (sinks.data != nullptr) {
    check.dtype(sinks, "sinks", q.dtype).shape(sinks, "sinks", q, 0, {q.shape[1]}).contiguous(sinks, "sinks");
  }
  if (check.failed()) return check.status();
  return shared_params(call, q, k.shape[2], v.shape[3], p);
}

/// Enqueues the forward pass of a call that has been checked.
inline checkop_status launch_portable(const checkop_call* call, const AttentionParams& p) {
  return launch_sequences_forward(call, p, kOfSinks, "launch paged_attention forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const checkop_tensor* in = call->inputs;
    return PagedKeys<const T>{static_cast<const T*>(in[1].data),
                              static_cast<const T*>(in[2].data),
                              static_cast<const int32_t*>(in[4].data),
                              static_cast<const int32_t*>(in[5].data),
                              in[3].shape[0] - 1,
                              in[4].shape[1],
                              in[1].shape[1]};
  });
}

}  // namespace checkop::kernels::paged_attention
