// SPDX-License-Identifier: Apache-2.0
// How a product is divided among blocks, warpgroups and stages. Every choice here may depend on the sizes, because none
// changes a bit:
//
//   what fixes the bits of an element                        what may depend on the sizes
//   one fp32 accumulator, +0 before the first block          tile, warpgroups, width of wgmma, mma.sync in its place
//   blocks of 16 along k, at multiples of 16, upward,        stages, block_k (a multiple of 16), zeros beyond the end
//     the last one filled up with zeros                      of k, clusters and multicast, order of tiles, grid
//   then the bias added in fp32, one rounding                TMA or plain loads; staged or direct stores
//
// Never allowed: k split between blocks, warpgroups or accumulators, a tail on CUDA cores, an order that depends on
// timing. Hopper sums a block of 16 products and the accumulator as one operation, whose result does not depend on the
// shape of the instruction. Tests compare the plans with one another and with mma.sync (gemm/mma.cuh), bit for bit.
#pragma once

#include "sm90/tensor_map.cuh"
#include "sm90/wgmma.cuh"

namespace checkop::kernels::sm90 {

constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kSharedBytes = 227 * 1024, kSharedAlign = 1024;

/// Who loads the operands: one thread by TMA (copy_engine), or a warpgroup with plain loads where TMA can't.
enum class Loads { copy_engine, plain };
/// How c is stored: through shared memory and TMA, or directly from the registers.
enum class Stores { staged, direct };

/// groups: warpgroups that multiply, 64 rows each; n: columns; stages: 0 for as many as fit. Blocks of a cluster share
/// columns (cluster_m blocks) or rows (cluster_n blocks): each loads its part of the shared operand and multicasts it.
template <int groups, int n, int block_k, int stages, int cluster_m, int cluster_n, Loads loads, Stores stores>
struct Plan {
  static constexpr int kGroups = groups, kM = 64 * groups, kN = n, kBlockK = block_k;
  static constexpr int kClusterM = cluster_m, kClusterN = cluster_n, kCluster = cluster_m * cluster_n;
  static constexpr Loads kLoads = loads;
  static constexpr Stores kStores = stores;
  // 384 threads get 168 registers each, and 128 accumulators leave only 40 of them; so the loading warpgroup gives up
  // registers (setmaxnreg).
  static constexpr bool kMovesRegisters = groups == 2 && n == 256 && loads == Loads::copy_engine;
  static constexpr int kLoadThreads = loads == Loads::plain || kMovesRegisters ? kGroup : kWarp;
  static constexpr int kThreads = groups * kGroup + kLoadThreads;

  static constexpr int kStageBytes = (kM + kN) * kBlockK * 2;
  // Staged stores: boxes of 16 rows by 64 columns of 16 bits, each warp with buffers of its own.
  static constexpr int kBoxes = stores == Stores::staged ? n / 64 : 0, kBoxBytes = 16 * 64 * 2, kStoreBuffers = 2;
  static constexpr int kStagingBytes = stores == Stores::staged ? groups * 4 * kStoreBuffers * kBoxBytes : 0;
  static constexpr int kFreeBytes = kSharedBytes - kSharedAlign - kStagingBytes - 1024;
  static constexpr int kStages = stages > 0 ? stages : kFreeBytes / kStageBytes;
  static constexpr int kBarriersAt = kStages * kStageBytes + kStagingBytes;
  static constexpr int kDynamicBytes = kBarriersAt + 2 * kStages * kBarrierBytes + kSharedAlign;
  static_assert(kDynamicBytes <= kSharedBytes && kStageBytes % 1024 == 0 && kStages > 1);
  static_assert(stores == Stores::direct || n % 64 == 0);
  static_assert(loads == Loads::copy_engine || kCluster == 1);
  static_assert(kCluster <= 8);  // supported by every device
};

/// Tile number -> tile coordinates: bands of tiles along m, n as the outer index within a band, so that blocks that run
/// together share rows and columns in L2.
struct Place {
  uint32_t m, n;
};
__device__ inline Place place_of(uint32_t tile, uint32_t tiles_m, uint32_t tiles_n, uint32_t band) {
  if (tiles_m == 1) return {0, tile};  // small products: a division takes a noticeable part of their time
  const uint32_t first = tile / (band * tiles_n) * band, within = tile % (band * tiles_n);
  const uint32_t height = min(tiles_m - first, band);
  return {first + within % height, within / height};
}

/// Pipeline state of a thread: its current stage, and the parity of the phase that it waits for.
template <int stages>
struct Ring {
  uint32_t stage = 0, parity = 0;
  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace checkop::kernels::sm90
