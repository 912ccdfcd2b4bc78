// SPDX-License-Identifier: Apache-2.0
// The accumulators of a warpgroup -> c: bias added in fp32, one rounding, stored.
// Facts: PTX ISA 9.0, "stmatrix"; fragment of d as in wgmma.cuh.
#pragma once

#include "gemm_mma.cuh"
#include "plan.cuh"

namespace checkop::kernels::sm90 {

template <typename T>
__device__ uint32_t pack_pair(float first, float second) {
  return bit_cast<uint32_t>(mma::Pair<T>{from_float<T>(first), from_float<T>(second)});
}

/// Four 8x8 matrices of 16-bit elements: lane l gives of each the elements (l / 4, l % 4 * 2) and the next, and the
/// address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

/// sum += bias of its columns, which begin at n; columns outside stay as they are.
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

/// Rows m .. m + 63 and columns n .. n + kN - 1 of c, by a warpgroup whose shared memory begins at `staging`.
///   turn: counts boxes over all calls, for the choice of a buffer     name: barrier of the warpgroup
template <typename P, typename T>
__device__ __forceinline__ void store_staged(const float (&sum)[P::kN / 2], const CUtensorMap& map, uint32_t staging,
                                             uint32_t& turn, int name, int m, int n, int m_extent, int n_extent) {
  const int thread = threadIdx.x % kGroup, lane = thread % kWarp;
  // Lane l addresses row l % 16 of its warp's 16, and the left or the right 8 of 16 columns.
  const int row = thread / kWarp * 16 + lane % 16, right = lane / 16;
#pragma unroll
  for (int box = 0; box < P::kN / 64; ++box, ++turn) {
    const uint32_t buffer = staging + turn % P::kStoreBuffers * P::kBoxBytes;
    if (thread == 0) wait_for_stores<P::kStoreBuffers - 1>();  // the buffer's last box has been read
    sync_threads(name, kGroup);
#pragma unroll
    for (int chunk = 0; chunk < 8; chunk += 2) {
      const float* at = sum + box * 32 + chunk * 4;
      store_matrices(buffer + row * 128 + ((chunk + right) ^ row % 8) * 16, pack_pair<T>(at[0], at[1]),
                     pack_pair<T>(at[2], at[3]), pack_pair<T>(at[4], at[5]), pack_pair<T>(at[6], at[7]));
    }
    fence_async();
    sync_threads(name, kGroup);
    if (thread == 0) {
      if (m < m_extent && n + box * 64 < n_extent) store_box(map, buffer, n + box * 64, m);
      commit_stores();
    }
  }
}

/// The same from the registers, for any place and size of c.
template <typename P, typename T>
__device__ __forceinline__ void store_direct(const float (&sum)[P::kN / 2], T* __restrict__ c, int64_t m, int64_t n,
                                             int64_t m_extent, int64_t n_extent) {
  const int thread = threadIdx.x % kGroup, lane = thread % kWarp;
  const bool pairs = n_extent % 2 == 0 && reinterpret_cast<uintptr_t>(c) % sizeof(mma::Pair<T>) == 0;
  m += thread / kWarp * 16 + lane / 4, n += lane % 4 * 2;
  constexpr const T* kNoBias = nullptr;
#pragma unroll
  for (int i = 0; i < P::kN / 2; i += 4) {
    mma::store_pair(c, m, n + i * 2, m_extent, n_extent, kNoBias, pairs, sum[i], sum[i + 1]);
    mma::store_pair(c, m + 8, n + i * 2, m_extent, n_extent, kNoBias, pairs, sum[i + 2], sum[i + 3]);
  }
}

}  // namespace checkop::kernels::sm90
