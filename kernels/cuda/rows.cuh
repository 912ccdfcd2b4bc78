// SPDX-License-Identifier: Apache-2.0
// Copies rows bit by bit to positions given by an index; shared by embedding and pack.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/group.cuh"

namespace checkop::kernels {

constexpr int kCopyThreads = 256;  // eight warps, one row each

/// Row r of `to` becomes row from[r] of `source`, or zeros if from[r] is not in [0, n_source). A warp per row. Word: 16
/// bytes if rows start at multiples of 16 bytes, otherwise an element.
template <typename Word>
__global__ __launch_bounds__(kCopyThreads) void copy_rows(const Word* __restrict__ source, int64_t n_source,
                                                          const int64_t* __restrict__ from, int64_t rows, int64_t words,
                                                          Word* __restrict__ to) {
  constexpr int kRows = kCopyThreads / kWarp;
  const int lane = threadIdx.x % kWarp;
  for (int64_t row = int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp; row < rows; row += int64_t{gridDim.x} * kRows) {
    const int64_t source_row = from[row];
    Word* __restrict__ out = to + row * words;
    if (source_row < 0 || source_row >= n_source) {
      for (int64_t i = lane; i < words; i += kWarp) out[i] = Word{};
      continue;
    }
    const Word* __restrict__ in = source + source_row * words;
#pragma unroll 4
    for (int64_t i = lane; i < words; i += kWarp) out[i] = in[i];
  }
}

constexpr int kChunkThreads = 128, kChunkWords = 2 * kChunkThreads;

/// The same, a block for each kChunkWords words of a row: long rows are written in the order of memory.
template <typename Word>
__global__ __launch_bounds__(kChunkThreads) void copy_long_rows(const Word* __restrict__ source, int64_t n_source,
                                                                const int64_t* __restrict__ from, int64_t words,
                                                                unsigned chunks, Word* __restrict__ to) {
  constexpr int n = kChunkWords / kChunkThreads;
  const int64_t row = blockIdx.x / chunks, first = int64_t{blockIdx.x % chunks} * kChunkWords + threadIdx.x;
  const int64_t source_row = from[row];
  const bool exists = source_row >= 0 && source_row < n_source;
  const Word* __restrict__ in = source + (exists ? source_row : 0) * words;
  Word* __restrict__ out = to + row * words;
  Word copied[n];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const int64_t at = first + i * kChunkThreads;
    copied[i] = exists && at < words ? in[at] : Word{};
  }
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const int64_t at = first + i * kChunkThreads;
    if (at < words) out[at] = copied[i];
  }
}

/// Enqueues the kernel for rows of `hidden` elements of `dtype`, which has 16 or 32 bits.
inline cudaError_t launch_copy_rows(int32_t dtype, const void* source, int64_t n_source, const int64_t* from,
                                    int64_t rows, int64_t hidden, void* to, cudaStream_t stream,
                                    bool starts_early = false) {
  constexpr int64_t kMaxBlocks = int64_t{1} << 20;  // the kernel strides over the rest
  const int64_t needed = ceil_div(rows, kCopyThreads / kWarp);
  const auto blocks = static_cast<unsigned>(needed < kMaxBlocks ? needed : kMaxBlocks);
  const auto copy = [&]<typename Word>(TypeTag<Word>, int64_t words) {
    const int64_t chunks = ceil_div(words, kChunkWords);
    if (words >= kChunkWords && rows * chunks <= std::numeric_limits<int32_t>::max()) {
      const Launch launch{dim3(static_cast<unsigned>(rows * chunks)), dim3(kChunkThreads), stream, 0, 1, starts_early};
      return launch_kernel(copy_long_rows<Word>, launch, static_cast<const Word*>(source), n_source, from, words,
                           static_cast<unsigned>(chunks), static_cast<Word*>(to));
    }
    const Launch launch{dim3(blocks), dim3(kCopyThreads), stream, 0, 1, starts_early};
    return launch_kernel(copy_rows<Word>, launch, static_cast<const Word*>(source), n_source, from, rows, words,
                         static_cast<Word*>(to));
  };
  const int64_t row_bytes = hidden * (dtype == CHECKOP_F32 ? 4 : 2);
  if (is_aligned(source) && is_aligned(to) && row_bytes % 16 == 0) {
    return copy(TypeTag<uint4>{}, row_bytes / 16);
  }
  return dtype == CHECKOP_F32 ? copy(TypeTag<uint32_t>{}, hidden) : copy(TypeTag<uint16_t>{}, hidden);
}

}  // namespace checkop::kernels
