// SPDX-License-Identifier: Apache-2.0
// Rows of logits that the blocks of a cluster hold in shared memory while they compute a gradient, so that a row is
// read once. From sm_90 on. Rows that fit into one block, rows that no cluster can hold, and all rows on older devices
// are read through a ring (softmax.cuh).
//
// A block has one part of the row. It loads all of it at once, so that loads are in flight while other blocks of its SM
// compute or store. Parts, and the order of sums, depend on the vocabulary alone.
#pragma once

#include "cuda/softmax.cuh"
#include "sm90/tensor_map.cuh"

namespace checkop::kernels {

constexpr int kHeldThreads = 256;
constexpr int kMostParts = 8;             // blocks of a cluster that every GPU can launch
constexpr int64_t kPartBytes = 43 << 10;  // five blocks fit on an SM, unless eight parts must be larger
constexpr int kMostSteps = 16;            // in which a block takes its part, of kGroups groups for each thread

/// How a row is divided.
struct Parts {
  int64_t groups = 0;  ///< of 16 bytes in a part; the last one may have fewer
  int count = 0;       ///< 0: rows are read through a ring instead
};

/// The parts of rows of `vocab` elements of T in which `kernel` holds them on the current device. Rows of one part fit
/// in a ring.
template <typename T, typename Kernel>
cudaError_t find_parts(Kernel* kernel, int64_t vocab, Parts& parts) {
  constexpr int64_t kLine = 8;  // groups: parts of aligned rows begin at multiples of 128 bytes
  bool holds = false;
  int64_t most_bytes = 0;
  if (auto error = is_for_sm90(kernel, holds)) return error;
  if (auto error = most_dynamic_bytes(kernel, most_bytes)) return error;
  const int64_t groups = ceil_div(vocab, kGroupColumns<T>);
  const auto count = std::min<int64_t>(ceil_div(groups * int64_t{sizeof(uint4)}, kPartBytes), kMostParts);
  const int64_t each = round_up(ceil_div(groups, std::max<int64_t>(count, 1)), kLine);
  parts = {};
  if (!holds || count < 2 || each * int64_t{sizeof(uint4)} > most_bytes) return cudaSuccess;
  if (each > int64_t{kMostSteps} * kGroups * kHeldThreads) return cudaSuccess;
  parts = {each, static_cast<int>(count)};
  return cudaSuccess;
}

/// Launches a kernel that may start early (Launch), and whose last parameter is the number of groups of a part: a
/// cluster for each row.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_held_rows(void (*kernel)(Parameters...), int64_t rows, const Parts& parts, cudaStream_t stream,
                             Arguments... arguments) {
  const auto bytes = static_cast<int>(parts.groups * int64_t{sizeof(uint4)});
  if (auto error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) return error;
  const dim3 grid(static_cast<unsigned>(rows * parts.count));
  const Launch launch{grid, dim3(kHeldThreads), stream, bytes, parts.count, /*starts_early=*/true};
  return launch_kernel(kernel, launch, arguments..., static_cast<int>(parts.groups));
}

#if __CUDA_ARCH__ >= 900

/// A row of logits in the shared memory of a cluster. Each block has one part of it; a thread has every
/// kHeldThreads-th group of that part.
template <typename T>
class HeldRow {
 public:
  static constexpr int kColumns = kGroupColumns<T>, kStep = kGroups * kHeldThreads;

  /// The row of this cluster, and the part of this block.
  __device__ static int64_t number() { return blockIdx.x / sm90::blocks_in_cluster(); }
  __device__ static int rank() { return static_cast<int>(sm90::rank_in_cluster()); }

  /// Begins to load. `groups`: of a part; ring_memory holds them. All threads of the cluster call it.
  __device__ HeldRow(const T* row, int64_t vocab, int groups)
      : first_column_(int64_t{rank()} * groups * kColumns),
        columns_(static_cast<int>(max(int64_t{0}, min(int64_t{groups} * kColumns, vocab - first_column_)))),
        count_((columns_ + kColumns - 1) / kColumns),
        is_whole_(is_aligned(row) && columns_ % kColumns == 0) {
    const T* part = row + first_column_;
    if (threadIdx.x == 0) {
      sm90::init_barrier(merged(), 1);
      for (int step = 0; step < steps(); ++step) sm90::init_barrier(loaded(step), 1);
      sm90::fence_barrier_init();
      sm90::arrive_expect_tx(merged(), partials() * static_cast<int>(sizeof(Partial)));
      for (int step = 0; step < steps() && is_whole_; ++step) {
        const int first = step * kStep, bytes = min(kStep, count_ - first) * static_cast<int>(sizeof(uint4));
        sm90::arrive_expect_tx(loaded(step), bytes);
        sm90::bulk_load(sm90::shared_address(ring_memory + first), part + first * kColumns, bytes, loaded(step));
      }
    }
    for (int i = static_cast<int>(threadIdx.x); i < count_ && !is_whole_; i += kHeldThreads) {
      ring_memory[i] = load_ragged<T>(part, int64_t{i} * kColumns, columns_).bits;  // only this thread reads it
    }
    sm90::cluster_sync();  // the barriers of all blocks are initialized
  }

  /// The sum of the whole row, in every thread. All threads of the cluster call it, once.
  template <typename Transform>
  __device__ Partial reduce(const Transform& transform) const {
    Partial mine;
    for (int step = 0; step < steps(); ++step) {
      if (is_whole_) sm90::wait(loaded(step), 0);
      Group<T> groups[kGroups];
      const int at = step * kStep + static_cast<int>(threadIdx.x);
      if ((step + 1) * kStep <= count_) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) groups[g] = {ring_memory[at + g * kHeldThreads]};
      } else {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          const int i = at + g * kHeldThreads;
          groups[g] = i < count_ ? Group<T>{ring_memory[i]} : load_ragged<T>(nullptr, 0, 0);
        }
      }
      mine.add<T>(groups, transform, at * kColumns, kHeldThreads * kColumns, columns_);
    }
    return merge(mine);
  }

  /// The gradient of the part's columns. `grad`, `target`, `dx`: of the row.
  template <typename Transform>
  __device__ void write(const Partial& total, float grad, int64_t target, T* __restrict__ dx,
                        const Transform& transform) const {
    const int64_t in_part = target - first_column_;
    const int own_target = in_part >= 0 && in_part < columns_ ? static_cast<int>(in_part) : columns_ + kColumns;
    const RowGradient<T, Transform, int> gradient(total, grad, own_target, columns_, dx + first_column_, transform);
    const int first = static_cast<int>(threadIdx.x);
    if (!is_whole_ || !gradient.all_are_whole()) {
      for (int i = first; i < count_; i += kHeldThreads) gradient.write({ring_memory[i]}, i);
      return;
    }
#pragma unroll 4
    for (int i = first; i < count_; i += kHeldThreads) gradient.write_whole({ring_memory[i]}, i);
    const int of_target = own_target / kColumns;  // written once more, by the same thread
    if (of_target < count_ && of_target % kHeldThreads == first) gradient.write({ring_memory[of_target]}, of_target);
  }

 private:
  static constexpr int kWarps = kHeldThreads / kWarp;

  /// Merges the partial sums of all threads of the cluster. Every warp sends its own to every block, which waits for
  /// those of all warps: no barrier of threads, and no fence, which would wait for the block's stores. A block ends
  /// only after it has received all of them, so its memory is there for them.
  __device__ Partial merge(const Partial& of_thread) const {
    __shared__ alignas(8) Partial all[kMostParts * kWarps];
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const float max = warp_max(of_thread.max);
    const float sum = warp_sum(of_thread.sum * expf(of_thread.max - exp_shift(max)));
    if (lane < sm90::blocks_in_cluster()) {
      sm90::store_remote(sm90::shared_address(all + rank() * kWarps + warp), max, sum, merged(), lane);
    }
    sm90::wait(merged(), 0);
    Partial total, received[kMostParts * kWarps / kWarp];
#pragma unroll
    for (int i = 0; i < kMostParts * kWarps / kWarp; ++i) {
      const int from = i * kWarp + lane;
      if (from < partials()) received[i] = all[from];
      total.max = fmaxf(total.max, received[i].max);
    }
    total.max = warp_max(total.max);
#pragma unroll
    for (const Partial& one : received) total.sum += one.sum * expf(one.max - exp_shift(total.max));
    total.sum = warp_sum(total.sum);
    return total;
  }
  __device__ static int partials() { return sm90::blocks_in_cluster() * kWarps; }

  __device__ int steps() const { return (count_ + kStep - 1) / kStep; }
  /// The addresses of barriers: step 0, 1, ... of the part is loaded; the partial sums of all warps are here.
  __device__ static uint32_t loaded(int step) { return barrier(step); }
  __device__ static uint32_t merged() { return barrier(kMostSteps); }
  __device__ static uint32_t barrier(int k) {
    __shared__ uint64_t barriers[kMostSteps + 1];
    return sm90::shared_address(barriers + k);
  }

  int64_t first_column_;
  int columns_, count_;
  bool is_whole_;  // the row begins, and the part ends, at a 16-byte boundary
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
