// SPDX-License-Identifier: Apache-2.0
// Device memory and random bits of the tests that compare products on a Hopper GPU.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace checkop::kernels {

/// 32 random bits, a function of x.
__device__ inline uint32_t mixed(uint64_t x) {
  x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
  return static_cast<uint32_t>(x ^ x >> 33);
}

/// Device memory for `count` elements, followed by room that shows writes past the end. All bytes are kUntouched.
template <typename T>
class Buffer {
 public:
  static constexpr int64_t kBehind = 256;  ///< elements of the room
  static constexpr uint8_t kUntouched = 0xee;
  explicit Buffer(int64_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(&data_, bytes()), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, kUntouched, bytes()), cudaSuccess);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { (void)cudaFree(data_); }
  T* data() const { return static_cast<T*>(data_); }
  int64_t count() const { return count_; }
  /// The bytes of the elements and of the room.
  std::vector<uint8_t> read() const {
    std::vector<uint8_t> host(bytes());
    EXPECT_EQ(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

 private:
  size_t bytes() const { return static_cast<size_t>(count_ + kBehind) * sizeof(T); }
  void* data_ = nullptr;
  int64_t count_;
};

}  // namespace checkop::kernels
