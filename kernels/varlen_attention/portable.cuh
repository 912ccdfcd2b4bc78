// SPDX-License-Identifier: Apache-2.0
// varlen_attention on any GPU: the checks of a call, and both passes. cuda.cu has the inputs and outputs.
#pragma once

#include "cuda/sequences.cuh"

namespace checkop::kernels::varlen_attention {

// Indices of the inputs behind the bounds; only the backward pass has those from grad_o on.
constexpr int kOfSinks = 5, kOfGrad = 6, kOfO = 7, kOfLse = 8, kOfGradLse = 9;

inline size_t stats_bytes_of(const checkop_tensor& q) {
  return q.rank == 3 ? static_cast<size_t>(q.shape[0] * q.shape[1]) * sizeof(QueryStats) : 0;
}

inline checkop_status check_varlen(const checkop_call* call, bool backward, AttentionParams& p) {
  CallCheck check(call);
  if (check.counts(backward ? kOfGradLse + 1 : kOfGrad, backward ? 4 : 2).failed()) return check.status();
  const checkop_tensor &q = call->inputs[0], &k = call->inputs[1], &v = call->inputs[2], &q_bounds = call->inputs[3],
                       &k_bounds = call->inputs[4];
  if (check.rank_at_least(q, "q", 3).rank_at_least(k, "k", 3).rank_at_least(q_bounds, "cu_seqlens_q", 1).failed())
    return check.status();
  if (q.rank != 3) return say(call, CHECKOP_FAILED, "tensor 'q': rank %d, expected 3", q.rank);
  if (check.rank_at_least(v, "v", 3).failed()) return check.status();
  const int64_t head_dim = q.shape[2], v_dim = v.shape[2];
  const auto like = [&](const checkop_tensor& t, const char* name, const checkop_tensor& other, int64_t heads,
                        int64_t width) {
    check.dtype(t, name, q.dtype).shape(t, name, other, 1, {heads, width}).contiguous(t, name);
  };
  check.float_dtype(q, "q").contiguous(q, "q");
  like(k, "k", k, k.shape[1], head_dim), like(v, "v", k, k.shape[1], v_dim);
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
  like(call->outputs[0], backward ? "dq" : "o", q, q.shape[1], backward ? head_dim : v_dim);
  if (!backward) check_rows(call->outputs[1], "lse");
  if (backward) {
    like(call->inputs[kOfGrad], "grad_o", q, q.shape[1], v_dim);
    if (call->inputs[kOfO].data != nullptr) like(call->inputs[kOfO], "o", q, q.shape[1], v_dim);
    check_rows(call->inputs[kOfLse], "lse"), check_rows(call->inputs[kOfGradLse], "grad_lse");
    check_of_heads(call->outputs[3], "dsinks");
    like(call->outputs[1], "dk", k, k.shape[1], head_dim), like(call->outputs[2], "dv", k, k.shape[1], v_dim);
    check.workspace(stats_bytes_of(q));
  }
  if (check.failed()) return check.status();
  return shared_params(call, q, k.shape[1], v_dim, p);
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

/// dq of a tile of queries, and their max, 1/sum and D for the keys' gradients, as attention_dq computes them.
template <typename T, int kChunks>
__global__ __launch_bounds__(kThreads) void varlen_dq(AttentionParams p, const int32_t* __restrict__ q_bounds,
                                                      int64_t sequences, int64_t tokens, const T* __restrict__ q,
                                                      PackedKeys<const T> source, const T* __restrict__ sinks,
                                                      const T* __restrict__ grad, Saved<T> saved,
                                                      QueryStats* __restrict__ stats, T* __restrict__ dq) {
  extern __shared__ float4 shared[];
  Tiles<kChunks> tiles(shared);
  const SequenceTile own = tile_of(q_bounds, sequences, tokens, blockIdx.x);
  if (own.first >= own.n) return;
  p.q_seq = own.n, p.kv_seq = source.count(own.sequence);
  for (int64_t head = blockIdx.y; head < p.q_heads; head += gridDim.y) {
    const int64_t kv_head = head / p.group();
    write_dq<kChunks>(
        tiles, p, own.first, [&](auto* of) { return query_rows(of, p, own.begin, head); },
        [&](auto* of) { return output_rows(of, p, own.begin, head); }, source.keys(p, own.sequence, kv_head),
        source.values(p, own.sequence, kv_head), nullptr, start_of(own.sequence < sequences ? sinks : nullptr, head), q,
        grad, saved, [&](int64_t row) { return (own.begin + row) * p.q_heads + head; },
        stats + head * tokens + own.begin, dq);
  }
}

/// dk and dv of a tile of keys of one key head, as attention_dkdv computes them. Keys of no sequence get 0.
template <typename T, int kChunks>
__global__ __launch_bounds__(kThreads) void varlen_dkdv(AttentionParams p, const int32_t* __restrict__ q_bounds,
                                                        int64_t sequences, int64_t tokens_q, int64_t tokens_k,
                                                        const T* __restrict__ q, PackedKeys<const T> source,
                                                        const T* __restrict__ grad,
                                                        const QueryStats* __restrict__ stats, T* __restrict__ dk,
                                                        T* __restrict__ dv) {
  extern __shared__ float4 shared[];
  Tiles<kChunks> tiles(shared);
  float *keys = tiles.tile(0), *values = tiles.tile(1), *qs = tiles.tile(2), *grads = tiles.tile(3);
  float *weights = tiles.square(4, 0), *ds = tiles.square(4, 1);
  const SequenceTile own = tile_of(source.bounds, sequences, tokens_k, blockIdx.x);
  if (own.first >= own.n) return;
  const bool is_rest = own.sequence == sequences;
  const int64_t q_begin = is_rest ? 0 : q_bounds[own.sequence];
  p.q_seq = is_rest ? 0 : q_bounds[own.sequence + 1] - q_begin, p.kv_seq = own.n;
  const int64_t stride = p.kv_heads * p.width, v_stride = p.kv_heads * p.v_width;
  for (int64_t kv_head = blockIdx.y; kv_head < p.kv_heads; kv_head += gridDim.y) {
    const int64_t key = own.first + threadIdx.x / kLanes, at_head = own.begin * stride + kv_head * p.width,
                  v_at_head = own.begin * v_stride + kv_head * p.v_width;
    float dk_sum[kChunks][4] = {}, dv_sum[kChunks][4] = {};
    __syncthreads();
    load_tile<kChunks>(HeadRows<const T>{source.k + at_head, stride, p.width}, own.first, p.kv_seq, keys);
    load_tile<kChunks>(HeadRows<const T>{source.v + v_at_head, v_stride, p.v_width}, own.first, p.kv_seq, values);
    for (int64_t head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head) {
      for (int64_t query = p.query_begin(own.first); query < p.query_end(own.first + kTile - 1); query += kTile) {
        float score[kPerThread], dp[kPerThread];
        __syncthreads();
        load_tile<kChunks>(query_rows(q, p, q_begin, head), query, p.q_seq, qs);
        load_tile<kChunks>(output_rows(grad, p, q_begin, head), query, p.q_seq, grads);
        __syncthreads();
        products<kChunks>(keys, qs, score);
        products<kChunks>(values, grads, dp);
#pragma unroll
        for (int c = 0; c < kPerThread; ++c) {
          const int64_t row = query + column(c);
          const int at = threadIdx.x / kLanes * kSquareStride + column(c);
          float probability = kMasked, derivative = 0.0f;
          if (row < p.q_seq && p.keeps(nullptr, row, key)) {
            const QueryStats s = stats[head * tokens_q + q_begin + row];
            const float scaled = score[c] * p.scale;
            probability = expf(p.cap.apply(scaled) - s.shift) * s.reciprocal;
            derivative = p.scale * (probability * (dp[c] - s.mean) * p.cap.slope(scaled));
          }
          weights[at] = probability;
          ds[at] = derivative;
        }
        __syncthreads();
        add_rows<kChunks>(weights, weights, grads, dv_sum);
        add_rows<kChunks>(ds, weights, qs, dk_sum);
      }
    }
    store_row<kChunks>(dk_sum, key, p.kv_seq, HeadRows<T>{dk + at_head, stride, p.width});
    store_row<kChunks>(dv_sum, key, p.kv_seq, HeadRows<T>{dv + v_at_head, v_stride, p.v_width});
  }
}

/// Enqueues the backward pass of a call that has been checked.
inline checkop_status launch_portable_backward(const checkop_call* call, const AttentionParams& p) {
  return with_width(call, p.most_width(), [&](auto tag, auto width) {
    using T = typename decltype(tag)::type;
    constexpr int kChunks = decltype(width)::value;
    auto* stream = static_cast<cudaStream_t>(call->stream);
    const checkop_tensor* in = call->inputs;
    const auto* q_bounds = static_cast<const int32_t*>(in[3].data);
    const int64_t sequences = in[3].shape[0] - 1, tokens_q = in[0].shape[0], tokens_k = in[1].shape[0];
    const auto* q = static_cast<const T*>(in[0].data);
    const auto* sinks = static_cast<const T*>(in[kOfSinks].data);
    const PackedKeys<const T> keys = packed_keys<T>(call);
    const auto floats = [&](int i) { return static_cast<const float*>(in[i].data); };
    const auto output = [&](int i) { return static_cast<T*>(call->outputs[i].data); };
    const dim3 of_queries = sequences_grid(tokens_q, sequences, p.q_heads);
    constexpr int kBytes = Tiles<kChunks>::bytes(4, 2);
    const auto* grad = static_cast<const T*>(in[kOfGrad].data);
    const Saved<T> saved{static_cast<const T*>(in[kOfO].data), floats(kOfLse), floats(kOfGradLse)};
    auto* stats = static_cast<QueryStats*>(call->workspace);
    if (auto s = allow_shared(call, varlen_dq<T, kChunks>, kBytes)) return s;
    if (auto s = allow_shared(call, varlen_dkdv<T, kChunks>, kBytes)) return s;
    varlen_dq<T, kChunks><<<of_queries, kThreads, kBytes, stream>>>(p, q_bounds, sequences, tokens_q, q, keys, sinks,
                                                                    grad, saved, stats, output(0));
    if (auto s = launch_status(call, "launch varlen_attention dq")) return s;
    const dim3 of_keys = sequences_grid(tokens_k, sequences, p.kv_heads);
    varlen_dkdv<T, kChunks><<<of_keys, kThreads, kBytes, stream>>>(p, q_bounds, sequences, tokens_q, tokens_k, q, keys,
                                                                   grad, stats, output(1), output(2));
    auto status = launch_status(call, "launch varlen_attention dk and dv");
    if (status != CHECKOP_OK || sinks == nullptr) return status;
    attention_dsinks<T><<<static_cast<unsigned>(p.q_heads), kThreads, 0, stream>>>(
        /*batch=*/1, tokens_q, q_bounds + sequences, sinks, stats, output(3));
    return launch_status(call, "launch varlen_attention dsinks");
  });
}

}  // namespace checkop::kernels::varlen_attention
