// SPDX-License-Identifier: Apache-2.0
// Memory of a CUDA device that is used again: to have a block from the driver, and to give it back, takes longer than
// most launches, and a check of all axes has hundreds of blocks.
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

  /// Bytes that free() keeps in all.
  void keep_at_most(size_t bytes) { most_ = bytes; }

  /// As cudaMalloc(), of at least one byte: also an empty tensor gets an address of its own. Blocks are aligned to 256
  /// bytes.
  cudaError_t allocate(size_t bytes, std::byte** memory) {
    // Of its size the one that was freed first. No larger one: memcheck knows where a block ends.
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

  /// Work on `stream` overwrites the block, as all work there that is enqueued from here on finds it: what was in it
  /// must not be found in what a candidate allocates, or through an address that it has kept. All bits set is a NaN of
  /// every type.
  void free(std::byte* memory, cudaStream_t stream) noexcept {
    const auto found = rooms_.find(memory);
    if (found == rooms_.end()) return;
    const size_t room = found->second;
    rooms_.erase(found);
    const bool is_overwritten = cudaMemsetAsync(memory, 0xff, room, stream) == cudaSuccess;
    if (room <= most_ && kept_bytes_ + room > most_) release();  // sizes of other cases, mostly
    if (is_overwritten && room <= most_) {
      kept_.emplace(room, memory);
      kept_bytes_ += room;
    } else {
      (void)cudaFree(memory);  // waits for the above; may run after a sticky error
    }
    (void)cudaGetLastError();
  }

  /// What is kept goes back to the driver.
  void release() noexcept {
    for (const auto& [room, memory] : kept_) (void)cudaFree(memory);
    (void)cudaGetLastError();
    kept_.clear();
    kept_bytes_ = 0;
  }

 private:
  std::unordered_map<std::byte*, size_t> rooms_;  ///< of what is in use
  std::multimap<size_t, std::byte*> kept_;        ///< by room
  size_t kept_bytes_ = 0, most_ = 0;
};

}  // namespace checkop
