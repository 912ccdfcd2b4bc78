// SPDX-License-Identifier: Apache-2.0
// Epilogues of the gradients of linear_logp: logits to their gradient, and sums that go on from one product to the
// next.
#pragma once

#include "segments.cuh"

namespace checkop::kernels::sm90 {

/// What a row's gradient needs beside its logits: dz = grad * (column == target) - scale * 2^(z * log2(e) - exponent).
struct RowGradient {
  float exponent, scale, grad;
  int32_t target;  ///< kElsewhere: in no column here; -1: all of the row's gradient is 0, whatever its logits are
};
constexpr int32_t kElsewhere = std::numeric_limits<int32_t>::max();

/// RowGradient of every row, from its sum of exponentials.
struct WriteRowGradients {
  const float* __restrict__ grad_logp;
  const int64_t* __restrict__ target_ids;
  int64_t ignored;
  int64_t first_id, columns;  ///< of the vocabulary, that the gradient has
  RowGradient* __restrict__ to;

  __device__ void operator()(int64_t row, const PowerSum& total) const {
    const int64_t target = target_ids[row], column = target - first_id;
    if (target == ignored) {
      to[row] = {0.0f, 0.0f, 0.0f, -1};
    } else {
      const float grad = grad_logp[row];
      to[row] = {total.exponent == -INFINITY ? 0.0f : total.exponent, grad / total.sum, grad,
                 column >= 0 && column < columns ? static_cast<int32_t>(column) : kElsewhere};
    }
  }
};

constexpr int kBlockRows = 16;  // whose gradients are added to one another in registers, for the bias

/// dz[m, n] for columns of the vocabulary from first_column on, rounded once, and for the bias their sums over 16 rows,
/// which are not rounded.
template <typename T>
struct StoreGradient {
  CUtensorMap c_map;                       ///< only when staged
  const T* __restrict__ bias;              ///< [vocab] from first_column on, or null
  const RowGradient* __restrict__ row_of;  ///< [rows]
  T* __restrict__ dz;                      ///< [rows, ld]
  int64_t ld;
  int64_t first_column;
  float* __restrict__ block_sums;  ///< [ceil(rows / 16), ld], or null
  bool staged;

  template <typename P>
  static constexpr bool kMayStage = P::kStores == Stores::staged;
  static constexpr bool kReadsRows = true, kCarries = false;
  struct Rows {
    RowGradient of[2];
  };

  __device__ Rows read_rows(int64_t m, int64_t m_extent) const {
    m += threadIdx.x % kGroup / kWarp * 16 + threadIdx.x % kWarp / 4;
    constexpr RowGradient kNone{0.0f, 0.0f, 0.0f, -1};
    return {{m < m_extent ? row_of[m] : kNone, m + 8 < m_extent ? row_of[m + 8] : kNone}};
  }

  __device__ bool changes_sums() const { return true; }

  template <typename P>
  __device__ __forceinline__ void change(float (&sum)[P::kN / 2], const Rows& rows, int64_t m, int64_t n,
                                         int64_t m_extent, int64_t n_extent) const {
    constexpr int kPerRow = P::kN / 4;
    const int lane = threadIdx.x % kWarp, quad_lane = lane % 4;
    if (bias != nullptr) add_bias(sum, bias, n, n_extent);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const RowGradient row = rows.of[half];
#pragma unroll
      for (int i = 0; i < kPerRow; ++i) {  // column i / 2 * 8 + quad_lane * 2 + i % 2
        float& z = sum[i / 2 * 4 + i % 2 + half * 2];
        const float dz = -row.scale * power_of_2(fmaf(z, kLog2E, -row.exponent));
        z = row.target < 0 ? 0.0f : dz;
      }
      const int64_t target = row.target - first_column - n;
      if (target >= 0 && target < P::kN && target % 8 / 2 == quad_lane) {
        const int place = static_cast<int>(target) / 8 * 2 + static_cast<int>(target) % 2;
#pragma unroll
        for (int i = 0; i < kPerRow; ++i) sum[i / 2 * 4 + i % 2 + half * 2] += i == place ? row.grad : 0.0f;
      }
    }
    if (block_sums == nullptr) return;
    m += threadIdx.x % kGroup / kWarp * kBlockRows;
    if (m >= m_extent) return;  // the whole warp
    float* __restrict__ to = block_sums + m / kBlockRows * ld + n + quad_lane * 2;
#pragma unroll
    for (int i = 0; i < kPerRow; ++i) {
      const int at = i / 2 * 4 + i % 2;
      float total = sum[at] + sum[at + 2];
      total += __shfl_xor_sync(kAllLanes, total, 4);
      total += __shfl_xor_sync(kAllLanes, total, 8);
      total += __shfl_xor_sync(kAllLanes, total, 16);
      const int column = i / 2 * 8 + i % 2;
      if (lane < 4 && n + quad_lane * 2 + column < n_extent) to[column] = total;
    }
  }

  template <typename P>
  __device__ __forceinline__ void take(float (&sum)[P::kN / 2], const Rows& rows, int64_t m, int64_t n,
                                       int64_t m_extent, int64_t n_extent) const {
    change<P>(sum, rows, m, n, m_extent, n_extent);
    store_direct<P>(sum, dz, ld, m, n, m_extent, n_extent);
  }
};

/// A product whose inner dimension comes in parts, one launch each: the accumulators go on where the part before left
/// them, so that the bits are those of one product, however the inner dimension is cut (at multiples of 16).
template <typename T>
struct ContinueSums {
  float* __restrict__ sums;  ///< [a.extent, b.extent]; null when there is one part only
  T* __restrict__ c;         ///< [a.extent, b.extent], written by the last part
  bool first, last;

  template <typename P>
  static constexpr bool kMayStage = false;
  static constexpr bool kReadsRows = false, kCarries = true;
  struct Rows {};

  template <typename P>
  __device__ __forceinline__ void load(float (&sum)[P::kN / 2], int64_t m, int64_t n, int64_t m_extent,
                                       int64_t n_extent) const {
    const int thread = threadIdx.x % kGroup, lane = thread % kWarp;
    const bool pairs = n_extent % 2 == 0;
    m += thread / kWarp * 16 + lane / 4, n += lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < P::kN / 2; i += 2) {
      const int64_t row = m + i / 2 % 2 * 8, column = n + i / 4 * 8;
      float2 both{0.0f, 0.0f};
      if (!first && row < m_extent && column < n_extent) {
        const float* from = sums + row * n_extent + column;
        if (pairs) {
          both = *reinterpret_cast<const float2*>(from);
        } else {
          both.x = from[0];
          if (column + 1 < n_extent) both.y = from[1];
        }
      }
      sum[i] = both.x, sum[i + 1] = both.y;
    }
  }

  template <typename P>
  __device__ __forceinline__ void take(float (&sum)[P::kN / 2], const Rows&, int64_t m, int64_t n, int64_t m_extent,
                                       int64_t n_extent) const {
    if (last) {
      store_direct<P>(sum, c, n_extent, m, n, m_extent, n_extent);
    } else {
      store_direct<P>(sum, sums, n_extent, m, n, m_extent, n_extent);
    }
  }
};

}  // namespace checkop::kernels::sm90
