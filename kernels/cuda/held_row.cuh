// SPDX-License-Identifier: Apache-2.0
// Rows of logits that the blocks of a cluster hold in shared memory while they compute a gradient, so that a row is
// read once. From sm_90 on. Rows that fit into one block, rows that no cluster can hold, and all rows on older devices
// are read through a ring (softmax.cuh).
//
// A block has one part of the row. It loads all of it at once, so that loads are in flight while other blocks of its SM
// compute or store. Where a gradient needs the sums of two rows, the second one takes the place of the first one while
// that is added up. Parts, and the order of sums, depend on the vocabulary alone.
#pragma once

#include "cuda/softmax.cuh"
#include "sm90/tensor_map.cuh"

namespace checkop::kernels {

constexpr int kHeldThreads = 256;
constexpr int kMostParts = 8;  // blocks of a cluster that every GPU can launch
constexpr int kHeldBlocksPerSM = 5;
constexpr int64_t kPartBytes = 43 << 10;  // so many blocks fit on an SM, unless eight parts must be larger
constexpr int kMostSteps = 16;            // in which a block takes its part, of kGroups groups for each thread

/// How a row is divided.
struct Parts {
  int64_t groups = 0;  ///< of 16 bytes in a part; the last one may have fewer
  int count = 0;       ///< 0: rows are read through a ring instead
};

/// The shared memory of a part: one vector more than groups, since its first and last vector may lie in it in part, and
/// room to begin at any place of a line.
constexpr int64_t bytes_of_part(int64_t groups) { return (groups + kLineGroups) * static_cast<int64_t>(sizeof(uint4)); }

/// The parts of rows of `vocab` elements of T in which `kernel` holds them on the current device. Rows of one part fit
/// in a ring.
template <typename T, typename Kernel>
cudaError_t find_parts(Kernel* kernel, int64_t vocab, Parts& parts) {
  bool holds = false;
  int64_t most_bytes = 0;
  if (auto error = is_for_sm90(kernel, holds)) return error;
  if (auto error = most_dynamic_bytes(kernel, most_bytes)) return error;
  const int64_t groups = ceil_div(vocab, kGroupColumns<T>);
  const auto count = std::min<int64_t>(ceil_div(groups * int64_t{sizeof(uint4)}, kPartBytes), kMostParts);
  const int64_t each = round_up(ceil_div(groups, std::max<int64_t>(count, 1)), int64_t{kLineGroups});
  parts = {};
  if (!holds || count < 2 || bytes_of_part(each) > most_bytes) return cudaSuccess;
  if (each > int64_t{kMostSteps} * kGroups * kHeldThreads) return cudaSuccess;
  parts = {each, static_cast<int>(count)};
  return cudaSuccess;
}

/// Launches a kernel that may start early (Launch), and whose last parameter is the number of groups of a part: a
/// cluster for each row.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_held_rows(void (*kernel)(Parameters...), int64_t rows, const Parts& parts, cudaStream_t stream,
                             Arguments... arguments) {
  const auto bytes = static_cast<int>(bytes_of_part(parts.groups));
  if (auto error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) return error;
  const dim3 grid(static_cast<unsigned>(rows * parts.count));
  const Launch launch{grid, dim3(kHeldThreads), stream, bytes, parts.count, /*starts_early=*/true};
  return launch_kernel(kernel, launch, arguments..., static_cast<int>(parts.groups));
}

/// Launches a gradient's kernel that holds rows if the device and rows of `vocab` elements of T allow it, and the one
/// that reads them through a ring otherwise. Both may start early (Launch).
template <typename T, typename... Parameters, typename... Arguments>
cudaError_t launch_gradient(void (*held)(Parameters...), void (*ring)(Parameters...), int64_t rows, int64_t vocab,
                            cudaStream_t stream, Arguments... arguments) {
  Parts parts;
  if (auto error = find_parts<T>(held, vocab, parts)) return error;
  const bool fits_grid = rows * std::max(parts.count, 1) <= std::numeric_limits<int32_t>::max();
  if (parts.count > 0 && fits_grid) return launch_held_rows(held, rows, parts, stream, arguments...);
  return launch_rows<T, true>(ring, rows, backward_threads_for(vocab), vocab, stream, arguments...);
}

#if __CUDA_ARCH__ >= 900

/// A row of logits in the shared memory of a cluster. Each block has one part of it; a thread has every
/// kHeldThreads-th group of that part. With n_rows = 2, a second row takes the place of the first one.
template <typename T, int n_rows = 1>
class HeldRow {
 public:
  static constexpr int kColumns = kGroupColumns<T>, kStep = kGroups * kHeldThreads;

  /// Of the row that is held at first, and of the next one.
  struct Sums {
    Partial of[n_rows];
  };

  /// The row of this cluster, and the part of this block.
  __device__ static int64_t number() { return blockIdx.x / sm90::blocks_in_cluster(); }
  __device__ static int rank() { return static_cast<int>(sm90::rank_in_cluster()); }

  /// Begins to load. `groups`: of a part. All threads of the cluster call it.
  __device__ HeldRow(const T* row, int64_t vocab, int groups)
      : first_column_(rank() * groups * kColumns),
        left_(max(0, static_cast<int>(vocab) - first_column_)),
        columns_(min(groups * kColumns, left_)),
        count_((columns_ + kColumns - 1) / kColumns),
        place_(place_in_line(row)),
        part_(part_of(row)) {
    if (threadIdx.x == 0) {
      sm90::init_barrier(merged(), 1);
      for (int step = 0; step < steps(); ++step) sm90::init_barrier(loaded(step), 1);
      sm90::fence_barrier_init();
      sm90::arrive_expect_tx(merged(), n_rows * partials() * static_cast<int>(sizeof(Partial)));
      for (int step = 0; step < steps(); ++step) fetch(part_, step);
    }
    const int end = own_end(part_);
    if (end >= 0) {
      held()[end] = load_end(part_, end);
      sm90::fence_proxy_async();  // a copy of the next row may write over it
    }
    __syncthreads();       // the vectors at the row's ends are there
    sm90::cluster_sync();  // the barriers of all blocks are initialized
  }

  /// The sums of the whole row and, if there is one, of the next row, in every thread. All threads of the cluster call
  /// it, once.
  template <typename Transform>
  __device__ Sums reduce(const Transform& transform, const T* next = nullptr) {
    Sums sums;
    sums.of[0] = add_up(transform, next);
    if constexpr (n_rows == 2) sums.of[1] = add_up(transform, nullptr);
    return merge(sums);
  }

  /// The gradient of the part's columns. `total`, `grad`, `target`, `dx`: of the row that was reduced last.
  template <typename Transform>
  __device__ void write(const Partial& total, float grad, int64_t target, T* __restrict__ dx,
                        const Transform& transform) const {
    const RowGradient<T, Transform> gradient(total, grad, target - first_column_, columns_, dx + first_column_,
                                             part_.skew, transform);
    const int begin = gradient.begin(), end = gradient.end(), thread = static_cast<int>(threadIdx.x);
#pragma unroll 4
    for (int i = begin + thread; i < end; i += kHeldThreads) gradient.write_whole({held()[i]}, i);
    const int of_target = gradient.target_vector();  // written once more, by the same thread
    if (of_target >= begin && of_target < end && (of_target - begin) % kHeldThreads == thread) {
      gradient.write({held()[of_target]}, of_target);
    }
    const int n_others = columns_ == 0 ? 0 : begin + (part_.skew + columns_ + kColumns - 1) / kColumns - end;
    for (int other = thread; other < n_others; other += kHeldThreads) {
      const int i = other < begin ? other : other - begin + end;
      gradient.write({held()[i]}, i);
    }
  }

 private:
  /// The part's vector 0. A single row lies in the lines of shared memory as in those of global memory.
  __device__ uint4* held() const { return ring_memory + (n_rows == 1 ? place_ : 0); }

  static constexpr int kWarps = kHeldThreads / kWarp;

  /// The part of a row that the block has, in vectors at 16-byte boundaries.
  struct Part {
    const T* vectors;
    int skew;        ///< its first column is this one of vector 0
    int count;       ///< of vectors: one more than groups if the row is skewed
    int begin, end;  ///< the vectors that lie in the row as a whole; there are at most three others
  };
  __device__ Part part_of(const T* row) const {
    const int skew = skew_of(row), ahead = skew == 0 ? 0 : 1;
    const int count = columns_ == 0 ? 0 : count_ + ahead, begin = first_column_ == 0 ? ahead : 0;
    return {row + first_column_ - skew, skew, count, begin, max(begin, min(count, (skew + left_) / kColumns))};
  }
  /// Begins to load the vectors of a step. One thread calls it.
  __device__ void fetch(const Part& part, int step) const {
    const int first = step == 0 ? part.begin : min(step * kStep, part.end);
    const int end = step + 1 == steps() ? part.end : min((step + 1) * kStep, part.end);
    const int bytes = (end - first) * static_cast<int>(sizeof(uint4));
    sm90::arrive_expect_tx(loaded(step), bytes);
    if (bytes == 0) return;
    sm90::bulk_load(sm90::shared_address(held() + first), part.vectors + first * kColumns, bytes, loaded(step));
  }
  /// The vector outside of [begin, end) that this thread loads; -1 if there is none.
  __device__ static int own_end(const Part& part) {
    const int k = static_cast<int>(threadIdx.x), vector = k < part.begin ? k : k - part.begin + part.end;
    return vector < part.count ? vector : -1;
  }
  __device__ uint4 load_end(const Part& part, int vector) const {
    return load_ragged<T>(part.vectors + part.skew, vector * kColumns - part.skew, left_).bits;
  }

  /// The thread's part of the sum. Step by step the row `next` takes the place of this one, if one is given.
  template <typename Transform>
  __device__ Partial add_up(const Transform& transform, const T* next) {
    const Part next_part = next != nullptr ? part_of(next) : part_;
    const int end = next != nullptr ? own_end(next_part) : -1;
    uint4 at_end{};
    if (end >= 0) at_end = load_end(next_part, end);
    Partial mine;
    for (int step = 0; step < steps(); ++step) {
      sm90::wait(loaded(step), phase_);
      Group<T> groups[kGroups];
      const int at = step * kStep + static_cast<int>(threadIdx.x);
      if (part_.skew != 0) {
        if (step + 1 < steps()) sm90::wait(loaded(step + 1), phase_);  // its first vector belongs to the last group
        read_skewed(at, groups);
      } else if ((step + 1) * kStep <= count_) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) groups[g] = {held()[at + g * kHeldThreads]};
      } else {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          const int i = at + g * kHeldThreads;
          groups[g] = i < count_ ? Group<T>{held()[i]} : no_columns<T>();
        }
      }
      mine.add<T>(groups, transform, at * kColumns, kHeldThreads * kColumns, columns_);
      if (next == nullptr) continue;
      __syncthreads();  // the step has been read
      if (threadIdx.x == 0) fetch(next_part, step);
    }
    if (next != nullptr) {
      if (end >= 0) held()[end] = at_end;
      __syncthreads();
      part_ = next_part, phase_ ^= 1;
    }
    return mine;
  }

  /// Merges the partial sums of all threads of the cluster. Every warp sends its own to every block, which waits for
  /// those of all warps: no barrier of threads, and no fence, which would wait for the block's stores. A block ends
  /// only after it has received all of them, so its memory is there for them.
  __device__ Sums merge(const Sums& of_thread) const {
    __shared__ alignas(8) Partial all[n_rows][kMostParts * kWarps];
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
    for (int r = 0; r < n_rows; ++r) {
      const Partial& own = of_thread.of[r];
      const float max = warp_max(own.max), sum = warp_sum(own.sum * expf(own.max - exp_shift(max)));
      if (lane < sm90::blocks_in_cluster()) {
        sm90::store_remote(sm90::shared_address(&all[r][rank() * kWarps + warp]), max, sum, merged(), lane);
      }
    }
    sm90::wait(merged(), 0);
    Sums totals;
#pragma unroll
    for (int r = 0; r < n_rows; ++r) {
      Partial total, received[kMostParts * kWarps / kWarp];
#pragma unroll
      for (int i = 0; i < kMostParts * kWarps / kWarp; ++i) {
        const int from = i * kWarp + lane;
        if (from < partials()) received[i] = all[r][from];
        total.max = fmaxf(total.max, received[i].max);
      }
      total.max = warp_max(total.max);
#pragma unroll
      for (const Partial& one : received) total.sum += one.sum * expf(one.max - exp_shift(total.max));
      total.sum = warp_sum(total.sum);
      totals.of[r] = total;
    }
    return totals;
  }
  __device__ static int partials() { return sm90::blocks_in_cluster() * kWarps; }

  /// Group `at` of the part and those that follow for the thread in a step.
  __device__ void read_skewed(int at, Group<T> (&groups)[kGroups]) const {
    uint4 low[kGroups], high[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int i = min(at + g * kHeldThreads, count_ - 1);
      low[g] = held()[i], high[g] = held()[i + 1];
    }
    shift_groups(low, high, part_.skew, groups);
    if (at + (kGroups - 1) * kHeldThreads < count_) return;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (at + g * kHeldThreads >= count_) groups[g] = no_columns<T>();
    }
  }

  __device__ int steps() const { return (count_ + kStep - 1) / kStep; }
  /// The addresses of barriers: step 0, 1, ... of the part is loaded; the partial sums of all warps are here.
  __device__ static uint32_t loaded(int step) { return barrier(step); }
  __device__ static uint32_t merged() { return barrier(kMostSteps); }
  __device__ static uint32_t barrier(int k) {
    __shared__ uint64_t barriers[kMostSteps + 1];
    return sm90::shared_address(barriers + k);
  }

  int first_column_, left_, columns_, count_;  // left_: the columns of this part and those after it
  int place_;
  Part part_;
  int phase_ = 0;  // of the barriers of steps
};

/// Writes zeros to the block's part of an ignored row.
template <typename T>
__device__ void write_zeros(T* __restrict__ row, int64_t vocab, int rank, int groups) {
  constexpr int kColumns = kGroupColumns<T>;
  const int64_t first = int64_t{rank} * groups * kColumns;
  if (first < vocab) write_zeros(row + first, min(vocab - first, int64_t{groups} * kColumns));
}

#endif

}  // namespace checkop::kernels
