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
using StepRing = GroupRing<kGroups, kGroups>;

constexpr int64_t kMostVocab = int64_t{1} << 30;  // columns are counted in 32 bits, also those of steps beyond the end

/// Refuses a tensor of more rows than a grid has blocks, or of longer rows than are counted. `name`: the tensor's.
inline checkop_status check_rows(const checkop_call* call, const char* name, int64_t rows, int64_t vocab) {
  if (rows > std::numeric_limits<int32_t>::max()) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor '%s': %lld rows, at most 2147483647 are supported", name,
               static_cast<long long>(rows));
  }
  if (vocab > kMostVocab) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor '%s': %lld columns, at most %lld are supported", name,
               static_cast<long long>(vocab), static_cast<long long>(kMostVocab));
  }
  return CHECKOP_OK;
}

/// Launches a kernel of one block per row, whose last parameter is the number of slots of its StepRing.
template <typename T, bool starts_early = false, typename... Parameters, typename... Arguments>
cudaError_t launch_rows(void (*kernel)(Parameters...), int64_t rows, int threads, int64_t vocab, cudaStream_t stream,
                        const Arguments&... arguments) {
  const int64_t steps = ceil_div(vocab, int64_t{threads} * kGroups * kGroupColumns<T>);
  return launch_with_ring<kGroups, starts_early, kGroups>(kernel, rows, threads, std::min<int64_t>(steps, kStepSlots),
                                                          stream, arguments...);
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

/// Loads any group, element by element; -inf outside of the row, which adds exactly nothing to the sum of exps.
template <typename T>
__device__ Group<T> load_ragged(const T* __restrict__ row, int first, int vocab) {
  Pack<T, kGroupColumns<T>> pack;
#pragma unroll
  for (int i = 0; i < kGroupColumns<T>; ++i) {
    pack.at[i] = first + i >= 0 && first + i < vocab ? row[first + i] : from_float<T>(-INFINITY);
  }
  return {bit_cast<uint4>(pack)};
}

template <typename T>
__device__ Group<T> no_columns() {
  return load_ragged<T>(nullptr, 0, 0);
}

/// Divides a row into steps, and into vectors of 16 bytes at 16-byte boundaries. In a step a thread takes kGroups
/// groups, or vectors, blockDim.x apart. Vectors that lie in the row come through the ring; what lies at its ends is
/// loaded apart. `skewed`: the row may begin anywhere, and its groups are put together from two vectors. Other rows
/// begin at a 16-byte boundary.
template <typename T, bool skewed>
class RowSteps {
 public:
  static constexpr int kColumns = kGroupColumns<T>;

  /// vocab: at most kMostVocab. place: in a line (ring.cuh) where the row's vectors begin in the ring's slots.
  __device__ RowSteps(const T* row, int64_t vocab, int place)
      : row_(row),
        vocab_(static_cast<int>(vocab)),
        skew_(skew_of(row)),
        n_vectors_((skew() + vocab_) / kColumns),
        place_(place) {}
  __device__ int vocab() const { return vocab_; }
  /// Vector 0 begins this many columns before the row.
  __device__ int skew() const { return skewed ? skew_ : 0; }
  /// The number of steps that cover all vectors.
  __device__ int count() const {
    const int columns = static_cast<int>(blockDim.x) * kGroups * kColumns;
    return (skew() + vocab_ + columns - 1) / columns;
  }
  /// The number of the thread's group g, or vector g, in a step.
  __device__ static int at(int step, int g) {
    return (step * kGroups + g) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  }

  __device__ void fetch(const StepRing& ring, int step) const {
    const T* vectors = row_ - skew();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int own = at(step, g);
      if (is_in_row(own)) cp_async(ring.at(g) + place_, vectors + int64_t{own} * kColumns, sizeof(uint4));
    }
    if constexpr (skewed) {
      if (!is_last_lane()) return;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {  // what follows the vectors of the warp
        const int next = at(step, g) + 1;
        if (next < n_vectors_) cp_async(ring.at_of_warp(g) + place_, vectors + int64_t{next} * kColumns, sizeof(uint4));
      }
    }
  }
  /// Loads the groups at the ends of a skewed row. Each is read() by the thread that loads it.
  __device__ void fetch_ends() const {
    if constexpr (skewed) {
      const auto threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
      if (thread == 0) keep_end(0);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int group = n_groups() - 1 - k;
        if (group > 0 && group % threads == thread) keep_end(group);
      }
    }
  }
  __device__ void read(const StepRing& ring, int step, Group<T> (&groups)[kGroups]) const {
    if constexpr (skewed) {
      ring.wait();
      read_skewed(ring, groups);
      if (is_inside(step)) return;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int own = at(step, g);
        if (own > 0 && own + 1 < n_vectors_) continue;
        groups[g] = own < n_groups() ? Group<T>{end(own)} : no_columns<T>();
      }
    } else {
      read_vectors(ring, step, groups);
    }
  }
  /// The vectors of a step. What lies outside of the row is -inf.
  __device__ void read_vectors(const StepRing& ring, int step, Group<T> (&vectors)[kGroups]) const {
    ring.wait();
    if (is_inside(step)) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) vectors[g] = {ring.at(g)[place_]};
    } else {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int own = at(step, g);
        vectors[g] =
            is_in_row(own) ? Group<T>{ring.at(g)[place_]} : load_ragged<T>(row_, own * kColumns - skew(), vocab_);
      }
    }
  }

 private:
  __device__ int n_groups() const { return (vocab_ + kColumns - 1) / kColumns; }
  __device__ bool is_in_row(int vector) const { return vector < n_vectors_ && (!skewed || vector > 0); }
  /// Whether the vectors of all threads in a step, and those that follow them in a skewed row, lie in the row.
  __device__ bool is_inside(int step) const {
    const int end = (step + 1) * kGroups * static_cast<int>(blockDim.x);
    return skewed ? step > 0 && end < n_vectors_ : end <= n_vectors_;
  }
  __device__ static bool is_last_lane() { return threadIdx.x % kWarp == kWarp - 1; }
  /// The place of a group at the row's ends: the first one, or one of the last two.
  __device__ uint4& end(int group) const {
    __shared__ uint4 ends[3];
    return ends[group == 0 ? 0 : n_groups() - group];
  }
  __device__ void keep_end(int group) const { end(group) = load_ragged<T>(row_, group * kColumns, vocab_).bits; }
  /// All lanes of a warp call it: the second vector of a group is the next lane's.
  __device__ void read_skewed(const StepRing& ring, Group<T> (&groups)[kGroups]) const {
    uint4 low[kGroups], high[kGroups];
    __syncwarp();  // the copies of the other lanes are there
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      low[g] = ring.at(g)[place_];
      high[g] = (is_last_lane() ? ring.at_of_warp(g) : ring.at(g) + 1)[place_];
    }
    __syncwarp();  // before the slot is filled again
    shift_groups(low, high, skew(), groups);
  }

  const T* row_;
  int vocab_, skew_, n_vectors_, place_;  // n_vectors_: those that end in the row
};

/// f(steps...) with the RowSteps of each of `rows`, which are skewed for all of them or for none. All have the place of
/// the first one in the ring, so that a thread never writes where another one still reads a row before.
template <typename F, typename T, typename... Rows>
__device__ auto with_steps(int64_t vocab, F&& f, const T* row, const Rows*... rows) {
  const int place = place_in_line(row);
  if (is_aligned(row) && (is_aligned(rows) && ...)) {
    return f(RowSteps<T, false>(row, vocab, place), RowSteps<Rows, false>(rows, vocab, place)...);
  }
  return f(RowSteps<T, true>(row, vocab, place), RowSteps<Rows, true>(rows, vocab, place)...);
}

/// Calls f(groups, step) for the steps of a row in ascending order. `fetched`: the ring already holds the row's first
/// steps. At the end the ring holds the first steps of the row `next` if one is given, otherwise the last steps of this
/// row.
template <typename T, bool skewed, typename F>
__device__ void for_each_step(StepRing& ring, const RowSteps<T, skewed>& row, F&& f, bool fetched = false,
                              const RowSteps<T, skewed>* next = nullptr) {
  const int count = row.count(), slots = ring.slots();
  for (int s = 0; s < slots && !fetched; ++s) {
    row.fetch(ring, s);
    ring.advance();
  }
  row.fetch_ends();
  for (int s = 0; s < count; ++s) {
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

/// Calls f(vectors, step) for the steps of a row whose last steps are in the ring. These come first, then the other
/// steps in descending order, because the steps that were read last are still in L2.
template <typename T, bool skewed, typename F>
__device__ void for_each_step_again(StepRing& ring, const RowSteps<T, skewed>& row, F&& f) {
  const int count = row.count(), slots = ring.slots();
  for (int i = 0; i < count; ++i) {
    const int s = i < slots ? count - slots + i : count - 1 - i;
    Group<T> vectors[kGroups];
    row.read_vectors(ring, s, vectors);
    f(vectors, s);
    if (i + slots < count) row.fetch(ring, count - 1 - (i + slots));
    ring.advance();
  }
}

/// Fetches a row's last steps, as for_each_step() leaves them.
template <typename T, bool skewed>
__device__ void fetch_last_steps(StepRing& ring, const RowSteps<T, skewed>& row) {
  for (int s = row.count() - ring.slots(); s < row.count(); ++s) {
    row.fetch(ring, s);
    ring.advance();
  }
}

/// The maximum of the values that a thread has read, and the sum of exp(z - exp_shift(max)).
struct Partial {
  float max = -INFINITY, sum = 0.0f;

  /// `first`: the first column of the first group; the next one begins `step` columns later.
  template <typename T, typename Transform>
  __device__ void add(const Group<T> (&groups)[kGroups], const Transform& transform, int first, int step, int vocab) {
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
template <typename T, bool skewed, typename Transform = NoTransform>
__device__ Partial reduce_row(StepRing& ring, const RowSteps<T, skewed>& row, const Transform& transform = {},
                              bool fetched = false, const RowSteps<T, skewed>* next = nullptr) {
  __shared__ float max_per_warp[kWarp], sum_per_warp[kWarp];
  constexpr int kColumns = kGroupColumns<T>;
  Partial mine;
  for_each_step(
      ring, row,
      [&](const Group<T>(&groups)[kGroups], int step) {
        mine.add<T>(groups, transform, row.at(step, 0) * kColumns, static_cast<int>(blockDim.x) * kColumns,
                    row.vocab());
      },
      fetched, next);
  const float max = block_max(mine.max, max_per_warp);
  const float sum = block_sum(mine.sum * expf(mine.max - exp_shift(max)), sum_per_warp);
  return {max, sum};
}

/// dx = grad*(onehot(target) - softmax(z)) dz/dx for one row of logits x, with z = transform(x), vector by vector.
/// p = exp(z - max)/sum, not exp(z - lse): a large lse would be rounded.
template <typename T, typename Transform>
class RowGradient {
 public:
  static constexpr int kColumns = kGroupColumns<T>;

  /// `skew`: vector 0 of the logits begins so many columns before the row. Vectors of dx that begin at 16-byte
  /// boundaries, as those of the logits do if both have the same skew, are stored as such.
  __device__ RowGradient(const Partial& total, float grad, int64_t target, int vocab, T* __restrict__ dx, int skew,
                         const Transform& transform)
      : shift_(exp_shift(total.max)),
        scale_(1.0f / total.sum),
        minus_grad_(minus(grad)),
        skew_(skew),
        vocab_(vocab),
        begin_(skew == 0 ? 0 : 1),
        end_(skew_of(dx) == skew ? max(begin_, (skew + vocab) / kColumns) : begin_),
        target_(target >= 0 && target < vocab ? static_cast<int>(target) + skew : -kColumns),
        vectors_(dx - skew),
        transform_(transform) {}

  /// The vectors [begin, end) lie in the row and can be stored as such; the one with the target, -1 if there is none.
  __device__ int begin() const { return begin_; }
  __device__ int end() const { return end_; }
  __device__ int target_vector() const { return target_ / kColumns; }

  __device__ void write(const Group<T>& logits, int vector) const {
    float x[kColumns], p[kColumns];
    probabilities(logits, x, p);
    // Computed once per vector: a comparison per column would cost as much as the exp
    const int target_in_vector = target_ - vector * kColumns;
    if (target_in_vector >= 0 && target_in_vector < kColumns) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {  // exactly, because the difference may be small
        if (i == target_in_vector) p[i] = expf(transform_.apply(x[i]) - shift_) * scale_ - 1.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) p[i] = p[i] * minus_grad_ * transform_.slope(x[i]);
    if (static_cast<unsigned>(vector - begin_) < static_cast<unsigned>(end_ - begin_)) {
      store(vector, p);
    } else {
      const int first = vector * kColumns;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (first + i >= skew_ && first + i < skew_ + vocab_) vectors_[first + i] = from_float<T>(p[i]);
      }
    }
  }

  /// The same in fewer instructions for one of [begin, end) without the target.
  __device__ void write_whole(const Group<T>& logits, int vector) const {
    float x[kColumns], p[kColumns];
    probabilities(logits, x, p);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) p[i] = p[i] * minus_grad_ * transform_.slope(x[i]);
    store(vector, p);
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
  __device__ void store(int vector, const float (&values)[kColumns]) const {
    __stcs(reinterpret_cast<uint4*>(vectors_ + int64_t{vector} * kColumns), Group<T>::packed(values).bits);
  }
  /// Opaque: the compiler would negate each product instead.
  __device__ static float minus(float x) {
    float y;
    asm("neg.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }

  float shift_, scale_, minus_grad_;
  int skew_, vocab_, begin_, end_, target_;  // target_: counted from the first column of vector 0
  T* __restrict__ vectors_;
  const Transform& transform_;
};

/// The gradient of one row. `total` is the result of reduce_row(), which must have run last: the ring still holds its
/// last steps.
template <typename T, bool skewed, typename Transform = NoTransform>
__device__ void write_gradient(StepRing& ring, const RowSteps<T, skewed>& row, const Partial& total, float grad,
                               int64_t target, T* __restrict__ dx, const Transform& transform = {}) {
  const RowGradient<T, Transform> gradient(total, grad, target, row.vocab(), dx, row.skew(), transform);
  for_each_step_again(ring, row, [&](const Group<T>(&vectors)[kGroups], int step) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) gradient.write(vectors[g], row.at(step, g));
  });
}

/// Writes zeros for an ignored row without reading anything of it.
template <typename T>
__device__ void write_zeros(T* __restrict__ row, int64_t vocab) {
  constexpr int kColumns = kGroupColumns<T>;
  const int64_t before = min(int64_t{(kColumns - skew_of(row)) % kColumns}, vocab), thread = threadIdx.x;
  const int64_t n_whole = (vocab - before) / kColumns, behind = before + n_whole * kColumns;
  for (int64_t i = thread; i < n_whole; i += blockDim.x) {
    __stcs(reinterpret_cast<uint4*>(row + before + i * kColumns), uint4{0, 0, 0, 0});
  }
  if (thread < before) row[thread] = from_float<T>(0.0f);
  if (thread < vocab - behind) row[behind + thread] = from_float<T>(0.0f);
}

}  // namespace checkop::kernels
