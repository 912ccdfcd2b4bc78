// SPDX-License-Identifier: Apache-2.0
// Kernel configuration: tile, consumer warpgroups, pipeline stages, cluster, loads and stores. It may depend on the
// sizes, because it changes no bit:
//
//   what fixes the bits of an element                        what may depend on the sizes
//   one fp32 accumulator, +0 before the first block          tile, warpgroups, width of wgmma, mma.sync in its place
//   blocks of 16 along k, at multiples of 16, upward,        stages, block_k (a multiple of 16), zeros beyond the end
//     the last one filled up with zeros                      of k, clusters and multicast, order of tiles, grid
//   then the bias added in fp32, one rounding                TMA or element-wise loads; staged or direct stores
//
// Never allowed: k split between blocks, warpgroups or accumulators, a tail on CUDA cores, an order that depends on
// timing. Hopper sums a block of 16 products and the accumulator as one operation, whose result does not depend on the
// shape of the instruction. Tests compare the configurations with mma.sync (gemm/mma.cuh), bit for bit.
#pragma once

#include "sm90/tensor_map.cuh"
#include "sm90/wgmma.cuh"

namespace checkop::kernels::sm90 {

constexpr int kWarpgroup = 128;  // threads of a warpgroup
constexpr int kMaxSmemBytes = 227 * 1024, kSmemAlign = 1024;

/// How the operands are loaded: by one thread through TMA, or element by element by a warpgroup where TMA can't.
enum class Loads { tma, elementwise };
/// How c is stored: through shared memory and TMA, or directly from the registers. Transposed: the kernel computes the
/// transpose of c, so that a tile has 64 columns of c for each warpgroup, and any multiple of 16 rows; also through
/// shared memory and TMA.
enum class Stores { staged, direct, transposed };

/// consumers: warpgroups that issue wgmma, 64 rows each; n: columns; stages: 0 for as many as fit. Blocks of a cluster
/// share columns (cluster_m blocks) or rows (cluster_n blocks): each loads its slice of the shared operand and
/// multicasts it. With tail_n below n, the last tiles may be divided along n, see GemmParams::whole.
template <int consumers, int n, int block_k, int stages, int cluster_m, int cluster_n, Loads loads, Stores stores,
          int tail_n = n>
struct KernelConfig {
  static constexpr int kConsumers = consumers, kM = 64 * consumers, kN = n, kTailN = tail_n, kBlockK = block_k;
  static constexpr int kParts = n / tail_n;
  static constexpr int kClusterM = cluster_m, kClusterN = cluster_n, kCluster = cluster_m * cluster_n;
  static constexpr Loads kLoads = loads;
  static constexpr Stores kStores = stores;
  // A whole producer warpgroup may give up registers for the consumers: 384 threads get 168 registers each, 512 get
  // 128, 640 get 96, and the accumulators and packed sums of a consumer need up to 192.
  static constexpr bool kUsesSetmaxnreg =
      loads == Loads::tma && ((consumers == 2 && n >= 224) || (consumers >= 3 && n >= 128));
  static constexpr int kProducerRegisters = consumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = consumers == 2 ? 232 : consumers == 3 ? 160 : 112;
  static constexpr int kProducerThreads = loads == Loads::elementwise || kUsesSetmaxnreg ? kWarpgroup : kWarp;
  static constexpr int kThreads = consumers * kWarpgroup + kProducerThreads;
  // A consumer that asks for more registers than there are would wait forever.
  static_assert(!kUsesSetmaxnreg ||
                consumers * kConsumerRegisters + kProducerRegisters <= 65536 / kThreads / 8 * 8 * (consumers + 1));

  static constexpr int kStageBytes = (kM + kN) * kBlockK * 2;
  // A box is what TMA stores at a time, kBoxColumns columns of 16 bits of the tile. Staged stores: 16 rows, each warp
  // with buffers of its own. Transposed ones: 64 rows, in buffers of a warpgroup; kBoxBytes is the share of a warp.
  static constexpr bool kTransposes = stores == Stores::transposed;
  static constexpr int kBoxColumns = n % 64 == 0 ? 64 : kTransposes && n % 48 == 0 ? 48 : n % 32 == 0 ? 32 : 16;
  static constexpr int kBoxBytes = 16 * kBoxColumns * 2, kStoreBuffers = 2;
  static constexpr int kBoxes = stores == Stores::direct ? 0 : n / kBoxColumns;
  static constexpr int kStagingBytes = stores == Stores::direct ? 0 : consumers * 4 * kStoreBuffers * kBoxBytes;
  static constexpr int kFreeBytes = kMaxSmemBytes - kSmemAlign - kStagingBytes - 1024;
  static constexpr int kStages = stages > 0 ? stages : kFreeBytes / kStageBytes;
  static constexpr int kBarrierOffset = kStages * kStageBytes + kStagingBytes;
  static constexpr int kDynamicSmemBytes = kBarrierOffset + 2 * kStages * kBarrierBytes + kSmemAlign;
  static_assert(kDynamicSmemBytes <= kMaxSmemBytes && kStageBytes % 1024 == 0 && kStages > 1);
  static_assert(stores == Stores::direct || n % kBoxColumns == 0);
  static_assert(stores != Stores::staged || kBoxColumns >= 32);
  static_assert(loads == Loads::tma || kCluster == 1);
  static_assert(kCluster <= 8);  // supported by every device
};

/// Tile number -> tile coordinates, rasterized in bands of tiles along m, with n as the outer index within a band, so
/// that blocks that run together share rows and columns in L2.
struct TileIndex {
  uint32_t m, n;
};
__device__ inline TileIndex tile_index(uint32_t tile, uint32_t tiles_m, uint32_t tiles_n, uint32_t band) {
  if (tiles_m == 1) return {0, tile};  // small products: a division takes a noticeable part of their time
  const uint32_t first = tile / (band * tiles_n) * band, within = tile % (band * tiles_n);
  const uint32_t height = min(tiles_m - first, band);
  return {first + within % height, within / height};
}

/// How many of the last tiles are divided into parts: those that `clusters` would leave over after whole waves, if each
/// cluster then has at most one part.
template <typename Config>
__host__ __device__ constexpr int64_t divided_tiles(int64_t tiles, int64_t clusters) {
  const int64_t rest = tiles % clusters;
  return Config::kParts > 1 && rest * Config::kParts <= clusters ? rest : 0;
}

/// Pipeline state of a thread: its current stage, and the parity of the phase that it waits for.
template <int stages>
struct PipelineState {
  uint32_t stage = 0, parity = 0;
  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace checkop::kernels::sm90
