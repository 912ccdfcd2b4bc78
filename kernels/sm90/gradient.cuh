// SPDX-License-Identifier: Apache-2.0
// Epilogues for the gradients of linear_logp: one turns logits into their gradient, one continues sums across products.
#pragma once

#include "sm90/segments.cuh"

namespace checkop::kernels::sm90 {

/// Per-row data for the gradient of its logits: dz = -scale * 2^(k - exponent) * e with e = 2^(z * log2(e) - k), where
/// k is the exponent of the segment (SegmentSums). In the target column, dz is at_target.
struct alignas(16) RowGradient {
  float exponent, scale, at_target;
  int32_t target;  ///< column of the target; kElsewhere: not one of these columns; -1: dz of the whole row is 0,
                   ///< whatever its logits are

  /// The factor of e in a segment.
  __device__ float factor(float segment_exponent) const { return -scale * power_of_2(segment_exponent - exponent); }
};
constexpr int32_t kElsewhere = std::numeric_limits<int32_t>::max();

/// The gradient c (1[v = t] - p_v) of a row, where c is already divided by the temperature. `total` and `target_logit`
/// come from SegmentSums.
__device__ inline RowGradient row_gradient(const PowerSum& total, float c, float target_logit, float log2_scale,
                                           int32_t target) {
  const float exponent = total.exponent == -INFINITY ? 0.0f : total.exponent;
  const float scale = c / total.sum;
  return {exponent, scale, c - scale * power_of_2(fmaf(target_logit, log2_scale, -exponent)), target};
}

/// Also part of the gradient: e p_v (b_v - M), the derivative of e times the row's entropy, with b as for
/// WeightedPowerSum but in units of ln 2, and M the mean of b. Then dz = (factor() + slope() * (k - b)) * 2^(k - b).
struct alignas(16) EntropyRowGradient : RowGradient {
  float mean, entropy_scale;  ///< M / ln(2);  e ln(2) / sum

  __device__ float factor(float segment_exponent) const {
    const float up = segment_exponent - exponent;
    return power_of_2(up) * fmaf(entropy_scale, -up - mean, -scale);
  }
  __device__ float slope(float segment_exponent) const {
    return -entropy_scale * power_of_2(segment_exponent - exponent);
  }
};

/// e: over the temperature, like c.
__device__ inline EntropyRowGradient row_gradient(const WeightedPowerSum& total, float c, float e, float target_logit,
                                                  float log2_scale, int32_t target) {
  EntropyRowGradient to{row_gradient(PowerSum{total.exponent, total.sum}, c, target_logit, log2_scale, target)};
  to.mean = total.weighted / total.sum, to.entropy_scale = e * kLn2 / total.sum;
  const float above = fmaxf(fmaf(target_logit, log2_scale, -to.exponent), kLeastExponent);
  to.at_target += power_of_2(above) * to.entropy_scale * (-above - to.mean);
  return to;
}

/// Writes the RowGradient of every row, from its sum of exponentials and its target's logit.
struct WriteRowGradients {
  const float* __restrict__ grad_logp;
  const int64_t* __restrict__ target_ids;
  int64_t ignored;
  int64_t first_id, columns;  ///< the columns of the vocabulary that the gradient covers
  RowGradient* __restrict__ to;

  __device__ void operator()(int64_t row, const PowerSum& total, float target_logit) const {
    const int64_t target = target_ids[row], column = target - first_id;
    if (target == ignored) {
      to[row] = {0.0f, 0.0f, 0.0f, -1};
      return;
    }
    to[row] = row_gradient(total, grad_logp[row], target_logit, kLog2E,
                           column >= 0 && column < columns ? static_cast<int32_t>(column) : kElsewhere);
  }
};

constexpr int kBlockRows = 16;  // rows per block of k (config.cuh); for the bias, they are summed in registers

/// Stores dz[m, n] for a block of columns, rounded once. With a bias, also stores the unrounded sums of dz over 16
/// rows. Without a bias, rounds e to the bits that launch_kept_to_gradient() reads, unless Row is EntropyRowGradient.
template <typename T, bool biased, typename Row = RowGradient>
struct StoreGradient {
  CUtensorMap c_map;                       ///< set only when staged
  const T* __restrict__ bias;              ///< [columns]
  const Row* __restrict__ row_of;          ///< [rows]
  const float* __restrict__ exponents;     ///< [segments of the columns, ld_exponents]
  T* __restrict__ dz;                      ///< [rows, ld]
  int64_t ld, ld_exponents, first_column;  ///< first_column: of this block, as RowGradient::target counts columns
  float* __restrict__ block_sums;          ///< [ceil(rows / 16), ld]
  bool staged;
  float log2_scale;  ///< as for SegmentSums

  template <typename Config>
  static constexpr bool kMayStage = Config::kStores == Stores::staged;
  static constexpr bool kReadsRows = true, kCarries = false;
  static constexpr bool kOfEntropy = std::is_same_v<Row, EntropyRowGradient>;
  /// Data of this thread's two rows, and of the two segments that a tile may have.
  struct Rows {
    struct {
      float exponent[2], factor[2], slope[2];
      float at_target;
      int32_t target;
    } of[2];
  };

  /// `columns`: of the tile that begins at column n.
  template <int columns>
  __device__ Rows read_rows(int64_t m, int64_t n, int64_t m_extent, int64_t n_extent) const {
    static_assert(columns <= 2 * kSegmentColumns);
    m += threadIdx.x % kWarpgroup / kWarp * 16 + threadIdx.x % kWarp / 4;
    Rows rows;
#pragma unroll
    for (int half = 0; half < 2; ++half, m += 8) {
      rows.of[half] = {{}, {}, {}, 0.0f, -1};
      if (m >= m_extent) continue;
      const Row row = row_of[m];
      rows.of[half].at_target = row.at_target, rows.of[half].target = row.target;
#pragma unroll
      for (int i = 0; i < columns; i += kSegmentColumns) {
        if (n + i >= n_extent) break;
        const float exponent = exponents[(n + i) / kSegmentColumns * ld_exponents + m];
        rows.of[half].exponent[i / kSegmentColumns] = exponent;
        rows.of[half].factor[i / kSegmentColumns] = row.factor(exponent);
        if constexpr (kOfEntropy) rows.of[half].slope[i / kSegmentColumns] = row.slope(exponent);
      }
    }
    return rows;
  }

  __device__ bool changes_sums() const { return true; }
  template <int count>
  __device__ static void pack(const float (&sum)[count], uint32_t (&packed)[count / 2]) {
    pack_sums<T>(sum, packed);
  }

  template <typename Config>
  __device__ __forceinline__ void change(float (&sum)[Config::kN / 2], const Rows& rows, int64_t m, int64_t n,
                                         int64_t m_extent, int64_t n_extent) const {
    static_assert(kSegmentColumns % Config::kN == 0 || Config::kN % kSegmentColumns == 0);
    constexpr int kPerRow = Config::kN / 4, kPerSegment = kSegmentColumns / 4;
    const int lane = threadIdx.x % kWarp, quad_lane = lane % 4;
    // Tested at run time: otherwise the compiler would load the whole bias at once, and registers are scarce.
    if (biased && bias != nullptr) add_bias(sum, bias, n, n_extent);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto row = rows.of[half];
#pragma unroll
      for (int i = 0; i < kPerRow; ++i) {  // column i / 2 * 8 + quad_lane * 2 + i % 2
        float& z = sum[i / 2 * 4 + i % 2 + half * 2];
        const int segment = i / kPerSegment;
        const float above = fmaf(z, log2_scale, -row.exponent[segment]), e = power_of_2(above);
        float dz = row.factor[segment] * (biased ? e : from_kept_bits(kept_bits(e)));
        if constexpr (kOfEntropy) dz = fmaf(row.slope[segment], fmaxf(above, kLeastExponent), row.factor[segment]) * e;
        z = row.target < 0 ? 0.0f : dz;
      }
      const int64_t target = row.target - first_column - n;
      if (target >= 0 && target < Config::kN && target % 8 / 2 == quad_lane) {
        const int index = static_cast<int>(target) / 8 * 2 + static_cast<int>(target) % 2;
#pragma unroll
        for (int i = 0; i < kPerRow; ++i) {
          float& z = sum[i / 2 * 4 + i % 2 + half * 2];
          z = i == index ? row.at_target : z;
        }
      }
    }
    if constexpr (!biased) return;
    m += threadIdx.x % kWarpgroup / kWarp * kBlockRows;
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

  template <typename Config>
  __device__ __forceinline__ void consume(float (&sum)[Config::kN / 2], const Rows& rows, int64_t m, int64_t n,
                                          int64_t m_extent, int64_t n_extent) const {
    change<Config>(sum, rows, m, n, m_extent, n_extent);
    store_direct<Config>(sum, dz, ld, m, n, m_extent, n_extent);
  }
};

constexpr int kKeptThreads = 256, kKeptColumns = 8, kKeptRows = 8;  // a thread computes 8 columns of 8 rows

/// Stores the same dz as StoreGradient, from kept exponentials [rows, ld_kept]. ld_kept is a multiple of 8 and at least
/// `columns`. dz is 0 between `columns` and the next multiple of 8.
template <typename T>
__global__ __launch_bounds__(kKeptThreads) void kept_to_gradient(const uint16_t* __restrict__ kept, int64_t ld_kept,
                                                                 int64_t rows, int64_t columns,
                                                                 const __grid_constant__ StoreGradient<T, false> to) {
  static_assert(kSegmentColumns % kKeptColumns == 0);
  const int64_t column = (int64_t{blockIdx.x} * kKeptThreads + threadIdx.x) * kKeptColumns;
  const int64_t first = int64_t{blockIdx.y} * kKeptRows;
  if (column >= columns) return;
  const float* __restrict__ exponents = to.exponents + column / kSegmentColumns * to.ld_exponents;
#pragma unroll
  for (int64_t row = first; row < first + kKeptRows; ++row) {
    if (row >= rows) return;
    const uint4 words = __ldcs(reinterpret_cast<const uint4*>(kept + row * ld_kept + column));
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    const RowGradient of = to.row_of[row];
    const float factor = of.factor(exponents[row]);
    const int64_t target = of.target - to.first_column - column;
    Pack<T, kKeptColumns> dz;
#pragma unroll
    for (int i = 0; i < kKeptColumns; ++i) {
      float value = factor * from_kept_bits(word[i / 2] >> i % 2 * 16 & 0xffff);
      if (i == target) value = of.at_target;
      if (of.target < 0 || column + i >= columns) value = 0.0f;
      dz.at[i] = from_float<T>(value);
    }
    __stwb(reinterpret_cast<uint4*>(to.dz + row * to.ld + column), bit_cast<uint4>(dz));
  }
}

template <typename T>
void launch_kept_to_gradient(const uint16_t* kept, int64_t ld_kept, int64_t rows, int64_t columns,
                             const StoreGradient<T, false>& to, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(columns, kKeptThreads * kKeptColumns)),
                  static_cast<unsigned>(ceil_div(rows, kKeptRows)));
  kept_to_gradient<T><<<grid, kKeptThreads, 0, stream>>>(kept, ld_kept, rows, columns, to);
}

/// Epilogue of a product whose inner dimension is cut into parts, one launch per part. The accumulators continue from
/// the previous part, so the bits equal those of a single product, wherever the inner dimension is cut (at multiples of
/// 16).
template <typename T>
struct ContinueSums {
  const float* __restrict__ from;  ///< initial sums [a.extent, b.extent], may be `sums`; null: zeros
  float* __restrict__ sums;        ///< [a.extent, b.extent], written by every part but the last
  T* __restrict__ c;               ///< [a.extent, b.extent], written by the last part
  bool last;

  template <typename Config>
  static constexpr bool kMayStage = false;
  static constexpr bool kReadsRows = false, kCarries = true;
  struct Rows {};

  template <typename Config>
  __device__ __forceinline__ void load(float (&sum)[Config::kN / 2], int64_t m, int64_t n, int64_t m_extent,
                                       int64_t n_extent) const {
    const int thread = threadIdx.x % kWarpgroup, lane = thread % kWarp;
    const bool pairs = n_extent % 2 == 0 && reinterpret_cast<uintptr_t>(from) % sizeof(float2) == 0;
    m += thread / kWarp * 16 + lane / 4, n += lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < Config::kN / 2; i += 2) {
      const int64_t row = m + i / 2 % 2 * 8, column = n + i / 4 * 8;
      float2 both{0.0f, 0.0f};
      if (from != nullptr && row < m_extent && column < n_extent) {
        const float* at = from + row * n_extent + column;
        if (pairs) {
          both = *reinterpret_cast<const float2*>(at);
        } else {
          both.x = at[0];
          if (column + 1 < n_extent) both.y = at[1];
        }
      }
      sum[i] = both.x, sum[i + 1] = both.y;
    }
  }

  template <typename Config>
  __device__ __forceinline__ void consume(float (&sum)[Config::kN / 2], const Rows&, int64_t m, int64_t n,
                                          int64_t m_extent, int64_t n_extent) const {
    if (last) {
      store_direct<Config>(sum, c, n_extent, m, n, m_extent, n_extent);
    } else {
      store_direct<Config>(sum, sums, n_extent, m, n, m_extent, n_extent);
    }
  }
};

}  // namespace checkop::kernels::sm90
