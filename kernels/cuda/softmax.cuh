// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA candidates of logp, ratio_kl and grpo_loss: the log-sum-exp of a row of logits in one pass, and
// the row's gradient in a second pass. One block per row.
//
// A row's bits depend only on its own values. The column and the vocabulary determine which thread takes a column, and
// in what order; the number of rows and the row's address determine only how wide the loads are.
#pragma once

#include "cuda/group.cuh"
#include "cuda/logit_transform.cuh"

namespace checkop::kernels {

// A thread takes kGroups groups of columns at a time: that many independent loads are in flight before the first exp,
// and the running maximum is compared once for all of them.
constexpr int kGroups = 4;

// 512 threads keep a thread's chain of additions short at 150k columns. Two such blocks on an SM overlap one row's
// final reduction with the next row's loads. With short rows most of these threads would idle.
constexpr int kMaxThreads = 512;
constexpr int kBlocksPerSM = 2;
inline int threads_for(int64_t vocab) { return vocab <= 1024 ? 64 : vocab <= 8192 ? 256 : kMaxThreads; }

// The backward pass reads a row twice. One big block per SM keeps few rows in progress, so that the second pass, which
// goes from the row's end to its start, finds much of the row in L2.
constexpr int kMaxBackwardThreads = 1024;
inline int backward_threads_for(int64_t vocab) { return vocab <= 8192 ? threads_for(vocab) : kMaxBackwardThreads; }

enum class Reuse { once, again };

/// Loads a whole group at a 16-byte boundary.
template <typename T, Reuse reuse>
__device__ Group<T> load_whole(const T* __restrict__ from) {
  const auto* words = reinterpret_cast<const uint4*>(from);
  return {reuse == Reuse::once ? __ldcs(words) : *words};
}

/// Loads any group, element by element; -inf beyond the row's end, which adds exactly nothing to the sum of exps.
template <typename T>
__device__ Group<T> load_ragged(const T* __restrict__ row, int64_t first, int64_t vocab) {
  Pack<T, kGroupColumns<T>> pack;
#pragma unroll
  for (int i = 0; i < kGroupColumns<T>; ++i) {
    pack.at[i] = first + i < vocab ? row[first + i] : from_float<T>(-INFINITY);
  }
  return {bit_cast<uint4>(pack)};
}

/// Loads this thread's groups of the step that begins at group `base`. One branch for the block, so that all loads of a
/// step are issued back to back.
template <typename T, Reuse reuse>
__device__ void load_step(const T* __restrict__ row, int64_t base, int64_t n_whole, int64_t vocab,
                          Group<T> (&groups)[kGroups]) {
  constexpr int kColumns = kGroupColumns<T>;
  const int64_t first = base + threadIdx.x, stride = blockDim.x;
  if (base + stride * kGroups <= n_whole) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) groups[g] = load_whole<T, reuse>(row + (first + g * stride) * kColumns);
  } else {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int64_t group = first + g * stride;
      groups[g] =
          group < n_whole ? load_whole<T, reuse>(row + group * kColumns) : load_ragged<T>(row, group * kColumns, vocab);
    }
  }
}

/// The maximum of the values that a thread has read, and the sum of exp(z - exp_shift(max)).
struct Partial {
  float max = -INFINITY, sum = 0.0f;

  /// `first`: the first column of the first group; the next one begins `step` columns later.
  template <typename T, typename Transform>
  __device__ void add(const Group<T> (&groups)[kGroups], const Transform& transform, int64_t first, int64_t step,
                      int64_t vocab) {
    float z[kGroups][kGroupColumns<T>], new_max = max;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      groups[g].unpack(z[g]);
#pragma unroll
      for (int i = 0; i < kGroupColumns<T>; ++i) {
        const bool inside = Transform::keeps_infinity || first + g * step + i < vocab;
        z[g][i] = inside ? transform.apply(z[g][i]) : -INFINITY;
        new_max = fmaxf(new_max, z[g][i]);
      }
    }
    const float shift = exp_shift(new_max);
    if (new_max > max) {  // rare after the first groups
      sum *= expf(max - shift);
      max = new_max;
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float group_sum = 0.0f;  // two levels: the chain is one group, then the number of groups
#pragma unroll
      for (int i = 0; i < kGroupColumns<T>; ++i) group_sum += expf(z[g][i] - shift);
      sum += group_sum;
    }
  }
};

/// Maximum and sum of exp(z - exp_shift(max)) of a row, in every thread. All threads of the block must call, with a
/// barrier between two calls, because both use the same shared memory.
template <typename T, Reuse reuse, typename Transform = NoTransform>
__device__ Partial reduce_row(const T* __restrict__ row, int64_t vocab, const Transform& transform = {}) {
  __shared__ float max_per_warp[kWarp], sum_per_warp[kWarp];
  constexpr int kColumns = kGroupColumns<T>;
  const int64_t n_groups = ceil_div(vocab, kColumns);
  const int64_t n_whole = is_aligned(row) ? vocab / kColumns : 0;
  Partial mine;
  Group<T> groups[kGroups];
  for (int64_t base = 0; base < n_groups; base += int64_t{blockDim.x} * kGroups) {
    load_step<T, reuse>(row, base, n_whole, vocab, groups);
    mine.add<T>(groups, transform, (base + threadIdx.x) * kColumns, int64_t{blockDim.x} * kColumns, vocab);
  }
  const float max = block_max(mine.max, max_per_warp);
  const float sum = block_sum(mine.sum * expf(mine.max - exp_shift(max)), sum_per_warp);
  return {max, sum};
}

/// dx = grad*(onehot(target) - softmax(z)) dz/dx of one row of logits x, which the transform makes z, where `total` is
/// the result of reduce_row(). Reads the row from its end to its start. p = exp(z - max)/sum, not exp(z - lse): a large
/// lse would be rounded.
template <typename T, typename Transform = NoTransform>
__device__ void write_gradient(const T* __restrict__ x, int64_t vocab, const Partial& total, float grad, int64_t target,
                               T* __restrict__ dx, const Transform& transform = {}) {
  constexpr int kColumns = kGroupColumns<T>;
  const float shift = exp_shift(total.max), scale = 1.0f / total.sum;
  const int64_t n_groups = ceil_div(vocab, kColumns);
  const int64_t n_whole = is_aligned(x) && is_aligned(dx) ? vocab / kColumns : 0;
  const int64_t step = int64_t{blockDim.x} * kGroups;
  Group<T> groups[kGroups];
  for (int64_t base = (n_groups - 1) / step * step; base >= 0; base -= step) {
    load_step<T, Reuse::once>(x, base, n_whole, vocab, groups);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int64_t group = base + g * int64_t{blockDim.x} + threadIdx.x, first = group * kColumns;
      float value[kColumns], slope[kColumns];
      groups[g].unpack(value);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        slope[i] = transform.slope(value[i]);
        value[i] = expf(transform.apply(value[i]) - shift) * scale;
      }
      // Computed once per group: a comparison per column would cost as much as the exp
      const int64_t target_in_group = target - first;
      if (target_in_group >= 0 && target_in_group < kColumns) {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          if (i == target_in_group) value[i] -= 1.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < kColumns; ++i) value[i] = value[i] * -grad * slope[i];
      if (group < n_whole) {  // streaming store: dx is not read here, so L2 is left to the logits
        __stcs(reinterpret_cast<uint4*>(dx + first), Group<T>::packed(value).bits);
      } else {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          if (first + i < vocab) dx[first + i] = from_float<T>(value[i]);
        }
      }
    }
  }
}

/// Writes zeros for an ignored row without reading anything of it.
template <typename T>
__device__ void write_zeros(T* __restrict__ row, int64_t vocab) {
  constexpr int kColumns = kGroupColumns<T>;
  const int64_t n_whole = is_aligned(row) ? vocab / kColumns : 0;
  for (int64_t group = threadIdx.x; group < n_whole; group += blockDim.x) {
    __stcs(reinterpret_cast<uint4*>(row + group * kColumns), uint4{0, 0, 0, 0});
  }
  for (int64_t v = n_whole * kColumns + threadIdx.x; v < vocab; v += blockDim.x) row[v] = from_float<T>(0.0f);
}

}  // namespace checkop::kernels
