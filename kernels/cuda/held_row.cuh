// SPDX-License-Identifier: Apache-2.0
// Rows of logits that the blocks of a cluster hold in shared memory while they compute a gradient, so that a row is
// read once. From sm_90 on. Rows that fit into one block, rows that no cluster can hold, and all rows on older devices
// are read through a ring (softmax.cuh).
//
// A block has one part of the row. It loads all of it at once, so that loads are in flight while other blocks of its SM
// compute or store. Parts, and the order of sums, depend on the vocabulary alone.
#pragma once

#include <cooperative_groups.h>

#include <utility>

#include "cuda/softmax.cuh"

namespace checkop::kernels {

constexpr int kHeldThreads = 256;
constexpr int kMostParts = 8;             // blocks of a cluster that every GPU can launch
constexpr int64_t kPartBytes = 72 << 10;  // three blocks on an SM

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

/// The blocks of a row.
class RowCluster {
 public:
  __device__ RowCluster() : cluster_(cooperative_groups::this_cluster()), begun_(cluster_.barrier_arrive()) {}
  __device__ int64_t row() const { return blockIdx.x / cluster_.num_blocks(); }
  __device__ int rank() const { return static_cast<int>(cluster_.block_rank()); }

  /// The sums of all blocks merged, in the order of their ranks. All threads of the cluster call it, once.
  __device__ Partial merge(const Partial& of_block) {
    __shared__ Partial all[kMostParts];
    const auto count = static_cast<int>(cluster_.num_blocks());
    cluster_.barrier_wait(std::move(begun_));  // a block's memory can be written from its begin on
    if (static_cast<int>(threadIdx.x) < count) *cluster_.map_shared_rank(&all[rank()], threadIdx.x) = of_block;
    cluster_.sync();
    Partial total;
    for (int part = 0; part < count; ++part) total.max = fmaxf(total.max, all[part].max);
    for (int part = 0; part < count; ++part) total.sum += all[part].sum * expf(all[part].max - exp_shift(total.max));
    return total;
  }

 private:
  cooperative_groups::cluster_group cluster_;
  cooperative_groups::cluster_group::arrival_token begun_;
};

/// The block's part of a row of logits, in shared memory. A thread has every kHeldThreads-th group of it, and reads
/// only what it has copied itself.
template <typename T>
class HeldPart {
 public:
  static constexpr int kColumns = kGroupColumns<T>, kStep = kGroups * kHeldThreads;

  /// Begins to load. `groups`: of a part; ring_memory holds them.
  __device__ HeldPart(const T* row, int64_t vocab, int rank, int groups)
      : vocab_(vocab),
        first_(int64_t{rank} * groups),
        count_(static_cast<int>(max(int64_t{0}, min(int64_t{groups}, ceil_div(vocab, kColumns) - first_)))) {
    const int64_t n_whole = is_aligned(row) ? vocab / kColumns - first_ : 0;
    for (int at = static_cast<int>(threadIdx.x); at - static_cast<int>(threadIdx.x) < count_; at += kStep) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int i = at + g * kHeldThreads;
        if (i >= count_) break;
        if (i < n_whole) {
          cp_async(ring_memory + i, row + (first_ + i) * kColumns, sizeof(uint4));
        } else {
          ring_memory[i] = load_ragged<T>(row, (first_ + i) * kColumns, vocab).bits;
        }
      }
      cp_async_commit_group();
    }
  }

  /// The sum of the block's part, in every thread. All threads call it, once.
  template <typename Transform>
  __device__ Partial reduce(const Transform& transform) const {
    __shared__ float max_per_warp[kWarp], sum_per_warp[kWarp];
    const int steps = (count_ + kStep - 1) / kStep;
    const int64_t end = min((first_ + count_) * kColumns, vocab_);
    Partial mine;
    for (int step = 0; step < steps; ++step) {
      wait_for_all_but(steps - 1 - step);
      Group<T> groups[kGroups];
      const int at = step * kStep + static_cast<int>(threadIdx.x);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int i = at + g * kHeldThreads;
        groups[g] = i < count_ ? Group<T>{ring_memory[i]} : load_ragged<T>(nullptr, 0, 0);
      }
      mine.add<T>(groups, transform, (first_ + at) * kColumns, int64_t{kHeldThreads} * kColumns, end);
    }
    const float max = block_max(mine.max, max_per_warp);
    return {max, block_sum(mine.sum * expf(mine.max - exp_shift(max)), sum_per_warp)};
  }

  /// The gradient of the part's columns.
  template <typename Transform>
  __device__ void write(const RowGradient<T, Transform>& gradient) const {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < count_; i += kHeldThreads) {
      gradient.write({ring_memory[i]}, first_ + i);
    }
  }

 private:
  /// Waits until all but the latest `pending` groups of copies are done, or more of them.
  __device__ static void wait_for_all_but(int pending) {
    switch (pending) {
      case 0:
        return cp_async_wait_group<0>();
      case 1:
        return cp_async_wait_group<1>();
      case 2:
        return cp_async_wait_group<2>();
      case 3:
        return cp_async_wait_group<3>();
      default:
        return cp_async_wait_group<4>();
    }
  }

  int64_t vocab_, first_;
  int count_;
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
