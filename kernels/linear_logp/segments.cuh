// SPDX-License-Identifier: Apache-2.0
// linear_logp: the log-sum-exp of rows whose logits exist a block of columns at a time. Segments of 256 columns are
// reduced as they come and merged in a fixed order at the end.
#pragma once

#include "cuda/logit_transform.cuh"
#include "cuda/row_sums.cuh"
#include "gemm/tile.cuh"

namespace checkop::kernels {

// One warp reduces the logits of a row's segment; 8 columns per lane.
constexpr int kSegment = 256;
static_assert(kSumUnit % kSegment == 0);
constexpr int kThreads = 256;  // of the elementwise kernels: full occupancy with the registers they need
constexpr int kWarpsPerBlock = kThreads / kWarp;

// A segment or a row is reduced to a Sum: a maximum, and sums of terms relative to shift = exp_shift(max). Its
// functions:
//   add(z, shift)       adds the term of a logit
//   add(part, shift)    adds a segment's sums
//   add_lanes()         adds up the lanes' sums

/// Maximum and sum of exp(z - exp_shift(max)).
struct Partial {
  float max, sum = 0.0f;

  __device__ void add(float z, float shift) { sum += expf(z - shift); }
  __device__ void add(const Partial& part, float shift) { sum += part.sum * expf(part.max - shift); }
  __device__ void add_lanes() { sum = warp_sum(sum); }
};

template <typename T>
__device__ float biased(float x, const T* __restrict__ bias, int64_t column) {
  return bias == nullptr ? x : x + to_float(bias[column]);
}

/// Computes partials[row, segment], and target_logit[row] where the target is in the block.
///   x: [rows, ldx] f32, columns first_column .. first_column + n_columns - 1 of the weight   bias: [n_columns]
///   first_id: vocabulary index of the first of these columns
template <typename Sum, typename T>
__global__ __launch_bounds__(kThreads) void reduce_segments(const float* __restrict__ x, int64_t ldx,
                                                            const T* __restrict__ bias, LogitTransform transform,
                                                            const int64_t* __restrict__ target_ids, int64_t first_id,
                                                            int64_t first_column, int64_t n_columns, int64_t n_segments,
                                                            Sum* __restrict__ partials,
                                                            float* __restrict__ target_logit) {
  const int lane = threadIdx.x % kWarp;
  const int64_t row = blockIdx.y;
  const int64_t segment = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarp;  // within the block of columns
  if (segment * kSegment >= n_columns) return;                                         // the whole warp
  const int64_t target = target_ids[row] - first_id;
  float value[kSegment / kWarp], max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kSegment / kWarp; ++i) {
    const int64_t column = segment * kSegment + i * kWarp + lane;
    value[i] = -INFINITY;
    if (column < n_columns) {
      value[i] = transform.apply(biased(x[row * ldx + column], bias, column));
      if (column == target) target_logit[row] = value[i];
    }
    max = fmaxf(max, value[i]);
  }
  max = warp_max(max);
  const float shift = exp_shift(max);
  Sum sum{max};
#pragma unroll
  for (int i = 0; i < kSegment / kWarp; ++i) sum.add(value[i], shift);
  sum.add_lanes();
  if (lane == 0) partials[row * n_segments + first_column / kSegment + segment] = sum;
}

/// Calls finish(row, its Sum): one warp merges the segments of a row. Lane l takes segments l, l + 32, ...
template <typename Sum, typename Finish>
__global__ __launch_bounds__(kThreads) void merge_segments(const Sum* __restrict__ partials, int64_t rows,
                                                           int64_t n_segments, Finish finish) {
  const int lane = threadIdx.x % kWarp;
  const int64_t row = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarp;
  if (row >= rows) return;  // the whole warp
  const Sum* __restrict__ of_row = partials + row * n_segments;
  float max = -INFINITY;
  for (int64_t i = lane; i < n_segments; i += kWarp) max = fmaxf(max, of_row[i].max);
  max = warp_max(max);
  const float shift = exp_shift(max);
  Sum sum{max};
  for (int64_t i = lane; i < n_segments; i += kWarp) sum.add(of_row[i], shift);
  sum.add_lanes();
  if (lane == 0) finish(row, sum);
}

}  // namespace checkop::kernels
