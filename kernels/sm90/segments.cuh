// SPDX-License-Identifier: Apache-2.0
// Epilogue of products whose rows are logits: computes the inputs of their log-sum-exp by segments of 256 columns,
// without storing a logit. One tile is one segment in every configuration, and a warpgroup sums it in one fixed order,
// so the bits of a row depend on nothing but the row.
//
// Exponentials are powers of 2, taken relative to an integer exponent k: z * log2(e) - k rounds once, and segments are
// brought to a common k without any rounding.
//
// A configuration with staged stores also keeps the exponentials, in 16 bits each, so that the gradient needs no second
// product (gradient.cuh).
#pragma once

#include "cuda/row_sums.cuh"
#include "sm90/epilogue.cuh"

namespace checkop::kernels::sm90 {

constexpr int kSegmentColumns = 256;
constexpr float kLog2E = 0x1.715476p+0f;

/// Sum of exp(z) over a segment or a row: 2^exponent * sum. {-inf, 0} where all logits are -inf.
struct PowerSum {
  float exponent, sum;
};

/// Also weighted = sum of 2^-b * b with b = exponent - z * log2(e): the row's entropy is ln(sum) + ln(2) weighted /
/// sum.
struct WeightedPowerSum {
  float exponent, sum, weighted;
};

/// Powers of 2 are 0 below 2^-126. An exponent that is no less than this keeps the product of both from being 0 * inf.
constexpr float kLeastExponent = -200.0f;

/// 2^x as the hardware computes it: error up to 2 ulp, 0 below 2^-126.
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The 16 bits kept of e, which is positive and below 2: the fp32 exponent and 9 bits of the fraction, rounded to
/// nearest, ties to even. NaN becomes an arbitrary number.
__device__ inline uint32_t kept_bits(float e) {
  const auto bits = bit_cast<uint32_t>(e);
  return (bits + 0x1fff + (bits >> 14 & 1)) >> 14 & 0xffff;
}
__device__ inline float from_kept_bits(uint32_t bits) { return bit_cast<float>(bits << 14); }

/// Sum: PowerSum or WeightedPowerSum.
template <typename T, typename Sum = PowerSum>
struct SumSegments {
  const T* __restrict__ bias;              ///< [vocab] or null
  const int64_t* __restrict__ target_ids;  ///< [rows]
  int64_t first_id;                        ///< vocabulary index of the first column
  Sum* __restrict__ sums;                  ///< [segments, rows]
  float* __restrict__ target_logit;  ///< [rows], before the division by a temperature; untouched where the target is
                                     ///< not among the columns
  float* __restrict__ exponents;     ///< [segments, ld_exponents], as in `sums` but 0 in place of -inf; or null
  int64_t ld_exponents;
  CUtensorMap c_map;  ///< of the kept exponentials [rows, vocab]; set only when staged
  bool staged;
  float log2_scale;  ///< log2(e), over the temperature if there is one

  template <typename Config>
  static constexpr bool kMayStage = Config::kStores == Stores::staged;
  static constexpr bool kReadsRows = true, kCarries = false;
  static constexpr bool kIsWeighted = std::is_same_v<Sum, WeightedPowerSum>;
  /// Target columns of this thread's two rows; -1 for rows outside the matrix.
  struct Rows {
    int64_t target[2];
  };

  __device__ Rows read_rows(int64_t m, int64_t, int64_t m_extent) const {
    m += threadIdx.x % kWarpgroup / kWarp * 16 + threadIdx.x % kWarp / 4;
    return {{m < m_extent ? target_ids[m] - first_id : -1, m + 8 < m_extent ? target_ids[m + 8] - first_id : -1}};
  }

  __device__ bool changes_sums() const { return true; }
  template <int count>
  __device__ static void pack(const float (&sum)[count], uint32_t (&packed)[count / 2]) {
#pragma unroll
    for (int i = 0; i < count / 2; ++i) packed[i] = kept_bits(sum[2 * i]) | kept_bits(sum[2 * i + 1]) << 16;
  }

  /// A warpgroup turns the logits of rows m .. m + 63, columns n .. n + 255 into exponentials. Fragment of `sum`:
  /// wgmma.cuh.
  template <typename Config>
  __device__ __forceinline__ void change(float (&sum)[Config::kN / 2], const Rows& rows, int64_t m, int64_t n,
                                         int64_t m_extent, int64_t n_extent) const {
    static_assert(Config::kN == kSegmentColumns);
    constexpr int kPerRow = Config::kN / 4;  // columns of a row per thread; the four lanes of a quad hold all of it
    const int lane = threadIdx.x % kWarp, quad_lane = lane % 4;
    m += threadIdx.x % kWarpgroup / kWarp * 16 + lane / 4;
    if (bias != nullptr) add_bias(sum, bias, n, n_extent);
    if (n + Config::kN > n_extent) {
      const int left = static_cast<int>(n_extent - n) - quad_lane * 2;
#pragma unroll
      for (int i = 0; i < Config::kN / 2; ++i) {
        if (i / 4 * 8 + i % 2 >= left) sum[i] = -INFINITY;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Value i of the row is column i / 2 * 8 + quad_lane * 2 + i % 2 of the segment.
      const auto at = [](int i) { return i / 2 * 4 + i % 2; };
      const int64_t row = m + half * 8, target = rows.target[half] - n;
      if (target >= 0 && target < Config::kN && target % 8 / 2 == quad_lane) {
        const int index = static_cast<int>(target) / 8 * 2 + static_cast<int>(target) % 2;
        float logit = 0.0f;
#pragma unroll
        for (int i = 0; i < kPerRow; ++i) logit = i == index ? sum[at(i) + half * 2] : logit;
        target_logit[row] = logit;
      }
      float most = sum[half * 2];
#pragma unroll
      for (int i = 1; i < kPerRow; ++i) most = fmaxf(most, sum[at(i) + half * 2]);
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      // NaN and +inf logits make the sum NaN: fmaxf skips NaN but the power does not, and inf - inf is NaN.
      const float exponent = most > -INFINITY ? rintf(most * log2_scale) : 0.0f;
      float part[4] = {}, weighted[4] = {};
#pragma unroll
      for (int i = 0; i < kPerRow; ++i) {
        float& z = sum[at(i) + half * 2];
        const float above = fmaf(z, log2_scale, -exponent);
        z = power_of_2(above);
        part[i % 4] += z;
        if constexpr (kIsWeighted) weighted[i % 4] = fmaf(z, -fmaxf(above, kLeastExponent), weighted[i % 4]);
      }
      float total = (part[0] + part[1]) + (part[2] + part[3]);
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      float total_weighted = 0.0f;
      if constexpr (kIsWeighted) {
        total_weighted = (weighted[0] + weighted[1]) + (weighted[2] + weighted[3]);
        total_weighted += __shfl_xor_sync(kAllLanes, total_weighted, 1);
        total_weighted += __shfl_xor_sync(kAllLanes, total_weighted, 2);
      }
      if (quad_lane == 0 && row < m_extent && n < n_extent) {  // the last cluster may have no columns left for a block
        Sum& to = sums[n / Config::kN * m_extent + row];
        to.exponent = most == -INFINITY ? most : exponent, to.sum = total;
        if constexpr (kIsWeighted) to.weighted = total_weighted;
        if (exponents != nullptr) exponents[n / Config::kN * ld_exponents + row] = exponent;
      }
    }
  }

  template <typename Config>
  __device__ __forceinline__ void consume(float (&sum)[Config::kN / 2], const Rows& rows, int64_t m, int64_t n,
                                          int64_t m_extent, int64_t n_extent) const {
    change<Config>(sum, rows, m, n, m_extent, n_extent);
  }
};

constexpr int kMergeRows = 32, kMergeParts = 32;  // per block: a warp takes every 32nd segment, a lane one row

/// a + b, expressed at the larger exponent.
__device__ inline PowerSum merged(const PowerSum& a, const PowerSum& b) {
  const float exponent = fmaxf(a.exponent, b.exponent);
  if (exponent == -INFINITY) return {exponent, a.sum + b.sum};
  return {exponent, a.sum * power_of_2(a.exponent - exponent) + b.sum * power_of_2(b.exponent - exponent)};
}
__device__ inline WeightedPowerSum merged(const WeightedPowerSum& a, const WeightedPowerSum& b) {
  const PowerSum all = merged(PowerSum{a.exponent, a.sum}, PowerSum{b.exponent, b.sum});
  const auto weighted = [&](const WeightedPowerSum& part) {
    const float up = all.exponent - part.exponent, factor = power_of_2(-up);
    return factor == 0.0f ? 0.0f : factor * fmaf(up, part.sum, part.weighted);  // up may be infinite
  };
  if (all.exponent == -INFINITY) return {all.exponent, all.sum, a.weighted + b.weighted};
  return {all.exponent, all.sum, weighted(a) + weighted(b)};
}

/// Calls finish(row, sum over the row's segments) for every row.
template <typename Sum, typename Finish>
static __global__ __launch_bounds__(kMergeRows* kMergeParts) void merge_power_sums(const Sum* __restrict__ sums,
                                                                                   int64_t rows, int64_t n_segments,
                                                                                   Finish finish) {
  __shared__ Sum parts[kMergeParts][kMergeRows];
  const int lane = threadIdx.x % kWarp, part = threadIdx.x / kWarp;
  const int64_t row = int64_t{blockIdx.x} * kMergeRows + lane;
  Sum mine{};
  mine.exponent = -INFINITY;
  if (row < rows) {
#pragma unroll 4
    for (int64_t i = part; i < n_segments; i += kMergeParts) mine = merged(mine, sums[i * rows + row]);
  }
  parts[part][lane] = mine;
  __syncthreads();
  if (part != 0 || row >= rows) return;
  for (int i = 1; i < kMergeParts; ++i) mine = merged(mine, parts[i][lane]);
  finish(row, mine);
}

template <typename Sum, typename Finish>
void launch_merge(const Sum* sums, int64_t rows, int64_t n_segments, const Finish& finish, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(rows, kMergeRows));
  merge_power_sums<<<blocks, kMergeRows * kMergeParts, 0, stream>>>(sums, rows, n_segments, finish);
}

/// z - log(sum of exponentials).
__device__ inline float log_probability(float z, const PowerSum& total) {
  // log(sum) = exponent * ln 2 + log(total.sum), with ln 2 split into two parts. The large difference comes first
  // because it is nearly exact; the log-sum-exp of large logits would be rounded at its own magnitude.
  constexpr float kLn2 = 0x1.62e4p-1f, kLn2Rest = 0x1.7f7d1cp-20f;
  return fmaf(-total.exponent, kLn2Rest, fmaf(-total.exponent, kLn2, z)) - logf(total.sum);
}
__device__ inline float log_probability(float z, const WeightedPowerSum& total) {
  return log_probability(z, PowerSum{total.exponent, total.sum});
}

constexpr float kLn2 = 0x1.62e430p-1f;
/// The entropy of a row's softmax.
__device__ inline float entropy(const WeightedPowerSum& total) {
  return fmaf(kLn2, total.weighted / total.sum, logf(total.sum));
}

}  // namespace checkop::kernels::sm90
