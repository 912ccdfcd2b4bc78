// SPDX-License-Identifier: Apache-2.0
// The rows of slots of a mixture of experts, shared by moe_permute and moe_combine.
// Slot s of token t has number t*topk + s; its position is the row that belongs to it, or -1.
#pragma once

#include "cuda/findings.cuh"
#include "cuda/group.cuh"

namespace checkop::kernels {

constexpr int kSlotThreads = 256;  // full occupancy: these kernels wait for memory

/// Blocks of kSlotThreads for `count` threads, at least one; the kernels stride over what is beyond.
inline unsigned slot_blocks(int64_t count) {
  constexpr int64_t kMostBlocks = int64_t{1} << 20;
  const int64_t blocks = ceil_div(count, kSlotThreads);
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < kMostBlocks ? blocks : kMostBlocks);
}

/// Positions that are out of range count as -1 here; an IndexCheck refuses them.
__device__ inline bool is_row(int64_t position, int64_t n_rows) { return position >= 0 && position < n_rows; }

/// to[t, :] = the sum of weight * row, or of the rows if not `weighted`, over the slots of token t that have a row. A
/// thread adds a group of columns in fp32, one slot after another, and rounds once.
///   from: [n_rows, hidden]   positions, weights: [tokens, topk]   to: [tokens, hidden]
template <typename T, bool weighted>
__global__ __launch_bounds__(kSlotThreads) void sum_slot_rows(const T* __restrict__ from, int64_t n_rows,
                                                              const int32_t* __restrict__ positions,
                                                              const float* __restrict__ weights, int64_t tokens,
                                                              int64_t topk, int64_t hidden, bool aligned,
                                                              T* __restrict__ to) {
  constexpr int kColumns = kGroupColumns<T>, kAhead = 8;  // loads in flight before the first addition
  const int64_t groups = ceil_div(hidden, kColumns), count = tokens * groups;
  for (int64_t i = int64_t{blockIdx.x} * kSlotThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kSlotThreads) {
    const int64_t token = i / groups, column = i % groups * kColumns;
    float sum[kColumns] = {};
    for (int64_t first = 0; first < topk; first += kAhead) {
      Group<T> rows[kAhead];
      float weight[kAhead];
      bool present[kAhead];
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        const int64_t slot = token * topk + first + s, position = first + s < topk ? positions[slot] : -1;
        present[s] = is_row(position, n_rows);
        if (!present[s]) continue;
        rows[s] = load_group(from + position * hidden, column, hidden, aligned);
        weight[s] = weighted ? weights[slot] : 1.0f;
      }
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        if (!present[s]) continue;
        float x[kColumns];
        rows[s].unpack(x);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sum[c] = weighted ? fmaf(weight[s], x[c], sum[c]) : sum[c] + x[c];
      }
    }
    store_group_at_once(to + token * hidden, column, hidden, aligned, sum);
  }
}

/// Enqueues sum_slot_rows(), weighted if `weights` is not null.
template <typename T>
void launch_sum_slot_rows(const T* from, int64_t n_rows, const int32_t* positions, const float* weights, int64_t tokens,
                          int64_t topk, int64_t hidden, T* to, cudaStream_t stream) {
  const int64_t threads = tokens * ceil_div(hidden, kGroupColumns<T>);
  if (threads == 0) return;
  const auto sum = weights == nullptr ? sum_slot_rows<T, false> : sum_slot_rows<T, true>;
  sum<<<slot_blocks(threads), kSlotThreads, 0, stream>>>(from, n_rows, positions, weights, tokens, topk, hidden,
                                                         rows_are_aligned<T>({from, to}, hidden), to);
}

/// Row r of `to` becomes zeros where used_by[r] is negative. A warp per row.
template <typename Word>
__global__ __launch_bounds__(kSlotThreads) void clear_unused_rows(const int32_t* __restrict__ used_by, int64_t rows,
                                                                  int64_t words, Word* __restrict__ to) {
  constexpr int kRows = kSlotThreads / kWarp;
  const int lane = threadIdx.x % kWarp;
  for (int64_t row = int64_t{blockIdx.x} * kRows + threadIdx.x / kWarp; row < rows; row += int64_t{gridDim.x} * kRows) {
    if (used_by[row] >= 0) continue;  // the whole warp
    for (int64_t i = lane; i < words; i += kWarp) to[row * words + i] = Word{};
  }
}

/// Calls f(TypeTag<Word>, words of a row): 16 bytes if the rows of all `tensors` start at multiples of 16 bytes,
/// otherwise an element of `dtype`, which has 16 or 32 bits.
template <typename F>
void with_row_words(int32_t dtype, std::initializer_list<const void*> tensors, int64_t hidden, F&& f) {
  const int64_t row_bytes = hidden * (dtype == CHECKOP_F32 ? 4 : 2);
  bool aligned = row_bytes % 16 == 0;
  for (const void* p : tensors) aligned = aligned && is_aligned(p);
  if (aligned) {
    f(TypeTag<uint4>{}, row_bytes / 16);
  } else if (dtype == CHECKOP_F32) {
    f(TypeTag<uint32_t>{}, hidden);
  } else {
    f(TypeTag<uint16_t>{}, hidden);
  }
}

/// Enqueues clear_unused_rows() for rows of `hidden` elements of `dtype`.
inline void launch_clear_unused_rows(int32_t dtype, const int32_t* used_by, int64_t rows, int64_t hidden, void* to,
                                     cudaStream_t stream) {
  if (rows == 0 || hidden == 0) return;
  with_row_words(dtype, {to}, hidden, [&]<typename Word>(TypeTag<Word>, int64_t words) {
    clear_unused_rows<Word>
        <<<slot_blocks(rows * kWarp), kSlotThreads, 0, stream>>>(used_by, rows, words, static_cast<Word*>(to));
  });
}

}  // namespace checkop::kernels
