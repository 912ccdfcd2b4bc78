// SPDX-License-Identifier: Apache-2.0
// logp with top_k or top_p: which logits of a row stay, and the softmax of these. A block per row, which it reads from
// L2 once for each digit of the rank of the last column that stays.
//
// Sums that decide are sums of integers, in any order: counts, and exponentials in units of 2^-40. So the set, and with
// it every bit, depends on the row alone.
#pragma once

#include "cuda/logit_transform.cuh"

namespace checkop::kernels {

constexpr int kTruncationThreads = 512;

struct TruncationAttributes {
  int64_t top_k = 0;
  double top_p = 1;
  bool keep_target = false;

  bool is_none() const { return top_k == 0 && top_p == 1; }
};

inline checkop_status read_truncation(const checkop_call* call, TruncationAttributes& truncation) {
  double top_k = 0, top_p = 0, keep_target = 0;
  if (auto status = read_attribute(call, "top_k", top_k)) return status;
  if (auto status = read_attribute(call, "top_p", top_p)) return status;
  if (auto status = read_attribute(call, "keep_target", keep_target)) return status;
  truncation = {static_cast<int64_t>(top_k), top_p, keep_target != 0};
  return CHECKOP_OK;
}

/// The rank of a column as a number, distinct in a row: larger for larger logits, of equal ones for the lower column.
/// NaN comes last. Columns are below 2^31.
__device__ inline uint64_t rank_of(float x, int64_t column) {
  uint32_t bits = __float_as_uint(x == 0.0f ? 0.0f : x);
  bits = isnan(x) ? 0u : (bits >> 31) != 0u ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(bits) << 32 | (0xffffffffu - static_cast<uint32_t>(column));
}

/// The smallest rank in a row such that the weights of all columns with this rank or a larger one add up to `goal` at
/// least, which all of them do. Every thread gets it. weight(column, rank) is an integer.
template <class Rank, class Weight>
__device__ uint64_t find_rank(int64_t vocab, uint64_t goal, const Rank& rank, const Weight& weight) {
  __shared__ unsigned long long sums[256];
  __shared__ unsigned long long found[2];  // the digit, and the weight above it
  uint64_t prefix = 0, above = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) sums[i] = 0;
    __syncthreads();
    for (int64_t column = threadIdx.x; column < vocab; column += blockDim.x) {
      const uint64_t own = rank(column);
      if (shift < 56 && own >> (shift + 8) != prefix) continue;
      const uint64_t w = weight(column, own);
      // order-free: a sum of integers
      if (w != 0) atomicAdd(&sums[own >> shift & 255u], static_cast<unsigned long long>(w));
    }
    __syncthreads();
    if (threadIdx.x < kWarp) {  // lane l has digits 8 l ... 8 l + 7; lanes above it come first
      const int lane = threadIdx.x;
      uint64_t own = 0;
      for (int i = 0; i < 8; ++i) own += sums[8 * lane + i];
      uint64_t larger = 0;  // of all lanes above
      for (int other = kWarp - 1; other > 0; --other) {
        const uint64_t theirs = __shfl_sync(kAllLanes, own, other);
        if (other > lane) larger += theirs;
      }
      uint64_t sum = above + larger;
      for (int i = 7; i >= 0; --i) {
        const uint64_t with = sum + sums[8 * lane + i];
        if (sum < goal && with >= goal) found[0] = 8 * lane + i, found[1] = sum;
        sum = with;
      }
    }
    __syncthreads();
    prefix = prefix << 8 | found[0];
    above = found[1];
  }
  return prefix;
}

/// A row of which only some columns stay.
template <typename T, typename Transform>
struct TruncatedRow {
  const T* __restrict__ x;
  int64_t vocab, target;
  const Transform& transform;
  bool keep_target;
  uint64_t least = 0;  ///< rank of the last column that stays
  float max = 0.0f;    ///< of the transformed logits

  __device__ float z(int64_t column) const { return transform.apply(to_float(x[column])); }
  __device__ uint64_t rank(int64_t column) const { return rank_of(to_float(x[column]), column); }
  __device__ bool stays(int64_t column) const { return rank(column) >= least || (keep_target && column == target); }

  /// Finds `least` and `max`. `shared` holds 32 floats.
  __device__ void truncate(const TruncationAttributes& a, float* shared) {
    float own = -INFINITY;
    for (int64_t column = threadIdx.x; column < vocab; column += blockDim.x) own = fmaxf(own, z(column));
    max = block_max(own, shared);
    __syncthreads();
    const auto rank_at = [this](int64_t column) { return rank(column); };
    if (a.top_k > 0 && a.top_k < vocab)
      least = find_rank(vocab, static_cast<uint64_t>(a.top_k), rank_at, [](int64_t, uint64_t) { return uint64_t{1}; });
    if (a.top_p >= 1 || isinf(max)) return;
    const auto weight = [this](int64_t column, uint64_t rank) {
      return rank >= least ? static_cast<uint64_t>(expf(z(column) - max) * 0x1p40f) : uint64_t{0};
    };
    __shared__ unsigned long long total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    uint64_t part = 0;
    for (int64_t column = threadIdx.x; column < vocab; column += blockDim.x) part += weight(column, rank(column));
    atomicAdd(&total, static_cast<unsigned long long>(part));  // order-free: a sum of integers
    __syncthreads();
    const auto goal = static_cast<uint64_t>(ceil(a.top_p * static_cast<double>(total)));
    least = find_rank(vocab, goal > 0 ? goal : 1, rank_at, weight);
  }

  /// The sum of exp(z - max) of columns that stay, in every thread.
  __device__ float sum(float* shared) const {
    constexpr int kRun = 16;  // two levels: the chain is a run, then the number of runs
    float total = 0.0f;
    for (int64_t first = threadIdx.x; first < vocab; first += int64_t{kRun} * blockDim.x) {
      float run = 0.0f;
      for (int i = 0; i < kRun; ++i) {
        const int64_t column = first + int64_t{i} * blockDim.x;
        if (column < vocab && stays(column)) run += expf(z(column) - max);
      }
      total += run;
    }
    return block_sum(total, shared);
  }
};

template <typename T, typename Transform>
__global__ __launch_bounds__(kTruncationThreads) void truncated_logp_forward(
    const T* __restrict__ logits, const int64_t* __restrict__ token_ids, int64_t ignored, int64_t vocab,
    Transform transform, TruncationAttributes truncation, float* __restrict__ logp) {
  __shared__ float for_max[kWarp], for_sum[kWarp];
  const int64_t row = blockIdx.x, target = token_ids[row];
  if (target == ignored) {  // the same for the whole block
    if (threadIdx.x == 0) logp[row] = 0.0f;
    return;
  }
  if (target < 0 || target >= vocab) return;  // IdCheck refuses it
  TruncatedRow<T, Transform> x{logits + row * vocab, vocab, target, transform, truncation.keep_target};
  x.truncate(truncation, for_max);
  const float sum = x.sum(for_sum);
  if (threadIdx.x == 0) logp[row] = x.stays(target) ? (x.z(target) - x.max) - logf(sum) : -INFINITY;
}

template <typename T, typename Transform>
__global__ __launch_bounds__(kTruncationThreads) void truncated_logp_backward(
    const T* __restrict__ logits, const int64_t* __restrict__ token_ids, const float* __restrict__ grad_logp,
    int64_t ignored, int64_t vocab, Transform transform, TruncationAttributes truncation, T* __restrict__ dlogits) {
  __shared__ float for_max[kWarp], for_sum[kWarp];
  const int64_t row = blockIdx.x, target = token_ids[row];
  if (target != ignored && (target < 0 || target >= vocab)) return;  // IdCheck refuses it
  TruncatedRow<T, Transform> x{logits + row * vocab, vocab, target, transform, truncation.keep_target};
  float sum = 1.0f;
  bool counts = target != ignored;  // the same for the whole block
  if (counts) {
    x.truncate(truncation, for_max);
    sum = x.sum(for_sum);
    counts = x.stays(target);
  }
  const float g = counts ? grad_logp[row] : 0.0f;
  for (int64_t column = threadIdx.x; column < vocab; column += blockDim.x) {
    float d = 0.0f;
    if (counts && x.stays(column)) {
      const float p = expf(x.z(column) - x.max) / sum;
      d = (column == target ? g * (1.0f - p) : -g * p) * transform.slope(to_float(x.x[column]));
    }
    dlogits[row * vocab + column] = from_float<T>(d);
  }
}

}  // namespace checkop::kernels
