// SPDX-License-Identifier: Apache-2.0
// Epilogues of products that are logits: compute the inputs of their log-sum-exp by segments of 128 columns, without
// storing a logit. The sum of a segment is a tree in every configuration, in which sums of columns that differ in one
// bit of their number are added: in bit 3, then in bits 0, 1, 2, 6, 4, 5. The sums of a row's segments are merged in an
// order that depends on their number alone. So the bits of a row depend on nothing but the row.
//
// Exponentials are powers of 2, taken relative to an integer exponent k: z * log2(e) - k rounds once, and segments are
// brought to a common k without any rounding.
//
// A configuration with staged stores also keeps the exponentials, in 16 bits each, so that the gradient needs no second
// product (gradient.cuh).
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/row_sums.cuh"
#include "sm90/epilogue.cuh"
#include "sm90/exp2.cuh"

namespace checkop::kernels::sm90 {

constexpr int kSegmentColumns = 128;

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

/// The 16 bits kept of e, which is positive and below 2: the fp32 exponent and 9 bits of the fraction, rounded to
/// nearest, ties to even. NaN becomes an arbitrary number.
__device__ inline uint32_t kept_bits(float e) {
  const auto bits = bit_cast<uint32_t>(e);
  return (bits + 0x1fff + (bits >> 14 & 1)) >> 14 & 0xffff;
}
__device__ inline float from_kept_bits(uint32_t bits) { return bit_cast<float>(bits << 14); }

/// What the epilogues below write. Sum: PowerSum or WeightedPowerSum.
template <typename T, typename Sum = PowerSum>
struct SegmentSums {
  const T* __restrict__ bias;              ///< [vocab] or null
  const int64_t* __restrict__ target_ids;  ///< [rows]
  int64_t first_id;                        ///< vocabulary index of the first column
  Sum* __restrict__ sums;                  ///< [segments, rows]
  float* __restrict__ target_logit;  ///< [rows], before the division by a temperature; untouched where the target is
                                     ///< not among the columns
  float* __restrict__ exponents;     ///< [segments, ld_exponents], as in `sums` but 0 in place of -inf; or null
  int64_t ld_exponents;
  float log2_scale;  ///< log2(e), over the temperature if there is one

  static constexpr bool kIsWeighted = std::is_same_v<Sum, WeightedPowerSum>;

  /// The column of a row's target, counted from the product's first one. Not one of its columns where another part of
  /// the vocabulary has the target; -1 for rows outside the matrix.
  __device__ int64_t target_column(int64_t row, int64_t rows) const {
    return row < rows ? target_ids[row] - first_id : -1;
  }
  /// Whether a segment has `column`, counted from its first one, where the matrix has `left` columns from there on.
  __device__ static bool has_column(int64_t column, int64_t left) {
    return column >= 0 && column < min(int64_t{kSegmentColumns}, left);
  }

  // NaN and +inf logits make the sum NaN: fmaxf skips NaN but the power does not, and inf - inf is NaN.
  __device__ float exponent_of(float most) const { return most > -INFINITY ? rintf(most * log2_scale) : 0.0f; }

  /// Turns two logits whose columns differ in bit 3 into exponentials. Adds them to `sum` and `weighted`, which then
  /// hold both.
  __device__ void add_pair(float& low, float& high, float exponent, float& sum, float& weighted) const {
    const float above_low = fmaf(low, log2_scale, -exponent), above_high = fmaf(high, log2_scale, -exponent);
    low = power_of_2(above_low), high = power_of_2(above_high);
    sum = low + high;
    if constexpr (kIsWeighted)
      weighted = fmaf(high, -fmaxf(above_high, kLeastExponent), low * -fmaxf(above_low, kLeastExponent));
  }

  /// Writes the sum of a segment of a row; `rows`: of all segments.
  __device__ void write(int64_t segment, int64_t row, int64_t rows, float most, float total, float weighted) const {
    const float exponent = exponent_of(most);
    Sum& to = sums[segment * rows + row];
    to.exponent = most == -INFINITY ? most : exponent, to.sum = total;
    if constexpr (kIsWeighted) to.weighted = weighted;
    if (exponents != nullptr) exponents[segment * ld_exponents + row] = exponent;
  }
};

/// The sum of a segment over the lanes of a quad. part[i]: the sum of the columns of this lane with i in bits 4 to 6.
__device__ __forceinline__ float sum_of_quad(const float (&part)[8]) {
  const int lane = threadIdx.x % kWarp;
  const bool is_odd = lane & 1, is_upper = lane & 2;
  float of_two[4], of_four[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // bit 1; the lane keeps the columns whose bit 4 is its own bit 0
    of_two[i] = (is_odd ? part[2 * i + 1] : part[2 * i]) +
                __shfl_xor_sync(kAllLanes, is_odd ? part[2 * i] : part[2 * i + 1], 1);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // bit 2; bit 5 is the lane's bit 1
    of_four[i] = (is_upper ? of_two[2 * i + 1] : of_two[2 * i]) +
                 __shfl_xor_sync(kAllLanes, is_upper ? of_two[2 * i] : of_two[2 * i + 1], 2);
  }
  float total = of_four[0] + of_four[1];                // bit 6
  total += __shfl_xor_sync(kAllLanes, total, 1);        // bit 4
  return total + __shfl_xor_sync(kAllLanes, total, 2);  // bit 5
}

/// The epilogue where rows of c are rows of logits. A tile has one segment of columns, or two.
template <typename T, typename Sum = PowerSum>
struct SumSegments : SegmentSums<T, Sum> {
  using Base = SegmentSums<T, Sum>;
  CUtensorMap c_map;  ///< of the kept exponentials [rows, vocab]; set only when staged
  bool staged;

  template <typename Config>
  static constexpr bool kMayStage = Config::kStores == Stores::staged;
  static constexpr bool kReadsRows = true, kCarries = false;
  /// Target columns of this thread's two rows; -1 for rows outside the matrix.
  struct Rows {
    int64_t target[2];
  };

  template <int columns>
  __device__ Rows read_rows(int64_t m, int64_t, int64_t m_extent, int64_t) const {
    m += threadIdx.x % kWarpgroup / kWarp * 16 + threadIdx.x % kWarp / 4;
    return {{this->target_column(m, m_extent), this->target_column(m + 8, m_extent)}};
  }

  __device__ bool changes_sums() const { return true; }
  template <int count>
  __device__ static void pack(const float (&sum)[count], uint32_t (&packed)[count / 2]) {
#pragma unroll
    for (int i = 0; i < count / 2; ++i) packed[i] = kept_bits(sum[2 * i]) | kept_bits(sum[2 * i + 1]) << 16;
  }

  /// A warpgroup turns the logits of rows m .. m + 63, columns n .. n + kN - 1 into exponentials. Fragment of `sum`:
  /// wgmma.cuh.
  template <typename Config>
  __device__ __forceinline__ void change(float (&sum)[Config::kN / 2], const Rows& rows, int64_t m, int64_t n,
                                         int64_t m_extent, int64_t n_extent) const {
    static_assert(Config::kN % kSegmentColumns == 0);
    constexpr int kPerRow = kSegmentColumns / 4;  // columns of a row's segment per thread; a quad holds all of them
    const int lane = threadIdx.x % kWarp, quad_lane = lane % 4;
    m += threadIdx.x % kWarpgroup / kWarp * 16 + lane / 4;
    if (this->bias != nullptr) add_bias(sum, this->bias, n, n_extent);
    if (n + Config::kN > n_extent) {
      const int left = static_cast<int>(n_extent - n) - quad_lane * 2;
#pragma unroll
      for (int i = 0; i < Config::kN / 2; ++i) {
        if (i / 4 * 8 + i % 2 >= left) sum[i] = -INFINITY;
      }
    }
#pragma unroll
    for (int each = 0; each < 2 * Config::kN / kSegmentColumns; ++each) {
      // Value i of the row is column i / 2 * 8 + quad_lane * 2 + i % 2 of the segment.
      const int half = each % 2;
      const int64_t column = n + each / 2 * kSegmentColumns, row = m + half * 8, target = rows.target[half] - column;
      const auto z = [&](int i) -> float& { return sum[each / 2 * kPerRow * 2 + i / 2 * 4 + i % 2 + half * 2]; };
      if (this->has_column(target, n_extent - column) && target % 8 / 2 == quad_lane) {
        const int index = static_cast<int>(target) / 8 * 2 + static_cast<int>(target) % 2;
        float logit = 0.0f;
#pragma unroll
        for (int i = 0; i < kPerRow; ++i) logit = i == index ? z(i) : logit;
        this->target_logit[row] = logit;
      }
      float most = z(0);
#pragma unroll
      for (int i = 1; i < kPerRow; ++i) most = fmaxf(most, z(i));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      const float exponent = this->exponent_of(most);
      float part[8], weighted[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float pair[2], of_pair[2];
#pragma unroll
        for (int odd = 0; odd < 2; ++odd)
          this->add_pair(z(i * 4 + odd), z(i * 4 + 2 + odd), exponent, pair[odd], of_pair[odd]);
        part[i] = pair[0] + pair[1];
        if constexpr (Base::kIsWeighted) weighted[i] = of_pair[0] + of_pair[1];
      }
      const float total = sum_of_quad(part);
      float total_weighted = 0.0f;
      if constexpr (Base::kIsWeighted) total_weighted = sum_of_quad(weighted);
      // The last cluster may have no columns left for a block.
      if (quad_lane == 0 && row < m_extent && column < n_extent)
        this->write(column / kSegmentColumns, row, m_extent, most, total, total_weighted);
    }
  }

  template <typename Config>
  __device__ __forceinline__ void consume(float (&sum)[Config::kN / 2], const Rows& rows, int64_t m, int64_t n,
                                          int64_t m_extent, int64_t n_extent) const {
    change<Config>(sum, rows, m, n, m_extent, n_extent);
  }
};

/// Combines the values `of` with those of the other 7 lanes that have the same columns of c: first lanes that differ in
/// bit 2, then in bit 3, then in bit 4. Afterwards a lane has count / 8 of the results: of[i] is that of value
/// place_after_halving<count>() + i.
template <int count, typename Combine>
__device__ __forceinline__ void halve_over_lanes(float (&of)[count], const Combine& combine) {
  static_assert(count % 8 == 0);
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int bit = 4, left = count / 2; bit <= 16; bit *= 2, left /= 2) {
    const bool keeps_second = lane & bit;
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
      if (i >= left) continue;
      const float sent = keeps_second ? of[i] : of[i + left], kept = keeps_second ? of[i + left] : of[i];
      of[i] = combine(kept, __shfl_xor_sync(kAllLanes, sent, bit));
    }
  }
}
template <int count>
__device__ __forceinline__ int place_after_halving() {
  const int lane = threadIdx.x % kWarp;
  return (lane / 4 % 2 * 4 + lane / 8 % 2 * 2 + lane / 16) * (count / 8);
}

/// Waits as named_barrier_sync(), and returns whether any of the threads has set `flag`.
__device__ inline bool named_barrier_any(int id, int threads, bool flag) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred mine, all;\n"
      "setp.ne.u32 mine, %1, 0;\n"
      // order-free: an or of flags.
      "barrier.cta.red.or.pred all, %2, %3, mine;\n"
      "selp.u32 %0, 1, 0, all;\n}"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(flag)), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

/// The epilogue where columns of c are rows of logits: the operands are exchanged, so that a tile can have any multiple
/// of 32 of these rows. It has the columns of one segment.
template <typename T, typename Sum = PowerSum>
struct SumSegmentsOfTranspose : SegmentSums<T, Sum> {
  using Base = SegmentSums<T, Sum>;
  template <typename Config>
  static constexpr bool kMayStage = false;
  static constexpr bool kReadsRows = true, kCarries = false;
  /// The target column of row n + threadIdx.x of the logits, whose sum this thread writes.
  struct Rows {
    int64_t target;
  };
  template <int columns>
  __device__ Rows read_rows(int64_t, int64_t n, int64_t, int64_t n_extent) const {
    return {this->target_column(n + threadIdx.x, n_extent)};
  }

  /// A warpgroup turns the logits of columns m .. m + 63, rows n .. n + kN - 1 into exponentials. Both together add up
  /// those of the segment.
  template <typename Config>
  __device__ __forceinline__ void consume(float (&sum)[Config::kN / 2], const Rows& of_row, int64_t m, int64_t n,
                                          int64_t m_extent, int64_t n_extent) const {
    constexpr int kRows = Config::kN, kEach = kRows / 4, kLeft = kEach / 8, kWarps = 8, kThreads = kWarps * kWarp;
    static_assert(Config::kM == kSegmentColumns && kRows % 32 == 0 && kRows <= kThreads);
    __shared__ float most_of[kWarps][kRows], sum_of[kWarps][kRows];
    __shared__ float weighted_of[Base::kIsWeighted ? kWarps : 1][kRows];
    __shared__ __align__(8) float exponent_of_row[kRows];
    __shared__ int target_of_row[kRows];
    constexpr int kStaticBytes =
        sizeof(most_of) + sizeof(sum_of) + sizeof(weighted_of) + sizeof(exponent_of_row) + sizeof(target_of_row);
    static_assert(kStaticBytes + Config::kDynamicSmemBytes <= kMaxSmemBytes);
    constexpr int kBarrier = 1;
    const int thread = threadIdx.x, warp = thread / kWarp, lane = thread % kWarp, quad_lane = lane % 4;
    // Of this thread: columns `column` and column + 8 of the segment; row i / 2 * 8 + quad_lane * 2 + i % 2 of the
    // logits for each i below kEach.
    const int column = warp * 16 + lane / 4;
    const int64_t first = m - warp / 4 * 64;  // column of the logits where the segment begins
    const auto z = [&](int i, int half) -> float& { return sum[i / 2 * 4 + i % 2 + half * 2]; };
    const auto row_at = [&](int i) { return i / 2 * 8 + quad_lane * 2 + i % 2; };
    const int place = place_after_halving<kEach>();
    if (this->bias != nullptr) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t at = first + column + half * 8;
        const float more = at < m_extent ? to_float(this->bias[at]) : 0.0f;
#pragma unroll
        for (int i = 0; i < kEach; ++i) z(i, half) += more;
      }
    }
    if (first + kSegmentColumns > m_extent) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (first + column + half * 8 < m_extent) continue;
#pragma unroll
        for (int i = 0; i < kEach; ++i) z(i, half) = -INFINITY;
      }
    }

    float of_rows[kEach], weighted[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) of_rows[i] = fmaxf(z(i, 0), z(i, 1));
    halve_over_lanes(of_rows, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int i = 0; i < kLeft; ++i) most_of[warp][row_at(place + i)] = of_rows[i];
    named_barrier_sync(kBarrier, kThreads);

    float most = 0.0f;  // of row n + thread
    bool has_target = false;
    if (thread < kRows) {
      most = most_of[0][thread];
#pragma unroll
      for (int i = 1; i < kWarps; ++i) most = fmaxf(most, most_of[i][thread]);
      exponent_of_row[thread] = this->exponent_of(most);
      const int64_t target = of_row.target - first;
      has_target = this->has_column(target, m_extent - first);
      target_of_row[thread] = has_target ? static_cast<int>(target) : -1;
    }
    if (named_barrier_any(kBarrier, kThreads, has_target)) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int target = target_of_row[row_at(i)];
        if (target == column) this->target_logit[n + row_at(i)] = z(i, 0);
        if (target == column + 8) this->target_logit[n + row_at(i)] = z(i, 1);
      }
    }

#pragma unroll
    for (int i = 0; i < kEach; i += 2) {
      const auto exponents = *reinterpret_cast<const float2*>(&exponent_of_row[row_at(i)]);
      this->add_pair(z(i, 0), z(i, 1), exponents.x, of_rows[i], weighted[i]);
      this->add_pair(z(i + 1, 0), z(i + 1, 1), exponents.y, of_rows[i + 1], weighted[i + 1]);
    }
    const auto add = [](float a, float b) { return a + b; };
    halve_over_lanes(of_rows, add);
    if constexpr (Base::kIsWeighted) halve_over_lanes(weighted, add);
#pragma unroll
    for (int i = 0; i < kLeft; ++i) {
      sum_of[warp][row_at(place + i)] = of_rows[i];
      if constexpr (Base::kIsWeighted) weighted_of[warp][row_at(place + i)] = weighted[i];
    }
    named_barrier_sync(kBarrier, kThreads);
    // sum_of and weighted_of are written again only behind the first barrier of the next tile.
    const int64_t row = n + thread;
    if (thread >= kRows || row >= n_extent || first >= m_extent) return;
    const auto total = [&](const float(*of)[kRows]) {  // bit 6, which is that of the warpgroup; then bits 4 and 5
      const auto of_groups = [&](int i) { return of[i][thread] + of[i + 4][thread]; };
      return (of_groups(0) + of_groups(1)) + (of_groups(2) + of_groups(3));
    };
    float total_weighted = 0.0f;
    if constexpr (Base::kIsWeighted) total_weighted = total(weighted_of);
    this->write(first / kSegmentColumns, row, n_extent, most, total(sum_of), total_weighted);
  }
};

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

// Few rows per block, so that few rows are spread over many SMs, too. A thread adds up every kMergeParts-th segment of
// a row, and loads kMergeAhead of them at a time.
constexpr int kMergeRows = 8, kMergeThreads = 1024, kMergeParts = kMergeThreads / kMergeRows, kMergeAhead = 8;

/// The sum over the lanes whose numbers differ in the bits from `first` on.
template <typename Sum>
__device__ Sum merged_over_lanes(Sum mine, int first) {
  for (int bit = first; bit < kWarp; bit *= 2) {
    Sum other = mine;
    other.exponent = __shfl_xor_sync(kAllLanes, mine.exponent, bit);
    other.sum = __shfl_xor_sync(kAllLanes, mine.sum, bit);
    if constexpr (std::is_same_v<Sum, WeightedPowerSum>)
      other.weighted = __shfl_xor_sync(kAllLanes, mine.weighted, bit);
    mine = merged(mine, other);
  }
  return mine;
}

/// Calls finish(row, sum over the row's segments) for every row.
template <typename Sum, typename Finish>
static __global__ __launch_bounds__(kMergeThreads) void merge_power_sums(const Sum* __restrict__ sums, int64_t rows,
                                                                         int64_t n_segments, Finish finish) {
  constexpr int kWarps = kMergeThreads / kWarp;
  static_assert(kWarps == kWarp);
  __shared__ Sum of_warp[kMergeRows][kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t first_row = int64_t{blockIdx.x} * kMergeRows, row = first_row + lane % kMergeRows;
  Sum mine{};
  mine.exponent = -INFINITY;
  wait_for_kernel_before();
  for (int64_t first = threadIdx.x / kMergeRows; row < rows && first < n_segments; first += kMergeAhead * kMergeParts) {
    Sum ahead[kMergeAhead];
#pragma unroll
    for (int i = 0; i < kMergeAhead; ++i) {
      const int64_t at = first + i * kMergeParts;
      ahead[i] = {};
      ahead[i].exponent = -INFINITY;
      if (at < n_segments) ahead[i] = sums[at * rows + row];
    }
#pragma unroll
    for (int left = kMergeAhead / 2; left > 0; left /= 2) {
#pragma unroll
      for (int i = 0; i < left; ++i) ahead[i] = merged(ahead[i], ahead[i + left]);
    }
    mine = merged(mine, ahead[0]);
  }
  mine = merged_over_lanes(mine, kMergeRows);
  if (lane < kMergeRows) of_warp[lane][warp] = mine;
  __syncthreads();
  if (warp >= kMergeRows || first_row + warp >= rows) return;
  mine = merged_over_lanes(of_warp[warp][lane], 1);
  if (lane == 0) finish(first_row + warp, mine);
}

template <typename Sum, typename Finish>
cudaError_t launch_merge(const Sum* sums, int64_t rows, int64_t n_segments, const Finish& finish, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(rows, kMergeRows));
  return launch_dependent(merge_power_sums<Sum, Finish>, dim3(blocks), dim3(kMergeThreads), stream, sums, rows,
                          n_segments, finish);
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
