// SPDX-License-Identifier: Apache-2.0
// varlen_attention / cuda: attention of every packed sequence by itself, on the tiles of cuda/attention.cuh.
//   inputs: q, k, v, cu_seqlens_q, cu_seqlens_k, sinks     backward: then grad_o, grad_lse
//   outputs: o, lse     backward: dq, dk, dv, dsinks
//   q, o, grad_o, dq: [tokens_q, q_heads, head_dim]   k, v, dk, dv: [tokens_k, kv_heads, head_dim]   f32|f16|bf16
//   cu_seqlens_q, cu_seqlens_k: [seqs + 1] i32, from 0 on, not decreasing, at most the tokens; the second may be
//   absent: then the keys have the bounds of the queries. sinks, dsinks: [q_heads], lse, grad_lse: [tokens_q, q_heads]
//   f32; they may be absent. Rows behind the last sequence become 0, in lse -inf. Limits: contiguous,
//   head_dim <= 256, q_heads a multiple of kv_heads. Workspace: forward none; backward tokens_q * q_heads * 12 bytes
//   (max, 1/sum and D of every query). Expected error: that of attention of one sequence. A sequence's bits are those
//   of attention of it alone.
#include "varlen_attention/portable.cuh"

namespace checkop::kernels {
namespace {

using namespace varlen_attention;  // NOLINT: the passes of this operator

/// dq of a tile of queries, and their max, 1/sum and D for the keys' gradients, as attention_dq computes them.
template <typename T, int kChunks>
__global__ __launch_bounds__(kThreads) void varlen_dq(AttentionParams p, const int32_t* __restrict__ q_bounds,
                                                      int64_t sequences, int64_t tokens, const T* __restrict__ q,
                                                      PackedKeys<const T> source, const T* __restrict__ sinks,
                                                      const T* __restrict__ grad, const float* __restrict__ grad_lse,
                                                      QueryStats* __restrict__ stats, T* __restrict__ dq) {
  extern __shared__ float4 shared[];
  Tiles<kChunks> tiles(shared);
  float *qs = tiles.tile(0), *keys = tiles.tile(1), *values = tiles.tile(2), *grads = tiles.tile(3);
  float *weights = tiles.square(4, 0), *flags = tiles.square(4, 1);
  const SequenceTile own = tile_of(q_bounds, sequences, tokens, blockIdx.x);
  if (own.first >= own.n) return;
  p.q_seq = own.n, p.kv_seq = source.count(own.sequence);
  for (int64_t head = blockIdx.y; head < p.q_heads; head += gridDim.y) {
    const int64_t row = own.first + threadIdx.x / kLanes, kv_head = head / p.group();
    const auto of_keys = source.keys(p, own.sequence, kv_head), of_values = source.values(p, own.sequence, kv_head);
    const int64_t end = p.key_end(own.first + kTile - 1);
    OnlineSoftmax online = start_of(own.sequence < sequences ? sinks : nullptr, head);
    float mean = 0.0f;  // D times sum at first, then D
    float sum[kChunks][4] = {};
    __syncthreads();
    load_tile<kChunks>(query_rows(q, p, own.begin, head), own.first, p.q_seq, qs);
    load_tile<kChunks>(query_rows(grad, p, own.begin, head), own.first, p.q_seq, grads);
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t key = p.key_begin(own.first); key < end; key += kTile) {
        float score[kPerThread], dp[kPerThread];
        bool kept[kPerThread];
        __syncthreads();
        load_tile<kChunks>(of_keys, key, p.kv_seq, keys);
        load_tile<kChunks>(of_values, key, p.kv_seq, values);
        __syncthreads();
        products<kChunks>(qs, keys, score);
        products<kChunks>(grads, values, dp);
#pragma unroll
        for (int c = 0; c < kPerThread; ++c) {
          score[c] *= p.scale;
          kept[c] = p.keeps(nullptr, row, key + column(c));
        }
        if (pass == 0) {
#pragma unroll
          for (int c = 0; c < kPerThread; ++c) score[c] = p.cap.apply(score[c]);
          const float before = online.add(score, kept);
          float added = 0.0f;
#pragma unroll
          for (int c = 0; c < kPerThread; ++c) {
            if (kept[c]) added += score[c] * dp[c];
          }
          mean = mean * before + row_sum(added);
          continue;
        }
#pragma unroll
        for (int c = 0; c < kPerThread; ++c) {
          const float probability = expf(p.cap.apply(score[c]) - exp_shift(online.max)) * online.reciprocal();
          const int at = threadIdx.x / kLanes * kSquareStride + column(c);
          weights[at] = kept[c] ? p.scale * (probability * (dp[c] - mean) * p.cap.slope(score[c])) : 0.0f;
          flags[at] = kept[c] ? 1.0f : kMasked;
        }
        __syncthreads();
        add_rows<kChunks>(weights, flags, keys, sum);
      }
      if (pass > 0) continue;
      mean *= online.reciprocal();
      if (grad_lse != nullptr && row < p.q_seq) mean -= grad_lse[(own.begin + row) * p.q_heads + head];
    }
    store_row<kChunks>(sum, row, p.q_seq, query_rows(dq, p, own.begin, head));
    if (threadIdx.x % kLanes == 0 && row < p.q_seq) {
      stats[head * tokens + own.begin + row] = {exp_shift(online.max), online.reciprocal(), mean};
    }
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
  const int64_t stride = p.kv_heads * p.width;
  for (int64_t kv_head = blockIdx.y; kv_head < p.kv_heads; kv_head += gridDim.y) {
    const int64_t key = own.first + threadIdx.x / kLanes, at_head = own.begin * stride + kv_head * p.width;
    float dk_sum[kChunks][4] = {}, dv_sum[kChunks][4] = {};
    __syncthreads();
    load_tile<kChunks>(HeadRows<const T>{source.k + at_head, stride, p.width}, own.first, p.kv_seq, keys);
    load_tile<kChunks>(HeadRows<const T>{source.v + at_head, stride, p.width}, own.first, p.kv_seq, values);
    for (int64_t head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head) {
      for (int64_t query = p.query_begin(own.first); query < p.query_end(own.first + kTile - 1); query += kTile) {
        float score[kPerThread], dp[kPerThread];
        __syncthreads();
        load_tile<kChunks>(query_rows(q, p, q_begin, head), query, p.q_seq, qs);
        load_tile<kChunks>(query_rows(grad, p, q_begin, head), query, p.q_seq, grads);
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
    store_row<kChunks>(dv_sum, key, p.kv_seq, HeadRows<T>{dv + at_head, stride, p.width});
  }
}

size_t backward_workspace(const checkop_call* call) { return call->n_inputs > 0 ? stats_bytes_of(call->inputs[0]) : 0; }

checkop_status launch_forward(const checkop_call* call) {
  AttentionParams p;
  if (auto status = check_varlen(call, false, p)) return status;
  return launch_portable(call, p);
}

checkop_status launch_backward(const checkop_call* call) {
  AttentionParams p;
  if (auto status = check_varlen(call, true, p)) return status;
  return with_width(call, p.width, [&](auto tag, auto width) {
    using T = typename decltype(tag)::type;
    constexpr int kChunks = decltype(width)::value;
    auto* stream = static_cast<cudaStream_t>(call->stream);
    const checkop_tensor* in = call->inputs;
    const auto* q_bounds = static_cast<const int32_t*>(in[3].data);
    const int64_t sequences = in[3].shape[0] - 1, tokens_q = in[0].shape[0], tokens_k = in[1].shape[0];
    const auto* q = static_cast<const T*>(in[0].data);
    const auto* sinks = static_cast<const T*>(in[kOfSinks].data);
    const PackedKeys<const T> keys = packed_keys<T>(call);
    const auto output = [&](int i) { return static_cast<T*>(call->outputs[i].data); };
    const dim3 of_queries = sequences_grid(tokens_q, sequences, p.q_heads);
    constexpr int kBytes = Tiles<kChunks>::bytes(4, 2);
    const auto* grad = static_cast<const T*>(in[6].data);
    const auto* grad_lse = static_cast<const float*>(in[7].data);
    auto* stats = static_cast<QueryStats*>(call->workspace);
    if (auto s = allow_shared(call, varlen_dq<T, kChunks>, kBytes)) return s;
    if (auto s = allow_shared(call, varlen_dkdv<T, kChunks>, kBytes)) return s;
    varlen_dq<T, kChunks><<<of_queries, kThreads, kBytes, stream>>>(p, q_bounds, sequences, tokens_q, q, keys, sinks,
                                                                    grad, grad_lse, stats, output(0));
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

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "varlen_attention", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
    {sizeof(checkop_kernel), "cuda", "varlen_attention", "backward", CHECKOP_CUDA, 80, 0, backward_workspace,
     launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
