// SPDX-License-Identifier: Apache-2.0
// c[m,n] (+)= sum_k a(m,k) * b(n,k) on CUDA cores: fp32 multiply-adds, any layout of a and b, any size.
//
// The bits of an element are fixed by this: its products are summed in ascending k, kSumUnit at a time, each unit in
// one fp32 accumulator that starts at zero; the units are then added to c in ascending order. So neither the other rows
// and columns nor the position in the tile matters. A product may be cut along k at multiples of kSumUnit, one call per
// piece, all but the first with `accumulate`: the bits equal those of the whole. Two levels also keep the chain of
// additions at kSumUnit + k/kSumUnit. launch_gemm_chain() instead uses one accumulator that begins with c, so that a
// product may be cut anywhere along k; its chain is as long as k.
#pragma once

#include "cuda/common.cuh"

namespace checkop::kernels {

constexpr int kSumUnit = 512;

/// An operand of a product: element (row, k) for row < extent. "Row" is the index that the product keeps, m or n.
/// Contiguous along k: data[row*ld + k]. Contiguous along rows: data[k*ld + row].
template <typename T, bool along_k>
struct Operand {
  const T* __restrict__ data;
  int64_t ld, extent;
  bool aligned;  ///< every row starts at a 16-byte boundary, so that 8 elements move as whole words
};

template <bool along_k, typename T>
Operand<T, along_k> make_operand(const T* data, int64_t ld, int64_t extent) {
  const bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0 && ld * static_cast<int64_t>(sizeof(T)) % 16 == 0;
  return {data, ld, extent, aligned};
}

namespace gemm {

// A thread's 8x8 block of c takes 64 multiply-adds per 16 floats read from shared memory: enough to be bound by
// arithmetic. 256 threads make a 128x128 tile. Double buffers 16 deep take 32 KiB, and two blocks share an SM, so that
// one computes while the other waits at a barrier.
constexpr int kTile = 128, kTileK = 16, kThreads = 256, kBlocksPerSM = 2;
constexpr int kEach = 8;  // elements of each operand that a thread loads per step: 128 * 16 / 256
static_assert(kTile * kTileK == kThreads * kEach && kSumUnit % kTileK == 0);

using SmemTile = float[kTileK][kTile];  // [k][row]

/// The first row and k of this thread's 8 elements of a tile. Along k: 32 lanes take 32 rows, so that their transposing
/// stores to shared memory have no bank conflicts. Along rows: 16 lanes cover a line of 128.
template <bool along_k>
__device__ int fragment_row() {
  return along_k ? threadIdx.x % kTile : threadIdx.x % (kTile / kEach) * kEach;
}
template <bool along_k>
__device__ int fragment_k() {
  return along_k ? threadIdx.x / kTile * kEach : threadIdx.x / (kTile / kEach);
}

/// This thread's elements of a tile on their way to shared memory. Kept packed: unpacked here, each would occupy a
/// register while the previous step computes.
template <typename T>
struct Fragment {
  uint4 words[kEach * sizeof(T) / sizeof(uint4)];
};

/// Zero outside the matrix, in both operands: 0 * 0 adds nothing, where 0 * NaN would.
template <typename T, bool along_k>
__device__ Fragment<T> fetch(const Operand<T, along_k>& operand, int64_t first_row, int64_t first_k, int64_t k_extent) {
  const int64_t row = first_row + fragment_row<along_k>(), k = first_k + fragment_k<along_k>();
  const int64_t valid = along_k ? (row < operand.extent ? k_extent - k : 0) : (k < k_extent ? operand.extent - row : 0);
  const T* __restrict__ from = operand.data + (along_k ? row * operand.ld + k : k * operand.ld + row);
  if (valid >= kEach && operand.aligned) {
    Fragment<T> fragment;
#pragma unroll
    for (size_t i = 0; i < sizeof(fragment) / sizeof(uint4); ++i) {
      fragment.words[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
    }
    return fragment;
  }
  Pack<T, kEach> pack;
#pragma unroll
  for (int i = 0; i < kEach; ++i) pack.at[i] = i < valid ? from[i] : from_float<T>(0.0f);
  return bit_cast<Fragment<T>>(pack);
}

template <typename T, bool along_k>
__device__ void store(const Fragment<T>& fragment, SmemTile& tile) {
  const auto pack = bit_cast<Pack<T, kEach>>(fragment);
  const int row = fragment_row<along_k>(), k = fragment_k<along_k>();
  if constexpr (along_k) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) tile[k + i][row] = to_float(pack.at[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kEach; i += 4) {
      *reinterpret_cast<float4*>(&tile[k][row + i]) = {to_float(pack.at[i]), to_float(pack.at[i + 1]),
                                                       to_float(pack.at[i + 2]), to_float(pack.at[i + 3])};
    }
  }
}

// A warp computes 32x64 of the tile: 4x8 lanes, each with rows {0..3, 16..19} + 4*lane_m and columns
// {0..3, 32..35} + 4*lane_n, so that a 16-byte read of shared memory by the warp touches every bank at most once.
constexpr int kWarpM = 32, kWarpN = 64, kLanesN = 8;
__device__ inline int tile_m(int i) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  return warp / (kTile / kWarpN) * kWarpM + lane / kLanesN * 4 + i / 4 * (kWarpM / 2) + i % 4;
}
__device__ inline int tile_n(int j) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  return warp % (kTile / kWarpN) * kWarpN + lane % kLanesN * 4 + j / 4 * (kWarpN / 2) + j % 4;
}

__device__ inline void multiply(const SmemTile& a, const SmemTile& b, float (&sum)[8][8]) {
#pragma unroll
  for (int k = 0; k < kTileK; ++k) {
    float x[8], y[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<float4*>(&x[half * 4]) = *reinterpret_cast<const float4*>(&a[k][tile_m(half * 4)]);
      *reinterpret_cast<float4*>(&y[half * 4]) = *reinterpret_cast<const float4*>(&b[k][tile_n(half * 4)]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
    }
  }
}

/// Loads c into the accumulators.
__device__ inline void load_accumulators(float (&sum)[8][8], const float* __restrict__ c, int64_t ldc, int64_t first_m,
                                         int64_t first_n, int64_t m_extent) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t m = first_m + tile_m(i);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t n = first_n + tile_n(half * 4);
      if (m >= m_extent || n >= ldc) continue;
      const float4 old = *reinterpret_cast<const float4*>(c + m * ldc + n);
      sum[i][half * 4] = old.x, sum[i][half * 4 + 1] = old.y;
      sum[i][half * 4 + 2] = old.z, sum[i][half * 4 + 3] = old.w;
    }
  }
}

/// Adds the unit's sums to c (or stores them) and clears them. Only this thread ever touches these elements of c.
/// quads: c is aligned to 16 bytes and ldc a multiple of 4, so that four elements move at once.
template <bool quads = true>
__device__ void store_accumulators(float (&sum)[8][8], float* __restrict__ c, int64_t ldc, int64_t first_m,
                                   int64_t first_n, int64_t m_extent, bool add) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t m = first_m + tile_m(i);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t n = first_n + tile_n(half * 4);
      if constexpr (!quads) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (m >= m_extent || n + j >= ldc) continue;
          float* out = c + m * ldc + n + j;
          *out = add ? *out + sum[i][half * 4 + j] : sum[i][half * 4 + j];
        }
      } else if (m < m_extent && n < ldc) {
        auto* out = reinterpret_cast<float4*>(c + m * ldc + n);
        float4 value = {sum[i][half * 4], sum[i][half * 4 + 1], sum[i][half * 4 + 2], sum[i][half * 4 + 3]};
        if (add) {
          const float4 old = *out;
          value = {old.x + value.x, old.y + value.y, old.z + value.z, old.w + value.w};
        }
        *out = value;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i][half * 4 + j] = 0.0f;
    }
  }
}

/// The tile of c from (first_m, first_n) on, by a block of kThreads; see gemm_kernel() and store_accumulators().
template <bool chain, bool quads, typename TA, bool a_along_k, typename TB, bool b_along_k>
__device__ __forceinline__ void multiply_tile(const Operand<TA, a_along_k>& a, const Operand<TB, b_along_k>& b,
                                              int64_t k_extent, int64_t first_m, int64_t first_n, float* __restrict__ c,
                                              int64_t ldc, bool accumulate) {
  __shared__ __align__(16) SmemTile a_tile[2], b_tile[2];
  float sum[8][8] = {};
  if constexpr (chain) load_accumulators(sum, c, ldc, first_m, first_n, a.extent);
  store<TA, a_along_k>(fetch(a, first_m, 0, k_extent), a_tile[0]);
  store<TB, b_along_k>(fetch(b, first_n, 0, k_extent), b_tile[0]);
  __syncthreads();
  int now = 0;
  // At least one step, so that an empty sum stores zeros. All conditions on k are uniform across the block.
  for (int64_t k = 0; k == 0 || k < k_extent; k += kTileK) {
    const int64_t next = k + kTileK;
    const bool more = next < k_extent;
    Fragment<TA> a_next;
    Fragment<TB> b_next;
    if (more) {  // loads are in flight while this step computes
      a_next = fetch(a, first_m, next, k_extent);
      b_next = fetch(b, first_n, next, k_extent);
    }
    multiply(a_tile[now], b_tile[now], sum);
    if (more) {  // the other buffer: its last readers have passed the barrier of the previous step
      store<TA, a_along_k>(a_next, a_tile[1 - now]);
      store<TB, b_along_k>(b_next, b_tile[1 - now]);
    }
    if (!more || (!chain && next % kSumUnit == 0)) {
      store_accumulators<quads>(sum, c, ldc, first_m, first_n, a.extent, !chain && accumulate);
      accumulate = true;
    }
    __syncthreads();
    now = 1 - now;
  }
}

}  // namespace gemm

/// The largest b.extent: a grid has 65535 blocks in y.
constexpr int64_t kMaxGemmColumns = int64_t{65535} * gemm::kTile;

/// c: [a.extent, ldc] f32, 16-byte aligned, ldc >= b.extent and a multiple of 4. Columns from b.extent up to ldc are
/// overwritten (by zeros) as far as the last tile reaches; with `chain` they keep what they hold. Launch with
/// launch_gemm() or launch_gemm_chain().
template <bool chain, typename TA, bool a_along_k, typename TB, bool b_along_k>
__global__ __launch_bounds__(gemm::kThreads,
                             gemm::kBlocksPerSM) void gemm_kernel(Operand<TA, a_along_k> a, Operand<TB, b_along_k> b,
                                                                  int64_t k_extent, float* __restrict__ c, int64_t ldc,
                                                                  bool accumulate) {
  gemm::multiply_tile<chain, true>(a, b, k_extent, int64_t{blockIdx.x} * gemm::kTile, int64_t{blockIdx.y} * gemm::kTile,
                                   c, ldc, accumulate);
}

/// Enqueues. The caller checks for launch errors once, after its last kernel. Blocks of the same column of tiles are
/// neighbours, so that they share b's tile in L2.
template <bool chain = false, typename TA, bool a_along_k, typename TB, bool b_along_k>
void launch_gemm(const Operand<TA, a_along_k>& a, const Operand<TB, b_along_k>& b, int64_t k_extent, float* c,
                 int64_t ldc, bool accumulate, cudaStream_t stream) {
  if (a.extent == 0 || b.extent == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(a.extent, gemm::kTile)),
                  static_cast<unsigned>(ceil_div(b.extent, gemm::kTile)));
  gemm_kernel<chain, TA, a_along_k, TB, b_along_k>
      <<<grid, gemm::kThreads, 0, stream>>>(a, b, k_extent, c, ldc, accumulate);
}

/// c += the product, in one chain of multiply-adds per element that begins with c.
template <typename TA, bool a_along_k, typename TB, bool b_along_k>
void launch_gemm_chain(const Operand<TA, a_along_k>& a, const Operand<TB, b_along_k>& b, int64_t k_extent, float* c,
                       int64_t ldc, cudaStream_t stream) {
  launch_gemm<true>(a, b, k_extent, c, ldc, true, stream);
}

}  // namespace checkop::kernels
