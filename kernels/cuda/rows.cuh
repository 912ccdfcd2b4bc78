// SPDX-License-Identifier: Apache-2.0
// Copies rows bit by bit to positions given by an index; shared by embedding and pack.
#pragma once

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

/// Enqueues copy_rows() for rows of `hidden` elements of `dtype`, which has 16 or 32 bits.
inline void launch_copy_rows(int32_t dtype, const void* source, int64_t n_source, const int64_t* from, int64_t rows,
                             int64_t hidden, void* to, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = int64_t{1} << 20;  // the kernel strides over the rest
  const int64_t needed = ceil_div(rows, kCopyThreads / kWarp);
  const auto blocks = static_cast<unsigned>(needed < kMaxBlocks ? needed : kMaxBlocks);
  const auto copy = [&]<typename Word>(TypeTag<Word>, int64_t words) {
    copy_rows<Word><<<blocks, kCopyThreads, 0, stream>>>(static_cast<const Word*>(source), n_source, from, rows, words,
                                                         static_cast<Word*>(to));
  };
  const int64_t row_bytes = hidden * (dtype == CHECKOP_F32 ? 4 : 2);
  if (is_aligned(source) && is_aligned(to) && row_bytes % 16 == 0) {
    copy(TypeTag<uint4>{}, row_bytes / 16);
  } else if (dtype == CHECKOP_F32) {
    copy(TypeTag<uint32_t>{}, hidden);
  } else {
    copy(TypeTag<uint16_t>{}, hidden);
  }
}

}  // namespace checkop::kernels
