// SPDX-License-Identifier: Apache-2.0
// Kernels of the CUDA device itself.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/mix.hpp"

namespace checkop {

/// Reads n words. Stores their sum if it equals `never`, so that the reads are not optimised away.
static __global__ void read_words(const uint4* __restrict__ words, size_t n, unsigned never,
                                  unsigned* __restrict__ sum_out) {
  unsigned sum = 0;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
#pragma unroll 4
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    const uint4 word = words[i];
    sum += word.x + word.y + word.z + word.w;
  }
  if (sum == never) *sum_out = sum;
}

/// Fills [begin, begin + bytes) with repetitions of the 8 bytes of `pattern`.
static __global__ void fill_bytes(std::byte* __restrict__ begin, uint64_t pattern, size_t bytes) {
  const size_t first = size_t{blockIdx.x} * blockDim.x + threadIdx.x, stride = size_t{gridDim.x} * blockDim.x;
  const auto past = static_cast<size_t>(reinterpret_cast<uintptr_t>(begin) % sizeof(uint4));
  const size_t head = past == 0 ? 0 : min(bytes, sizeof(uint4) - past), words = (bytes - head) / sizeof(uint4);
  const unsigned turn = static_cast<unsigned>(head % sizeof(pattern)) * 8;
  const uint64_t turned = turn == 0 ? pattern : pattern >> turn | pattern << (64 - turn);
  const auto low = static_cast<unsigned>(turned), high = static_cast<unsigned>(turned >> 32);
  auto* const middle = reinterpret_cast<uint4*>(begin + head);
  for (size_t i = first; i < words; i += stride) middle[i] = make_uint4(low, high, low, high);
  const size_t tail = head + words * sizeof(uint4);
  for (size_t i = first; i < head + bytes - tail; i += stride) {
    const size_t at = i < head ? i : tail + i - head;
    begin[at] = static_cast<std::byte>(pattern >> at % sizeof(pattern) * 8);
  }
}

/// Adds the terms of a fingerprint; the last word may be incomplete.
static __global__ void add_fingerprint(const std::byte* __restrict__ memory, size_t bytes, uint64_t salt,
                                       unsigned long long* __restrict__ sum) {
  const size_t first = size_t{blockIdx.x} * blockDim.x + threadIdx.x, stride = size_t{gridDim.x} * blockDim.x;
  const bool aligned = reinterpret_cast<uintptr_t>(memory) % sizeof(uint64_t) == 0;
  unsigned long long own = 0;
  for (size_t i = first; i * sizeof(uint64_t) < bytes; i += stride) {
    uint64_t word = 0;
    if (aligned && (i + 1) * sizeof(uint64_t) <= bytes) {
      word = reinterpret_cast<const uint64_t*>(memory)[i];
    } else {
      const size_t end = min(bytes, (i + 1) * sizeof(uint64_t));
      for (size_t at = i * sizeof(uint64_t); at < end; ++at) {
        word |= static_cast<uint64_t>(memory[at]) << at % sizeof(uint64_t) * 8;
      }
    }
    own += fingerprint_of(word, i, salt);
  }
  for (int lane = 16; lane > 0; lane /= 2) own += __shfl_down_sync(0xffffffffu, own, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, own);  // integer sum: independent of the order
}

static __global__ void do_nothing() {}

/// Keeps the stream busy for `ns` nanoseconds.
static __global__ void wait_ns(uint64_t ns) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    __nanosleep(200);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < ns);
}

/// Calls body(word) with the widest word type that divides `lengths` and both addresses.
template <class Body>
auto with_words(const std::byte* a, const std::byte* b, size_t lengths, const Body& body) {
  const size_t places = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | lengths;
  if (places % sizeof(uint64_t) == 0) return body(uint64_t{});
  if (places % sizeof(uint32_t) == 0) return body(uint32_t{});
  if (places % sizeof(uint16_t) == 0) return body(uint16_t{});
  return body(uint8_t{});
}

/// Counts the words in which row k of `a` differs from row rows[k] of `b`. A block handles one row at a time.
template <typename Word>
static __global__ void count_different(const Word* __restrict__ a, const Word* __restrict__ b, size_t words,
                                       const int64_t* __restrict__ rows, int64_t n,
                                       unsigned long long* __restrict__ different) {
  unsigned long long own = 0;
  for (int64_t k = blockIdx.x; k < n; k += gridDim.x) {
    if (rows[k] < 0) continue;
    const Word* const left = a + static_cast<size_t>(k) * words;
    const Word* const right = b + static_cast<size_t>(rows[k]) * words;
    for (size_t i = threadIdx.x; i < words; i += blockDim.x) own += left[i] != right[i] ? 1 : 0;
  }
  if (own > 0) atomicAdd(different, own);  // integer sum: independent of the order
}

/// Copies row rows[k] of `from` to `to` + k * `stride` words. A block handles one row at a time.
template <typename Word>
static __global__ void gather_rows(Word* __restrict__ to, size_t stride, const Word* __restrict__ from, size_t words,
                                   const int64_t* __restrict__ rows, int64_t n) {
  for (int64_t k = blockIdx.x; k < n; k += gridDim.x) {
    if (rows[k] < 0) continue;
    Word* const out = to + static_cast<size_t>(k) * stride;
    const Word* const in = from + static_cast<size_t>(rows[k]) * words;
    for (size_t i = threadIdx.x; i < words; i += blockDim.x) out[i] = in[i];
  }
}

/// Flags shared by host and device while SMs are occupied.
struct Held {
  unsigned blocks;  ///< number of running blocks; written by the device
  unsigned stop;    ///< not 0: stop; written by the host
};

/// Each block occupies one SM by using all its shared memory, until `stop` is set or `most_ns` have passed.
static __global__ void hold_multiprocessor(volatile Held* held, uint64_t most_ns) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  atomicAdd_system(const_cast<unsigned*>(&held->blocks), 1u);
  do {
    __nanosleep(500);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (held->stop == 0 && now - start < most_ns);
}

}  // namespace checkop
