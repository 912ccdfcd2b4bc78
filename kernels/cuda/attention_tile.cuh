// SPDX-License-Identifier: Apache-2.0
// attention, kv_cache_attention: the parameters, the addresses of rows, and the operations of a block of 256 threads on
// tiles of 32 rows in shared memory.
//
// Thread t always belongs to row t / 8 of its block's tile. It has columns t % 8 + 8 c of a 32 x 32 square, and columns
// 4 (t % 8) + 32 chunk + {0, 1, 2, 3} of a row of head_dim or v_dim.
#pragma once

#include <type_traits>

#include "cuda/common.cuh"
#include "cuda/logit_transform.cuh"

namespace checkop::kernels {

constexpr int kTile = 32;
constexpr int kLanes = 8;  // threads per row: a quarter of a warp, which reduces a row by three shuffles
constexpr int kThreads = kTile * kLanes;
constexpr int kPerThread = kTile / kLanes;
constexpr int kSquareStride = kTile + 1;  // odd, so that a column's elements lie in different banks
constexpr float kMasked = -1.0f;          // in place of a probability, which is never negative

/// Rows of `width` elements in one array or two: rows [0, n_first) in the first, later rows in the second.
template <int kParts, typename T>
struct Rows {
  T *first, *second;
  int64_t n_first;
  int width;

  __device__ T* operator[](int64_t row) const {
    if constexpr (kParts == 2) {
      if (row >= n_first) return second + (row - n_first) * width;
    }
    return first + row * width;
  }
};

struct AttentionParams {
  int64_t batch, q_heads, kv_heads, q_seq, kv_seq;
  int64_t first_seq;  // keys in the first of two parts; kv_seq if there is one part
  int width;          // head_dim
  bool causal;
  float scale;
  int64_t window_left = -1, window_right = -1;  // keys before and after its own that a query sees; below 0: all
  LogitTransform cap = {};                      // of the scores, after the scale
  int v_width = 0;                              // v_dim

  __host__ __device__ int64_t heads() const { return batch * q_heads; }
  __host__ __device__ int64_t group() const { return q_heads / kv_heads; }
  int most_width() const { return width > v_width ? width : v_width; }
  /// The keys, values or their gradients of one key head; heads are counted over the batch.
  template <int kParts, typename T>
  __device__ Rows<kParts, T> keys(T* first, T* second, int64_t kv_head) const {
    return rows_of_keys<kParts>(first, second, kv_head, width);
  }
  template <int kParts, typename T>
  __device__ Rows<kParts, T> values(T* first, T* second, int64_t kv_head) const {
    return rows_of_keys<kParts>(first, second, kv_head, v_width);
  }
  /// The queries of a head, or its outputs, or a tensor of the same shape.
  template <typename T>
  __device__ Rows<1, T> queries(T* all, int64_t head) const {
    return {all + head * q_seq * width, nullptr, q_seq, width};
  }
  template <typename T>
  __device__ Rows<1, T> outputs(T* all, int64_t head) const {
    return {all + head * q_seq * v_width, nullptr, q_seq, v_width};
  }
  /// The key that is as far from the end of the keys as the query from that of the queries.
  __device__ int64_t own_key(int64_t query) const { return query + (kv_seq - q_seq); }
  /// As window_right, with `causal` as well.
  __device__ int64_t right() const { return causal ? 0 : window_right; }
  /// The first tile with a key that a query from `query` on sees.
  __device__ int64_t key_begin(int64_t query) const {
    const int64_t first = own_key(query) - window_left;
    return window_left >= 0 && first > 0 ? first / kTile * kTile : 0;
  }
  /// No query up to `last` sees a key from this index on.
  __device__ int64_t key_end(int64_t last) const {
    const int64_t end = own_key(last) + right() + 1;
    return right() >= 0 && end < kv_seq ? end : kv_seq;
  }
  /// The first tile with a query that sees a key from `key` on.
  __device__ int64_t query_begin(int64_t key) const {
    const int64_t first = key - (kv_seq - q_seq) - right();
    return right() >= 0 && first > 0 ? first / kTile * kTile : 0;
  }
  /// No query from this index on sees a key up to `last`.
  __device__ int64_t query_end(int64_t last) const {
    const int64_t end = last - (kv_seq - q_seq) + window_left + 1;
    return window_left >= 0 && end < q_seq ? end : q_seq;
  }
  __device__ bool keeps(const uint8_t* __restrict__ mask, int64_t row, int64_t key) const {
    const int64_t after = key - own_key(row);
    return row < q_seq && key < kv_seq && (right() < 0 || after <= right()) &&
           (window_left < 0 || -after <= window_left) && (mask == nullptr || mask[key] != 0);
  }

 private:
  template <int kParts, typename T>
  __device__ Rows<kParts, T> rows_of_keys(T* first, T* second, int64_t kv_head, int columns) const {
    return {first + kv_head * first_seq * columns, second + kv_head * (kv_seq - first_seq) * columns, first_seq,
            columns};
  }
};

/// Of a forward pass: o and lse of every query; and the gradient of lse. Each may be null.
template <typename T>
struct Saved {
  const T* __restrict__ o;
  const float* __restrict__ lse, * __restrict__ grad_lse;
};

/// For one query: p = exp(score - shift) * reciprocal; mean is the sum of p * dp, less the gradient of lse.
struct QueryStats {
  float shift, reciprocal, mean;
};

/// The layout of shared memory: tiles of 32 rows of 32 * kChunks columns, then squares. Four padding columns after each
/// row put the 16-byte words of 8 rows that a warp reads at once into different banks.
template <int kChunks>
struct Tiles {
  static constexpr int kWidth = kTile * kChunks, kStride = kWidth + 4;
  float* base;

  __device__ explicit Tiles(float4* shared) : base(reinterpret_cast<float*>(shared)) {}
  __device__ float* tile(int i) const { return base + i * kTile * kStride; }
  __device__ float* square(int n_tiles, int i) const { return tile(n_tiles) + i * kTile * kSquareStride; }
  static constexpr int bytes(int n_tiles, int n_squares) {
    return static_cast<int>(sizeof(float)) * kTile * (n_tiles * kStride + n_squares * kSquareStride);
  }
};

__device__ inline int column(int c) { return static_cast<int>(threadIdx.x % kLanes) + kLanes * c; }

/// Sum over the 8 threads of a row; the same bits in each.
__device__ inline float row_sum(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}
__device__ inline float row_max(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}

/// Loads rows [first, first + 32) of `n_rows`; zeros beyond the rows and beyond their columns. `Source` is Rows, or
/// another type that gives a row's address and its width.
template <int kChunks, typename Source>
__device__ void load_tile(const Source& from, int64_t first, int64_t n_rows, float* __restrict__ to) {
  constexpr int kWidth = Tiles<kChunks>::kWidth;
  for (int i = threadIdx.x; i < kTile * kWidth; i += kThreads) {
    const int row = i / kWidth, at = i % kWidth;
    const bool inside = first + row < n_rows && at < from.width;
    to[row * Tiles<kChunks>::kStride + at] = inside ? to_float(from[first + row][at]) : 0.0f;
  }
}

/// out[c] = x[this thread's row] . y[column(c)]: four sums over a quarter of the columns each, added as a tree.
template <int kChunks>
__device__ void products(const float* __restrict__ x, const float* __restrict__ y, float (&out)[kPerThread]) {
  constexpr int kStride = Tiles<kChunks>::kStride;
  const float* __restrict__ row = x + threadIdx.x / kLanes * kStride;
  float4 sum[kPerThread] = {};
#pragma unroll 4
  for (int d = 0; d < Tiles<kChunks>::kWidth; d += 4) {
    const float4 a = *reinterpret_cast<const float4*>(row + d);
#pragma unroll
    for (int c = 0; c < kPerThread; ++c) {
      const float4 b = *reinterpret_cast<const float4*>(y + column(c) * kStride + d);
      sum[c].x += a.x * b.x;
      sum[c].y += a.y * b.y;
      sum[c].z += a.z * b.z;
      sum[c].w += a.w * b.w;
    }
  }
#pragma unroll
  for (int c = 0; c < kPerThread; ++c) out[c] = (sum[c].x + sum[c].y) + (sum[c].z + sum[c].w);
}

template <int kChunks>
__device__ void scale_all(float (&sum)[kChunks][4], float factor) {
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[chunk][i] *= factor;
  }
}

/// sum += weights[this thread's row, :] * tile, skipping rows of the tile whose `flags` is kMasked: a masked row may
/// hold NaN, which must not be multiplied, not even by 0.
template <int kChunks>
__device__ void add_rows(const float* weights, const float* flags, const float* __restrict__ tile,
                         float (&sum)[kChunks][4]) {
  const unsigned at = threadIdx.x / kLanes * kSquareStride;
  for (int c = 0; c < kTile; ++c) {
    if (flags[at + c] < 0.0f) continue;  // NaN is not skipped
    const float weight = weights[at + c];
    const float* __restrict__ row = tile + c * Tiles<kChunks>::kStride + threadIdx.x % kLanes * 4;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const float4 x = *reinterpret_cast<const float4*>(row + chunk * kTile);
      sum[chunk][0] += weight * x.x;
      sum[chunk][1] += weight * x.y;
      sum[chunk][2] += weight * x.z;
      sum[chunk][3] += weight * x.w;
    }
  }
}

/// Stores row `row` if it is below `n_rows`. For `Target` see load_tile().
template <int kChunks, typename Target>
__device__ void store_row(const float (&sum)[kChunks][4], int64_t row, int64_t n_rows, const Target& to) {
  using T = std::remove_reference_t<decltype(to[row][0])>;
  if (row >= n_rows) return;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = static_cast<int>(threadIdx.x % kLanes) * 4 + chunk * kTile + i;
      if (at < to.width) to[row][at] = from_float<T>(sum[chunk][i]);
    }
  }
}

}  // namespace checkop::kernels
