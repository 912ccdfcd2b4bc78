// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA candidates of operators on rows of logits: the log-sum-exp of a row in one pass, and the row's
// gradient in a second pass. One block per row.
//
// A row's bits depend only on its own values. The column and the vocabulary determine which thread takes a column, and
// in what order; the number of rows and the row's address determine only how wide the loads are.
#pragma once

#include "cuda/group.cuh"
#include "cuda/logit_transform.cuh"
#include "cuda/ring.cuh"

namespace checkop::kernels {

// A thread takes kGroups groups of columns at a time: that many independent loads are in flight before the first exp,
// and the running maximum is compared once for all of them.
constexpr int kGroups = 4;

// A step is 8192 columns in 16 bits: of a row's last step little is idle, whatever the vocabulary. Four such blocks on
// an SM overlap one row's final reduction with the other rows' loads. With short rows most threads would idle.
constexpr int kMaxThreads = 256;
constexpr int kBlocksPerSM = 4;
inline int threads_for(int64_t vocab) { return vocab <= 1024 ? 64 : kMaxThreads; }

// The backward pass reads a row twice. A big block has three quarters of a row of 128k columns in 16 bits in shared
// memory when the second pass begins; few rows in progress leave the rest in L2.
constexpr int kMaxBackwardThreads = 1024;
inline int backward_threads_for(int64_t vocab) { return vocab <= 49152 ? threads_for(vocab) : kMaxBackwardThreads; }

// Slots of a step each: four blocks of 256 threads, or one of 1024, have 192 KiB on an SM.
constexpr int kStepSlots = 3;
using StepRing = GroupRing<kGroups>;

/// Launches a kernel of one block per row, whose last parameter is the number of slots of its StepRing.
template <typename T, bool starts_early = false, typename... Parameters, typename... Arguments>
cudaError_t launch_rows(void (*kernel)(Parameters...), int64_t rows, int threads, int64_t vocab, cudaStream_t stream,
                        const Arguments&... arguments) {
  const int64_t steps = ceil_div(vocab, int64_t{threads} * kGroups * kGroupColumns<T>);
  return launch_with_ring<kGroups, starts_early>(kernel, rows, threads, std::min<int64_t>(steps, kStepSlots), stream,
                                                 arguments...);
}

constexpr float kLog2e = 1.4426950408889634f;
/// 2^x within 2 ulp; 0 if that is below 2^-126.
__device__ inline float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// exp(x) for x <= 0, as exact as a sum of exponentials of T needs. In 16 bits: one multiplication and ex2, whose
/// results below 2^-126 are 0. expf takes twice the instructions and would set the pace.
template <typename T>
__device__ float exp_in_sum(float x) {
  if constexpr (sizeof(T) == 4) return expf(x);
  return ex2(x * kLog2e);
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

/// Divides a row into steps. In a step a thread takes kGroups groups that lie blockDim.x groups apart. Whole groups of
/// an aligned row come through the ring; other groups are loaded when they are needed.
template <typename T>
class RowSteps {
 public:
  static constexpr int kColumns = kGroupColumns<T>;

  __device__ RowSteps(const T* row, int64_t vocab)
      : row_(row), vocab_(vocab), n_whole_(is_aligned(row) ? vocab / kColumns : 0) {}
  __device__ int64_t vocab() const { return vocab_; }
  __device__ int64_t count() const { return ceil_div(vocab_, int64_t{blockDim.x} * kGroups * kColumns); }
  /// The thread's group g in a step; columns from group * kColumns on.
  __device__ static int64_t group(int64_t step, int g) { return (step * kGroups + g) * blockDim.x + threadIdx.x; }

  __device__ void fetch(const StepRing& ring, int64_t step) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (group(step, g) < n_whole_) cp_async(ring.at(g), row_ + group(step, g) * kColumns, sizeof(uint4));
    }
  }
  __device__ void read(const StepRing& ring, int64_t step, Group<T> (&groups)[kGroups]) const {
    ring.wait();
    if ((step + 1) * kGroups * blockDim.x <= n_whole_) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) groups[g] = {*ring.at(g)};
    } else {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int64_t at = group(step, g);
        groups[g] = at < n_whole_ ? Group<T>{*ring.at(g)} : load_ragged<T>(row_, at * kColumns, vocab_);
      }
    }
  }

 private:
  const T* row_;
  int64_t vocab_, n_whole_;
};

/// Calls f(groups, step) for the steps of a row in ascending order. `fetched`: the ring already holds the row's first
/// steps. At the end the ring holds the first steps of the row `next` if one is given, otherwise the last steps of this
/// row.
template <typename T, typename F>
__device__ void for_each_step(StepRing& ring, const RowSteps<T>& row, F&& f, bool fetched = false,
                              const RowSteps<T>* next = nullptr) {
  const int64_t count = row.count(), slots = ring.slots();
  for (int64_t s = 0; s < slots && !fetched; ++s) {
    row.fetch(ring, s);
    ring.advance();
  }
  for (int64_t s = 0; s < count; ++s) {
    Group<T> groups[kGroups];
    row.read(ring, s, groups);
    f(groups, s);
    if (s + slots < count) {
      row.fetch(ring, s + slots);
    } else if (next != nullptr) {
      next->fetch(ring, s + slots - count);
    }
    ring.advance();
  }
}

/// The same for a row whose last steps are in the ring. These come first, then the other steps in descending order,
/// because the steps that were read last are still in L2.
template <typename T, typename F>
__device__ void for_each_step_again(StepRing& ring, const RowSteps<T>& row, F&& f) {
  const int64_t count = row.count(), slots = ring.slots();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t s = i < slots ? count - slots + i : count - 1 - i;
    Group<T> groups[kGroups];
    row.read(ring, s, groups);
    f(groups, s);
    if (i + slots < count) row.fetch(ring, count - 1 - (i + slots));
    ring.advance();
  }
}

/// Fetches a row's last steps, as for_each_step() leaves them.
template <typename T>
__device__ void fetch_last_steps(StepRing& ring, const RowSteps<T>& row) {
  for (int64_t s = row.count() - ring.slots(); s < row.count(); ++s) {
    row.fetch(ring, s);
    ring.advance();
  }
}

/// The maximum of the values that a thread has read, and the sum of exp(z - exp_shift(max)).
struct Partial {
  float max = -INFINITY, sum = 0.0f;

  /// `first`: the first column of the first group; the next one begins `step` columns later.
  template <typename T, typename Transform>
  __device__ void add(const Group<T> (&groups)[kGroups], const Transform& transform, int64_t first, int64_t step,
                      int64_t vocab) {
    constexpr bool kInPairs = sizeof(T) == 2 && std::is_same_v<Transform, NoTransform>;
    float z[kGroups][kGroupColumns<T>], new_max = max;
    if constexpr (kInPairs) new_max = fmaxf(new_max, max_of_pairs(groups));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      groups[g].unpack(z[g]);
#pragma unroll
      for (int i = 0; i < kGroupColumns<T>; ++i) {
        const bool inside = Transform::keeps_infinity || first + g * step + i < vocab;
        z[g][i] = inside ? transform.apply(z[g][i]) : -INFINITY;
        if constexpr (!kInPairs) new_max = fmaxf(new_max, z[g][i]);
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
      for (int i = 0; i < kGroupColumns<T>; ++i) group_sum += exp_in_sum<T>(z[g][i] - shift);
      sum += group_sum;
    }
  }
};

/// Maximum and sum of exp(z - exp_shift(max)) of a row, in every thread. All threads of the block must call, with a
/// barrier between two calls, because both use the same shared memory. For `fetched` and `next` see for_each_step().
template <typename T, typename Transform = NoTransform>
__device__ Partial reduce_row(StepRing& ring, const RowSteps<T>& row, const Transform& transform = {},
                              bool fetched = false, const RowSteps<T>* next = nullptr) {
  __shared__ float max_per_warp[kWarp], sum_per_warp[kWarp];
  constexpr int kColumns = kGroupColumns<T>;
  Partial mine;
  for_each_step(
      ring, row,
      [&](const Group<T>(&groups)[kGroups], int64_t step) {
        mine.add<T>(groups, transform, row.group(step, 0) * kColumns, int64_t{blockDim.x} * kColumns, row.vocab());
      },
      fetched, next);
  const float max = block_max(mine.max, max_per_warp);
  const float sum = block_sum(mine.sum * expf(mine.max - exp_shift(max)), sum_per_warp);
  return {max, sum};
}

/// dx = grad*(onehot(target) - softmax(z)) dz/dx for one row of logits x, with z = transform(x), group by group.
/// p = exp(z - max)/sum, not exp(z - lse): a large lse would be rounded. `Index` counts columns: 32 bits take half of
/// the instructions where a row, or the part of one that a block has, is short enough.
template <typename T, typename Transform, typename Index = int64_t>
class RowGradient {
 public:
  static constexpr int kColumns = kGroupColumns<T>;

  __device__ RowGradient(const Partial& total, float grad, Index target, Index vocab, T* __restrict__ dx,
                         const Transform& transform)
      : shift_(exp_shift(total.max)),
        scale_(1.0f / total.sum),
        minus_grad_(minus(grad)),
        target_(target),
        vocab_(vocab),
        n_whole_(is_aligned(dx) ? vocab / kColumns : 0),
        dx_(dx),
        transform_(transform) {}

  /// `group`: its number in the row.
  __device__ void write(const Group<T>& logits, Index group) const {
    const Index first = group * kColumns;
    float x[kColumns], p[kColumns];
    probabilities(logits, x, p);
    // Computed once per group: a comparison per column would cost as much as the exp
    const Index target_in_group = target_ - first;
    if (target_in_group >= 0 && target_in_group < kColumns) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {  // exactly, because the difference may be small
        if (i == target_in_group) p[i] = expf(transform_.apply(x[i]) - shift_) * scale_ - 1.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) p[i] = p[i] * minus_grad_ * transform_.slope(x[i]);
    if (group < n_whole_) {
      store(first, p);
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (first + i < vocab_) dx_[first + i] = from_float<T>(p[i]);
      }
    }
  }

  bool __device__ all_are_whole() const { return n_whole_ * kColumns == vocab_; }
  /// The same in fewer instructions for a whole group that does not contain the target.
  __device__ void write_whole(const Group<T>& logits, Index group) const {
    float x[kColumns], p[kColumns];
    probabilities(logits, x, p);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) p[i] = p[i] * minus_grad_ * transform_.slope(x[i]);
    store(group * kColumns, p);
  }

 private:
  __device__ void probabilities(const Group<T>& logits, float (&x)[kColumns], float (&p)[kColumns]) const {
    // In 16 bits exponentials are 2^24 times too large: their smallest ones are normal numbers, which ex2 keeps
    constexpr float kExponent = sizeof(T) == 4 ? 0.0f : 24.0f;
    const float scale_down = sizeof(T) == 4 ? scale_ : scale_ * 0x1p-24f;
    logits.unpack(x);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float below = transform_.apply(x[i]) - shift_;
      p[i] = (sizeof(T) == 4 ? expf(below) : ex2(fmaf(below, kLog2e, kExponent))) * scale_down;
    }
  }
  /// A streaming store: dx is not read here, so L2 is left to the logits.
  __device__ void store(Index first, const float (&values)[kColumns]) const {
    __stcs(reinterpret_cast<uint4*>(dx_ + first), Group<T>::packed(values).bits);
  }
  /// Opaque: the compiler would negate each product instead.
  __device__ static float minus(float x) {
    float y;
    asm("neg.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }

  float shift_, scale_, minus_grad_;
  Index target_, vocab_, n_whole_;
  T* __restrict__ dx_;
  const Transform& transform_;
};

/// The gradient of one row. `total` is the result of reduce_row(), which must have run last: the ring still holds its
/// last steps.
template <typename T, typename Transform = NoTransform>
__device__ void write_gradient(StepRing& ring, const RowSteps<T>& row, const Partial& total, float grad, int64_t target,
                               T* __restrict__ dx, const Transform& transform = {}) {
  const RowGradient<T, Transform> gradient(total, grad, target, row.vocab(), dx, transform);
  for_each_step_again(ring, row, [&](const Group<T>(&groups)[kGroups], int64_t step) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) gradient.write(groups[g], row.group(step, g));
  });
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
