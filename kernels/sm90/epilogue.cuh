// SPDX-License-Identifier: Apache-2.0
// Stores the accumulators of a warpgroup to c: adds the bias in fp32, rounds once.
// Facts: PTX ISA 9.0, "stmatrix"; fragment of d as in wgmma.cuh.
#pragma once

#include "gemm/mma.cuh"
#include "sm90/config.cuh"

namespace checkop::kernels::sm90 {

template <typename T>
__device__ uint32_t pack_pair(float first, float second) {
  return bit_cast<uint32_t>(mma::Pair<T>{from_float<T>(first), from_float<T>(second)});
}

/// Stores four 8x8 matrices of 16-bit elements (stmatrix). Lane l supplies elements (l / 4, l % 4 * 2) and
/// (l / 4, l % 4 * 2 + 1) of each matrix, and the address of row l % 8 of matrix l / 8.
__device__ inline void stmatrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

/// The same with rows and columns exchanged: the address is that of column l % 8 of matrix l / 8.
__device__ inline void stmatrix_x4_transposed(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

/// Reads 16 bytes of shared memory.
__device__ inline uint4 load_shared(uint32_t address) {
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}

/// Adds the bias to `sum`, whose columns begin at n. Columns outside the matrix stay unchanged.
template <typename T, int count>
__device__ __forceinline__ void add_bias(float (&sum)[count], const T* __restrict__ bias, int64_t n, int64_t n_extent) {
  n += threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < count; i += 4) {
    const int64_t column = n + i * 2;
    const float first = column < n_extent ? to_float(bias[column]) : 0.0f;
    const float second = column + 1 < n_extent ? to_float(bias[column + 1]) : 0.0f;
    sum[i] += first, sum[i + 1] += second, sum[i + 2] += first, sum[i + 3] += second;
  }
}

/// Rounds the accumulators and packs two per word: packed[2j] and packed[2j + 1] hold the columns from 8j on, of the
/// upper and of the lower 8 rows.
template <typename T, int count>
__device__ __forceinline__ void pack_sums(const float (&sum)[count], uint32_t (&packed)[count / 2]) {
#pragma unroll
  for (int i = 0; i < count / 2; ++i) packed[i] = pack_pair<T>(sum[2 * i], sum[2 * i + 1]);
}

/// Writes this warp's 16 rows by 64 or 32 columns, packed by pack_sums(), to `buffer` in shared memory, in the swizzled
/// order of a TMA box. Each lane must then call fence_proxy_async().
template <int columns = 64>
__device__ __forceinline__ void stage_box(const uint32_t* packed, uint32_t buffer) {
  // Lane l addresses row l % 16, and the left or right 8 of 16 columns.
  const int lane = threadIdx.x % kWarp, row = lane % 16, right = lane / 16;
  const int swizzle = columns == 64 ? row % 8 : row / 2 % 4;
#pragma unroll
  for (int chunk = 0; chunk < columns / 8; chunk += 2) {
    const uint32_t* at = packed + chunk * 2;
    stmatrix_x4(buffer + row * columns * 2 + ((chunk + right) ^ swizzle) * 16, at[0], at[1], at[2], at[3]);
  }
}

/// Stores a box of c, kBoxColumns by this warp's 16 rows, that begins at (m, n). The box goes through `buffer` in
/// shared memory; the warp cycles through Config::kStoreBuffers buffers, so stores of earlier boxes may still be in
/// flight.
template <typename Config>
__device__ __forceinline__ void store_staged(const uint32_t* packed, const CUtensorMap& map, uint32_t buffer, int m,
                                             int n, int m_extent, int n_extent) {
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) tma_store_wait<Config::kStoreBuffers - 1>();  // the store that last used this buffer has read it
  __syncwarp();
  stage_box<Config::kBoxColumns>(packed, buffer);
  fence_proxy_async();
  __syncwarp();
  if (lane == 0) {
    if (m < m_extent && n < n_extent) tma_store(map, buffer, n, m);
    tma_store_commit();
  }
}

/// A warpgroup stores a box of c from a tile of its transpose: of the 64 rows from m on, and of kBoxColumns columns
/// from n on. It lies in `buffer` as c does, a line of 64 elements for each of these columns. Named barrier `barrier`
/// is for the warpgroup alone.
template <typename Config>
__device__ __forceinline__ void store_transposed(const uint32_t* packed, const CUtensorMap& map, uint32_t buffer, int m,
                                                 int n, int m_extent, int n_extent, int barrier) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % kWarp, warp = thread / kWarp;
  if (thread == 0) tma_store_wait<Config::kStoreBuffers - 1>();
  named_barrier_sync(barrier, kWarpgroup);
  // Of each 16 lines, lane l addresses line l / 16 * 8 + l % 8, and of this warp's 16 elements the first or second 8.
  const int line = lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
  const uint32_t address = buffer + line * 128 + (chunk ^ line % 8) * 16;
#pragma unroll
  for (int i = 0; i < Config::kBoxColumns / 16; ++i) {
    const uint32_t* at = packed + i * 4;
    stmatrix_x4_transposed(address + i * 16 * 128, at[0], at[1], at[2], at[3]);
  }
  fence_proxy_async();
  named_barrier_sync(barrier, kWarpgroup);
  if (thread == 0) {
    if (m < m_extent && n < n_extent) tma_store(map, buffer, m, n);
    tma_store_commit();
  }
}

/// As store_staged(), where the rows from m_end on belong to another product and must not be written. TMA stores whole
/// boxes, so the lanes store a box that m_end cuts.
template <typename Config, typename Out>
__device__ __forceinline__ void store_staged_rows(const uint32_t* packed, const CUtensorMap& map, uint32_t buffer,
                                                  Out* __restrict__ c, int m, int n, int m_end, int n_extent) {
  const int rows = m_end - m;
  if (rows >= 16 || rows <= 0) {
    store_staged<Config>(packed, map, buffer, m, n, m_end, n_extent);
    return;
  }
  constexpr int kColumns = Config::kBoxColumns, kChunks = kColumns / 8;
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) tma_store_wait<Config::kStoreBuffers - 1>();
  __syncwarp();
  stage_box<kColumns>(packed, buffer);
  __syncwarp();
  for (int i = lane; i < rows * kChunks; i += kWarp) {
    const int row = i / kChunks, chunk = i % kChunks, column = n + chunk * 8;
    const int swizzle = kColumns == 64 ? row % 8 : row / 2 % 4;
    if (column >= n_extent) continue;  // a line has whole chunks, or c had no map
    *reinterpret_cast<uint4*>(c + int64_t{m + row} * n_extent + column) =
        load_shared(buffer + row * kColumns * 2 + (chunk ^ swizzle) * 16);
  }
  __syncwarp();                       // before the buffer is written again
  if (lane == 0) tma_store_commit();  // an empty group: tma_store_wait() counts one per box
}

/// A warpgroup stores rows m .. m + 63 and columns n .. n + kN - 1 from its registers. c may have any alignment and
/// size; its lines are `ld` elements apart.
template <typename Config, typename Out>
__device__ __forceinline__ void store_direct(const float (&sum)[Config::kN / 2], Out* __restrict__ c, int64_t ld,
                                             int64_t m, int64_t n, int64_t m_extent, int64_t n_extent) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % kWarp;
  const bool pairs = ld % 2 == 0 && reinterpret_cast<uintptr_t>(c) % sizeof(mma::Pair<Out>) == 0;
  m += thread / kWarp * 16 + lane / 4, n += lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < Config::kN / 2; i += 2) {
    const int64_t row = m + i / 2 % 2 * 8, column = n + i / 4 * 8;
    if (row >= m_extent || column >= n_extent) continue;
    Out* at = c + row * ld + column;
    if (pairs && column + 1 < n_extent) {
      *reinterpret_cast<mma::Pair<Out>*>(at) = {from_float<Out>(sum[i]), from_float<Out>(sum[i + 1])};
    } else {
      at[0] = from_float<Out>(sum[i]);
      if (column + 1 < n_extent) at[1] = from_float<Out>(sum[i + 1]);
    }
  }
}

// Interface of an epilogue:
//   kMayStage<Config>  when `staged`, its tiles are stored through shared memory by c_map; with Stores::transposed,
//                      they always are, and there is no consume(). It then needs
//                      changes_sums(), change<Config>(sum, rows, m, n, m_extent, n_extent): modifies the sums first
//                      pack(sum, packed): packs the 16 bits of each sum to store, in the layout of pack_sums()
//   kReadsRows         read_rows<kN>(m, n, m_extent, n_extent) -> Rows, called before a tile's sums are computed
//   kCarries           load<Config>(sum, m, n, m_extent, n_extent): initializes the sums before the first product
//   consume<Config>(sum, rows, m, n, m_extent, n_extent): handles sums that are not staged
// m and n are the first row and column of a warpgroup's tile, which has 64 rows and kN columns.

/// What the epilogues of plain products have in common: c = sum + bias, rounded once.
template <typename T>
struct SumAndBias {
  CUtensorMap c_map;           ///< of c; set only when tiles are stored by it
  const T* __restrict__ bias;  ///< [columns of c] or null

  static constexpr bool kReadsRows = false, kCarries = false;
  struct Rows {};

  template <int count>
  __device__ static void pack(const float (&sum)[count], uint32_t (&packed)[count / 2]) {
    pack_sums<T>(sum, packed);
  }
  __device__ bool changes_sums() const { return bias != nullptr; }
};

/// c[m, n] = sum + bias[n]. T: of the bias; Out: of c.
template <typename T, typename Out>
struct StoreTiles : SumAndBias<T> {
  using typename SumAndBias<T>::Rows;
  using SumAndBias<T>::bias;
  Out* __restrict__ c;  ///< [a.extent, b.extent], contiguous
  bool staged;          ///< stores through shared memory and TMA

  template <typename Config>
  static constexpr bool kMayStage = Config::kStores == Stores::staged&& std::is_same_v<T, Out>;

  template <typename Config>
  __device__ __forceinline__ void change(float (&sum)[Config::kN / 2], const Rows&, int64_t, int64_t n, int64_t,
                                         int64_t n_extent) const {
    if (bias != nullptr) add_bias(sum, bias, n, n_extent);
  }
  template <typename Config>
  __device__ __forceinline__ void consume(float (&sum)[Config::kN / 2], const Rows& rows, int64_t m, int64_t n,
                                          int64_t m_extent, int64_t n_extent) const {
    change<Config>(sum, rows, m, n, m_extent, n_extent);
    store_direct<Config>(sum, c, n_extent, m, n, m_extent, n_extent);
  }
};

/// c[n, m] = sum + bias[m], where the operands are exchanged: c is [b.extent, a.extent], contiguous, and c_map has
/// boxes of 64 by kBoxColumns lines.
template <typename T>
struct StoreTransposedTiles : SumAndBias<T> {
  using typename SumAndBias<T>::Rows;
  using SumAndBias<T>::bias;
  static constexpr bool staged = true;

  template <typename Config>
  static constexpr bool kMayStage = true;

  template <typename Config>
  __device__ __forceinline__ void change(float (&sum)[Config::kN / 2], const Rows&, int64_t m, int64_t,
                                         int64_t m_extent, int64_t) const {
    m += threadIdx.x % kWarpgroup / kWarp * 16 + threadIdx.x % kWarp / 4;
    const float upper = m < m_extent ? to_float(bias[m]) : 0.0f,
                lower = m + 8 < m_extent ? to_float(bias[m + 8]) : 0.0f;
#pragma unroll
    for (int i = 0; i < Config::kN / 2; i += 4)
      sum[i] += upper, sum[i + 1] += upper, sum[i + 2] += lower, sum[i + 3] += lower;
  }
};

}  // namespace checkop::kernels::sm90
