// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory that a thread has in flight while it computes, and a ring of slots for them.
//
// Memory-bound kernels need about 32 KiB in flight per SM of an H200 all the time. Loads to registers do not achieve
// this: a thread waits for them at their first use, and nothing is in flight while it computes.
#pragma once

#include <algorithm>

#include "cuda/dependent.cuh"

namespace checkop::kernels {

/// Copies 16 bytes to shared memory without passing through registers. Reads the first `bytes` of the source and fills
/// the rest with zeros.
__device__ inline void cp_async(uint4* shared, const void* global, int bytes) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the latest `pending` groups of this thread's copies are done.
template <int pending>
__device__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

constexpr int kMostSlots = 4;
/// Waits for the oldest of `slots` groups of this thread's copies, at most kMostSlots. Branches, not a table of jumps,
/// whose look-up would delay every step.
__device__ inline void cp_async_wait_for_slot(int slots) {
  if (slots == 4) {
    cp_async_wait_group<3>();
  } else if (slots == 3) {
    cp_async_wait_group<2>();
  } else if (slots == 2) {
    cp_async_wait_group<1>();
  } else {
    cp_async_wait_group<0>();
  }
}

/// Loads 16 bytes of shared memory, never from registers that an earlier load has filled.
__device__ inline uint4 load_volatile(const uint4* shared) {
  uint4 to;
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
               : "r"(from)
               : "memory");
  return to;
}

/// L1 copies by lines. Where a warp's bytes lie differently in the lines of global and of shared memory, each sector is
/// read twice.
constexpr int kLineBytes = 128;
constexpr int kLineGroups = kLineBytes / static_cast<int>(sizeof(uint4));

/// At which of the groups of a line an address lies.
__device__ inline int place_in_line(const void* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) / sizeof(uint4) % kLineGroups);
}

alignas(kLineBytes) extern __shared__ uint4 ring_memory[];

/// How many groups a slot of a GroupRing has room for.
template <int n, int of_warp>
__host__ __device__ constexpr int groups_in_slot(unsigned threads) {
  return static_cast<int>(threads * n + threads / kWarp * of_warp) + (of_warp > 0 ? kLineGroups : 0);
}

/// A thread's groups of 16 bytes in shared memory, n per slot. A thread reads what it has copied itself, so no
/// barriers are needed, or what its warp has copied, between two __syncwarp(). Every slot is filled once in advance;
/// from then on wait(), read the slot, fill it again and advance(). The number of slots changes no result. `of_warp`:
/// further groups per slot that each warp has; then all groups of a slot may be moved by less than a line.
template <int n, int of_warp = 0>
class GroupRing {
 public:
  __device__ explicit GroupRing(int slots) : slots_(slots) {}
  __device__ int slots() const { return slots_; }

  /// Group k of the current slot.
  __device__ uint4* at(int k) const { return slot() + k * blockDim.x + threadIdx.x; }
  /// Group k that the warp has in the current slot.
  __device__ uint4* at_of_warp(int k) const {
    return slot() + n * blockDim.x + threadIdx.x / kWarp * static_cast<unsigned>(of_warp) + k;
  }
  /// Goes to the next slot. Copies to the current one belong together from now on.
  __device__ void advance() {
    cp_async_commit_group();
    at_ = at_ + 1 == slots_ ? 0 : at_ + 1;
  }
  /// Waits for the copies to the current slot.
  __device__ void wait() const { cp_async_wait_for_slot(slots_); }

 private:
  __device__ uint4* slot() const { return ring_memory + at_ * groups_in_slot<n, of_warp>(blockDim.x); }

  int slots_, at_ = 0;
};

/// A ring of groups that each thread reads itself, n per slot, in blocks of `threads`: a number that the compiler
/// knows, so that it takes fewer instructions than GroupRing.
template <int n, int threads>
class BlockRing {
 public:
  __device__ explicit BlockRing(int slots) : slots_(slots), slot_(ring_memory + threadIdx.x) {}
  __device__ int slots() const { return slots_; }

  /// Group k of the current slot.
  __device__ uint4* at(int k) const { return slot_ + k * threads; }
  __device__ void advance() {
    cp_async_commit_group();
    const bool is_last = ++at_ == slots_;
    slot_ += is_last ? (1 - slots_) * n * threads : n * threads;
    at_ = is_last ? 0 : at_;
  }
  __device__ void wait() const { cp_async_wait_for_slot(slots_); }

 private:
  int slots_, at_ = 0;
  uint4* slot_;  ///< the thread's first group in the current slot
};

/// The most dynamic shared memory that a block of a kernel can have on the current device.
template <typename Kernel>
cudaError_t most_dynamic_bytes(Kernel* kernel, int64_t& bytes) {
  int device = 0, of_block = 0;
  cudaFuncAttributes attributes;
  if (auto error = cudaGetDevice(&device)) return error;
  if (auto error = cudaDeviceGetAttribute(&of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) return error;
  if (auto error = cudaFuncGetAttributes(&attributes, kernel)) return error;
  bytes = of_block - static_cast<int64_t>(attributes.sharedSizeBytes);
  return cudaSuccess;
}

/// Launches a kernel whose last parameter is the number of slots of its GroupRing<n, of_warp> or BlockRing<n, threads>:
/// `slots`, or as many as the device's shared memory holds. `starts_early`: see Launch.
template <int n, bool starts_early = false, int of_warp = 0, typename... Parameters, typename... Arguments>
cudaError_t launch_with_ring(void (*kernel)(Parameters...), int64_t blocks, int threads, int64_t slots,
                             cudaStream_t stream, Arguments... arguments) {
  int64_t most_bytes = 0;
  if (auto error = most_dynamic_bytes(kernel, most_bytes)) return error;
  const int slot_bytes = groups_in_slot<n, of_warp>(static_cast<unsigned>(threads)) * static_cast<int>(sizeof(uint4));
  const int64_t fits = most_bytes / slot_bytes;
  slots = std::clamp<int64_t>(std::min(slots, fits), 1, kMostSlots);
  const int bytes = static_cast<int>(slots) * slot_bytes;
  if (auto error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) return error;
  const Launch launch{dim3(static_cast<unsigned>(blocks)), dim3(threads), stream, bytes, 1, starts_early};
  return launch_kernel(kernel, launch, arguments..., static_cast<int>(slots));
}

}  // namespace checkop::kernels
