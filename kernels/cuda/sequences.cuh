// SPDX-License-Identifier: Apache-2.0
// Attention of sequences of different lengths, packed one after the other: which tile of which sequence a block has,
// the addresses of its rows, and the forward kernel, on the tiles of cuda/attention.cuh.
//
// A query's bits are those of attention of its sequence alone: tiles begin at multiples of 32 from the sequence's first
// query and its first key. Which block has which tile changes nothing.
#pragma once

#include "cuda/attention.cuh"

namespace checkop::kernels {

/// Rows `stride` elements apart: those of one head of a tensor of tokens.
template <typename T>
struct HeadRows {
  T* first;
  int64_t stride;
  int width;

  __device__ T* operator[](int64_t row) const { return first + row * stride; }
};

/// One sequence of a tensor [tokens, heads, width], and the block's tile in it. Behind the last sequence comes one
/// more, the rows that belong to none.
struct SequenceTile {
  int64_t sequence;  ///< the number of sequences for the rows that belong to none
  int64_t begin, n;  ///< tokens [begin, begin + n)
  int64_t first;     ///< of the tile, counted from `begin`; at least n if the block has nothing to do
};

/// Tile number `block` of the sequences with these bounds, in a grid of tiles_of() blocks: the tiles of sequence s
/// begin at bounds[s] / rows + s, which leaves room for all of them, whatever the lengths.
__device__ inline SequenceTile tile_of(const int32_t* __restrict__ bounds, int64_t sequences, int64_t tokens,
                                       int64_t block, int rows = kTile) {
  const auto first_tile = [&](int64_t s) { return bounds[s] / rows + s; };
  int64_t low = 0, high = sequences;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (first_tile(middle) <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int64_t begin = bounds[low], end = low < sequences ? bounds[low + 1] : tokens;
  return {low, begin, end - begin, (block - first_tile(low)) * rows};
}

__host__ __device__ inline int64_t tiles_of(int64_t tokens, int64_t sequences, int rows = kTile) {
  return tokens / rows + sequences + 1;
}

/// Keys in a tensor [tokens, kv_heads, head_dim], values in one [tokens, kv_heads, v_dim].
template <typename T>
struct PackedKeys {
  T *k, *v;
  const int32_t* bounds;
  int64_t sequences;

  __device__ int64_t count(int64_t s) const { return s < sequences ? bounds[s + 1] - bounds[s] : 0; }
  __device__ HeadRows<T> rows(T* all, int width, const AttentionParams& p, int64_t s, int64_t kv_head) const {
    const int64_t stride = p.kv_heads * width, first = s < sequences ? bounds[s] : 0;
    return {all + first * stride + kv_head * width, stride, width};
  }
  __device__ HeadRows<T> keys(const AttentionParams& p, int64_t s, int64_t head) const {
    return rows(k, p.width, p, s, head);
  }
  __device__ HeadRows<T> values(const AttentionParams& p, int64_t s, int64_t head) const {
    return rows(v, p.v_width, p, s, head);
  }
};

/// The queries of a head from token `begin` on, or a tensor of the same shape.
template <typename T>
__device__ HeadRows<T> query_rows(T* all, const AttentionParams& p, int64_t begin, int64_t head) {
  const int64_t stride = p.q_heads * p.width;
  return {all + begin * stride + head * p.width, stride, p.width};
}
/// The outputs of a head from token `begin` on, or a tensor of the same shape.
template <typename T>
__device__ HeadRows<T> output_rows(T* all, const AttentionParams& p, int64_t begin, int64_t head) {
  const int64_t stride = p.q_heads * p.v_width;
  return {all + begin * stride + head * p.v_width, stride, p.v_width};
}

/// A block computes one tile of queries of head blockIdx.y, as attention_forward does. Queries of no sequence become 0.
/// `p` has the extents that all sequences share; lse is [tokens, q_heads], or null.
template <typename T, int kChunks, typename Keys>
__global__ __launch_bounds__(kThreads) void sequences_forward(AttentionParams p, const int32_t* __restrict__ q_bounds,
                                                              int64_t sequences, int64_t tokens,
                                                              const T* __restrict__ q, Keys source,
                                                              const T* __restrict__ sinks, T* __restrict__ o,
                                                              float* __restrict__ lse) {
  extern __shared__ float4 shared[];
  Tiles<kChunks> tiles(shared);
  float *qs = tiles.tile(0), *keys = tiles.tile(1), *weights = tiles.square(2, 0);
  const SequenceTile own = tile_of(q_bounds, sequences, tokens, blockIdx.x);
  if (own.first >= own.n) return;
  p.q_seq = own.n, p.kv_seq = source.count(own.sequence);
  for (int64_t head = blockIdx.y; head < p.q_heads; head += gridDim.y) {
    const int64_t row = own.first + threadIdx.x / kLanes, kv_head = head / p.group();
    const auto of_keys = source.keys(p, own.sequence, kv_head), of_values = source.values(p, own.sequence, kv_head);
    // Queries of no sequence have no sink.
    OnlineSoftmax online = start_of(own.sequence < sequences ? sinks : nullptr, head);
    float sum[kChunks][4] = {};
    __syncthreads();  // the previous head's readers are done
    load_tile<kChunks>(query_rows(q, p, own.begin, head), own.first, p.q_seq, qs);
    for (int64_t key = p.key_begin(own.first); key < p.key_end(own.first + kTile - 1); key += kTile) {
      float score[kPerThread];
      bool kept[kPerThread];
      __syncthreads();
      load_tile<kChunks>(of_keys, key, p.kv_seq, keys);
      __syncthreads();
      products<kChunks>(qs, keys, score);
#pragma unroll
      for (int c = 0; c < kPerThread; ++c) {
        score[c] = p.cap.apply(score[c] * p.scale);
        kept[c] = p.keeps(nullptr, row, key + column(c));
      }
      const float before = online.add(score, kept);
      __syncthreads();
      load_tile<kChunks>(of_values, key, p.kv_seq, keys);
#pragma unroll
      for (int c = 0; c < kPerThread; ++c) weights[threadIdx.x / kLanes * kSquareStride + column(c)] = score[c];
      __syncthreads();
      scale_all<kChunks>(sum, before);
      add_rows<kChunks>(weights, weights, keys, sum);
    }
    scale_all<kChunks>(sum, online.reciprocal());
    store_row<kChunks>(sum, row, p.q_seq, output_rows(o, p, own.begin, head));
    if (lse != nullptr && threadIdx.x % kLanes == 0 && row < p.q_seq) {
      lse[(own.begin + row) * p.q_heads + head] = online.log_sum();
    }
  }
}

/// One block in x per tile and one in y per head; with more heads than a grid allows, blocks stride over them.
inline dim3 sequences_grid(int64_t tokens, int64_t sequences, int64_t heads) {
  const dim3 of_heads = grid_of(1, heads);
  return {static_cast<unsigned>(tiles_of(tokens, sequences)), of_heads.y, 1};
}

/// The extents and attributes that all sequences share; q is [tokens, q_heads, head_dim], keys [..., kv_heads,
/// head_dim], values [..., kv_heads, v_dim].
inline checkop_status shared_params(const checkop_call* call, const checkop_tensor& q, int64_t kv_heads, int64_t v_dim,
                                    AttentionParams& p) {
  if (call->n_attrs != 2 && call->n_attrs != 5) return say(call, CHECKOP_FAILED, "%s", kAttentionAttributes);
  if (kv_heads == 0 || q.shape[1] % kv_heads != 0) {
    return say(call, CHECKOP_FAILED, "%lld query heads: not a multiple of %lld key heads",
               static_cast<long long>(q.shape[1]), static_cast<long long>(kv_heads));
  }
  if (auto status = check_widths(call, q.shape[2], v_dim)) return status;
  const double scale = call->attrs[1].value;
  p = {};
  p.batch = 1, p.q_heads = q.shape[1], p.kv_heads = kv_heads, p.width = static_cast<int>(q.shape[2]);
  p.v_width = static_cast<int>(v_dim);
  p.causal = call->attrs[0].value != 0;
  p.scale = scale < 0 ? 1.0f / sqrtf(static_cast<float>(q.shape[2])) : static_cast<float>(scale);
  return call->n_attrs == 2 ? CHECKOP_OK : read_window_and_cap(call, p);
}

/// Calls f(TypeTag<T>{}, chunks), where `chunks` is a compile-time number of 32 columns that hold the width.
template <typename F>
checkop_status with_width(const checkop_call* call, int width, F&& f) {
  return with_float_type(call->inputs[0].dtype, [&](auto tag) {
    if (width <= 64) return f(tag, std::integral_constant<int, 2>{});
    if (width <= 128) return f(tag, std::integral_constant<int, 4>{});
    return f(tag, std::integral_constant<int, 8>{});
  });
}

/// Enqueues sequences_forward() for a checked call with the inputs q at 0, cu_seqlens_q at 3 and sinks at `sinks`, and
/// the outputs o and lse. keys_of(TypeTag<T>{}): the keys and values.
template <typename KeysOf>
checkop_status launch_sequences_forward(const checkop_call* call, const AttentionParams& p, int sinks,
                                        const char* doing, const KeysOf& keys_of) {
  return with_width(call, p.most_width(), [&](auto tag, auto width) {
    using T = typename decltype(tag)::type;
    constexpr int kChunks = decltype(width)::value, kBytes = Tiles<kChunks>::bytes(2, 1);
    const checkop_tensor* in = call->inputs;
    const int64_t sequences = in[3].shape[0] - 1, tokens = in[0].shape[0];
    const auto keys = keys_of(tag);
    const auto kernel = sequences_forward<T, kChunks, std::remove_const_t<decltype(keys)>>;
    if (auto s = allow_shared(call, kernel, kBytes)) return s;
    kernel<<<sequences_grid(tokens, sequences, p.q_heads), kThreads, kBytes, static_cast<cudaStream_t>(call->stream)>>>(
        p, static_cast<const int32_t*>(in[3].data), sequences, tokens, static_cast<const T*>(in[0].data), keys,
        static_cast<const T*>(in[sinks].data), static_cast<T*>(call->outputs[0].data),
        static_cast<float*>(call->outputs[1].data));
    return launch_status(call, doing);
  });
}

}  // namespace checkop::kernels
