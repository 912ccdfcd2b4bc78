// SPDX-License-Identifier: Apache-2.0
// Reuses memory of a CUDA device. Allocating and freeing a block through the driver takes longer than most launches,
// and a check of all axes needs hundreds of blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <unordered_map>

namespace checkop {

class CudaMemory {
 public:
  ~CudaMemory() { release(); }
  CudaMemory() = default;
  CudaMemory(const CudaMemory&) = delete;

  /// Limit of the bytes that free() keeps for reuse.
  void keep_at_most(size_t bytes) { most_ = bytes; }

  /// Like cudaMalloc(), but with at least one byte, so that an empty tensor has its own address too. 256-byte aligned.
  cudaError_t allocate(size_t bytes, std::byte** memory) {
    // Reuses the block of exactly this size that was freed first. No larger one, so that memcheck knows where it ends.
    const size_t room = std::max<size_t>(bytes, 1);
    if (const auto found = kept_.lower_bound(room); found != kept_.end() && found->first == room) {
      *memory = found->second;
      kept_.erase(found);
      kept_bytes_ -= room;
    } else {
      cudaError_t status = cudaMalloc(reinterpret_cast<void**>(memory), room);
      if (status == cudaErrorMemoryAllocation && kept_bytes_ > 0) {
        (void)cudaGetLastError();
        release();
        status = cudaMalloc(reinterpret_cast<void**>(memory), room);
      }
      if (status != cudaSuccess) return status;
    }
    rooms_[*memory] = room;
    return cudaSuccess;
  }

  /// Overwrites the block on `stream` before it is reused, so that a candidate can't read its content through memory
  /// that it allocates or through an old address. All bits set is a NaN in every floating-point type.
  void free(std::byte* memory, cudaStream_t stream) noexcept {
    const auto found = rooms_.find(memory);
    if (found == rooms_.end()) return;
    const size_t room = found->second;
    rooms_.erase(found);
    const bool is_overwritten = cudaMemsetAsync(memory, 0xff, room, stream) == cudaSuccess;
    if (room <= most_ && kept_bytes_ + room > most_) release();  // mostly sizes of other cases
    if (is_overwritten && room <= most_) {
      kept_.emplace(room, memory);
      kept_bytes_ += room;
    } else {
      (void)cudaFree(memory);  // waits for the overwriting; may run after a sticky error
    }
    (void)cudaGetLastError();
  }

  /// Returns all kept blocks to the driver.
  void release() noexcept {
    for (const auto& [room, memory] : kept_) (void)cudaFree(memory);
    (void)cudaGetLastError();
    kept_.clear();
    kept_bytes_ = 0;
  }

 private:
  std::unordered_map<std::byte*, size_t> rooms_;  ///< sizes of blocks in use
  std::multimap<size_t, std::byte*> kept_;        ///< free blocks, by size
  size_t kept_bytes_ = 0, most_ = 0;
};

}  // namespace checkop
