// SPDX-License-Identifier: Apache-2.0
// Products of e4m3 codes with scales for blocks of 128 terms on Hopper: a persistent, warp-specialized kernel. A
// producer thread loads both operands through TMA into the stages of a pipeline, one block of 128 codes of k at a time;
// consumer warpgroups multiply a block on the tensor cores and add the result, times its scales, to fp32 accumulators.
//
//   what fixes the bits of an element                        what may depend on the sizes
//   blocks of 128 along k, upward; each in an accumulator    tile, warpgroups, width of wgmma, stages, clusters and
//     of its own, four instructions of 32 terms, upward      multicast, order of tiles, grid, staged or direct stores
//   d = 0, then d = fma(scale_a scale_b, block, d)
//   then one rounding
//
// So the bits of a row depend on that row and on b alone. The tensor cores keep few bits of a sum within a block, which
// is why it is added up outside of them. Behind the end of k both operands are zeros.
#pragma once

#include "cuda/fp8_product.cuh"
#include "sm90/select.cuh"

namespace checkop::kernels::sm90 {

/// Operands, [rows, k_dim] and [n_dim, k_dim], and d, [rows, n_dim]. With many products, the matrices of b and their
/// scales lie one after the other.
template <typename T, typename Products = OneProduct>
struct Fp8Params {
  CUtensorMap a_map, b_map, d_map;    ///< the last one is set only when staged
  const float* __restrict__ scale_a;  ///< [rows, blocks]
  const float* __restrict__ scale_b;  ///< [n_dim / 128 rounded up, blocks]
  T* __restrict__ d;
  int64_t rows, n_dim, k_dim;
  int blocks;                       ///< of 128 along k; at least 1
  uint32_t tiles_m, tiles_n, band;  ///< in tiles of a whole cluster; with many products the kernel finds tiles_m
  int a_lines;                      ///< rows of `a` that a block loads at a time; fewer than its share for few rows
  bool staged;                      ///< stores d through shared memory and TMA
  Products products;
};

/// The scales of the two rows of a thread, those of a row of `a` times those of the columns of the tile. The four lanes
/// of a row hold those of four of the `blocks` blocks of k, and those of the next four are on their way.
class RowScales {
 public:
  /// `row` and `columns` point to the scales of the first block; those of the second row are `below` floats away.
  __device__ RowScales(const float* row, int below, const float* columns, int blocks)
      : row_(row), columns_(columns), below_(below) {
    load(0, blocks);
  }
  /// Sets the scales of the two rows for the next block. Blocks come in order, from the first one on.
  __device__ void next(float& of_upper, float& of_lower, int blocks) {
    if (block_ % 4 == 0) {
      scale_[0] = coming_[0] * coming_[2], scale_[1] = coming_[1] * coming_[2];
      load(block_ + 4, blocks);
    }
    const int lane = threadIdx.x % kWarp / 4 * 4 + block_ % 4;
    of_upper = __shfl_sync(kAllLanes, scale_[0], lane), of_lower = __shfl_sync(kAllLanes, scale_[1], lane);
    ++block_;
  }
  /// Whether that was the last block.
  __device__ bool ended(int blocks) const { return block_ == blocks; }

 private:
  __device__ void load(int block, int blocks) {
    block += static_cast<int>(threadIdx.x % 4);
    const bool exists = block < blocks;
    coming_[0] = exists ? __ldg(row_ + block) : 0.0f, coming_[1] = exists ? __ldg(row_ + below_ + block) : 0.0f;
    coming_[2] = exists ? __ldg(columns_ + block) : 0.0f;
  }

  const float *row_, *columns_;
  int below_, block_ = 0;
  float coming_[3], scale_[2];
};

/// Config is a KernelConfig of 16-bit operands with 64 of them along k: lines of as many bytes as 128 codes.
template <typename Config, typename T, typename Products = OneProduct>
__global__ __launch_bounds__(Config::kThreads, 1) void fp8_kernel(const __grid_constant__ Fp8Params<T, Products> p) {
  using LayoutA = SmemLayout<true, Config::kM, Config::kBlockK>;
  using LayoutB = SmemLayout<true, Config::kN, Config::kBlockK>;
  using BoxB = Box<LayoutB, true, Config::kClusterM>;
  constexpr int kBlock = fp8::kBlock;
  static_assert(LayoutA::kLine == kBlock && LayoutA::kSlabs == 1 && Config::kLoads == Loads::tma);
  static_assert(kBlock % Config::kN == 0);  // the columns of a tile share scales
  static_assert(Config::kStageBytes == LayoutA::kBytes + LayoutB::kBytes && Config::kParts == 1);
  extern __shared__ uint8_t dynamic[];
  // See wgmma_kernel().
  const uint32_t base = __shfl_sync(kAllLanes, (shared_address(dynamic) + kSmemAlign - 1) / kSmemAlign * kSmemAlign, 0);
  const auto full = [&](uint32_t stage) { return base + Config::kBarrierOffset + stage * kBarrierBytes; };
  const auto empty = [&](uint32_t stage) { return full(Config::kStages + stage); };
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarp), 0);
  const int lane = threadIdx.x % kWarp;

  constexpr int kFirstProducerWarp = Config::kConsumers * 4;  // the warps before it are consumers
  if (warp == kFirstProducerWarp && lane == 0) {
    prefetch_tensor_map(p.a_map);
    prefetch_tensor_map(p.b_map);
    for (int stage = 0; stage < Config::kStages; ++stage) {
      init_barrier(full(stage), 1);
      // One arrival from each consumer warp of every block that receives this block's loads.
      init_barrier(empty(stage), Config::kConsumers * 4 * (Config::kClusterM + Config::kClusterN - 1));
    }
    fence_barrier_init();
  }
  __syncwarp();
  if constexpr (Config::kCluster > 1) {
    cluster_sync();
  } else {
    named_barrier_sync(0, Config::kThreads);
  }
  wait_for_kernel_before();

  const int rank = Config::kCluster > 1 ? static_cast<int>(rank_in_cluster()) : 0;
  const int rank_m = rank % Config::kClusterM, rank_n = rank / Config::kClusterM;
  const uint32_t stride = gridDim.x / Config::kCluster;
  uint32_t tiles_m = p.tiles_m;
  if constexpr (Products::kMany) tiles_m = p.products.row_tiles();
  const uint32_t tiles = tiles_m * p.tiles_n;
  const auto tile_of = [&](uint32_t item) -> Tile {
    const TileIndex index = p.products.index(item, tiles_m, p.tiles_n, p.band);
    const int64_t n = (int64_t{index.n} * Config::kClusterN + rank_n) * Config::kN;
    if constexpr (Products::kMany) {
      return p.products.template tile<Config>(index.m, rank_m, n);
    } else {
      const int64_t m = (int64_t{index.m} * Config::kClusterM + rank_m) * Config::kM;
      return {m, n, m, n, 0, 0, p.rows, p.k_dim};
    }
  };

  if (warp >= kFirstProducerWarp) {
    if constexpr (Config::kUsesSetmaxnreg) setmaxnreg_dec<Config::kProducerRegisters>();
    if (warp != kFirstProducerWarp || !elect_one()) return;
    PipelineState<Config::kStages> pipe;
    constexpr uint32_t kColumnMask = (1u << Config::kClusterM) - 1;
    uint32_t row_mask = 0;
    for (int i = 0; i < Config::kClusterN; ++i) row_mask |= 1u << (rank_m + i * Config::kClusterM);
    // Rows that are not loaded hold stale data; their results are not stored.
    const int stage_bytes = LayoutB::kBytes + p.a_lines * Config::kClusterN * LayoutA::kLine;
    for (uint32_t item = blockIdx.x / Config::kCluster; item < tiles; item += stride) {
      const Tile tile = tile_of(item);
      for (int block = 0; block < p.blocks; ++block) {
        const uint32_t a_tile = base + pipe.stage * Config::kStageBytes, b_tile = a_tile + LayoutA::kBytes;
        wait(empty(pipe.stage), pipe.parity ^ 1);
        arrive_expect_tx(full(pipe.stage), stage_bytes);
        load_slice<LayoutA, true, Config::kClusterN>(p.a_map, a_tile, full(pipe.stage), static_cast<int>(tile.a_row),
                                                     block * kBlock, rank_n, p.a_lines,
                                                     static_cast<uint16_t>(row_mask));
        load_slice<LayoutB, true, Config::kClusterM>(
            p.b_map, b_tile, full(pipe.stage), static_cast<int>(tile.b_row), block * kBlock, rank_m, BoxB::kLines,
            static_cast<uint16_t>(kColumnMask << (rank_n * Config::kClusterM)));
        pipe.advance();
      }
    }
    // A block must not exit while another may still arrive at its barriers.
    for (int i = 0; i < Config::kStages && Config::kCluster > 1; ++i, pipe.advance()) {
      wait(empty(pipe.stage), pipe.parity ^ 1);
    }
  } else {
    if constexpr (Config::kUsesSetmaxnreg) setmaxnreg_inc<Config::kConsumerRegisters>();
    const int group = warp / 4;
    // A stage is released to every block that fills it: lane i arrives at the i-th such block's barrier.
    constexpr int kProducers = Config::kClusterM + Config::kClusterN - 1;
    // First the blocks of the same columns, then the others of the same rows
    int producer = lane + Config::kClusterM * rank_n;
    if (lane >= Config::kClusterM) {
      const int i = lane - Config::kClusterM;
      producer = rank_m + Config::kClusterM * (i < rank_n ? i : i + 1);
    }
    const auto release = [&](uint32_t stage) {
      if constexpr (Config::kCluster == 1) {
        if (lane == 0) arrive(empty(stage));
      } else {
        if (lane < kProducers) arrive_remote(empty(stage), producer);
      }
    };
    const uint64_t first_a = LayoutA::descriptor(base + group * 64 * LayoutA::kLine);  // of the first stage
    const uint64_t first_b = LayoutB::descriptor(base + LayoutA::kBytes);
    constexpr int kCount = Config::kN / 2;
    float sum[kCount];
    PipelineState<Config::kStages> pipe;
    const auto multiply = [&](float(&of_block)[kCount]) {
      wait(full(pipe.stage), pipe.parity);
      const uint64_t a = first_a + pipe.stage * (Config::kStageBytes / 16);
      const uint64_t b = first_b + pipe.stage * (Config::kStageBytes / 16);
      pin_registers(of_block);
      wgmma_fence();
#pragma unroll
      for (int q = 0; q < kBlock / 32; ++q) {
        wgmma_e4m3<Config::kN>(of_block, a + LayoutA::k_offset(q) / 16, b + LayoutB::k_offset(q) / 16, q);
      }
      wgmma_commit_group();
      pipe.advance();
    };
    const auto scales_of = [&](const Tile& tile) {
      const int64_t row = tile.m + group * 64 + warp % 4 * 16 + lane / 4, last = tile.m_end - 1;
      const int64_t upper = min(row, last);
      const auto below = static_cast<int>(min(row + 8, last) - upper);  // of rows
      int64_t of_columns = min(tile.n, p.n_dim - 1) / kBlock;           // a block of a cluster may have no columns
      if constexpr (Products::kMany) of_columns += (tile.b_row - tile.n) / p.n_dim * ceil_div(p.n_dim, int64_t{kBlock});
      return RowScales(p.scale_a + upper * p.blocks, below * p.blocks, p.scale_b + of_columns * p.blocks, p.blocks);
    };
    const uint32_t staging =
        base + Config::kStages * Config::kStageBytes + warp * Config::kStoreBuffers * Config::kBoxBytes;
    uint32_t store_buffer = 0;
    const auto store = [&](const Tile& tile) {
      const int64_t m = tile.m + group * 64;
      if constexpr (Config::kStores == Stores::staged && sizeof(T) == 2) {
        if (p.staged) {
          uint32_t packed[kCount / 2];
          pack_sums<T>(sum, packed);
#pragma unroll
          for (int box = 0; box < Config::kBoxes; ++box) {
            const uint32_t* const of_box = packed + box * (Config::kBoxColumns / 4);
            const uint32_t buffer = staging + store_buffer * Config::kBoxBytes;
            const int m_of_warp = static_cast<int>(m) + warp % 4 * 16;
            const int n = static_cast<int>(tile.n) + box * Config::kBoxColumns;
            const int m_end = static_cast<int>(tile.m_end), n_dim = static_cast<int>(p.n_dim);
            if constexpr (Products::kMany) {
              store_staged_rows<Config>(of_box, p.d_map, buffer, p.d, m_of_warp, n, m_end, n_dim);
            } else {
              store_staged<Config>(of_box, p.d_map, buffer, m_of_warp, n, m_end, n_dim);
            }
            store_buffer = (store_buffer + 1) % Config::kStoreBuffers;
          }
          return;
        }
      }
      store_direct<Config>(sum, p.d, p.n_dim, m, tile.n, tile.m_end, p.n_dim);
    };

    uint32_t item = blockIdx.x / Config::kCluster;
    if (item >= tiles) return;
    // The blocks of all tiles are one sequence: while the tensor cores multiply one, the one before is added to the
    // sums, which are stored if it was the last one of its tile.
    // Blocks whose product is not begun. Operands and d that fit in memory have fewer than 2^31 for each thread block.
    int left = static_cast<int>((tiles - item - 1) / stride + 1) * p.blocks;
    RowScales scales = scales_of(tile_of(item));
    uint32_t oldest = 0;  // the stage that is to be released next
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] = 0.0f;
    const auto add = [&](float(&of_block)[kCount]) {
      release(oldest);
      oldest = oldest + 1 == Config::kStages ? 0 : oldest + 1;
      float upper, lower;
      scales.next(upper, lower, p.blocks);
      pin_registers(of_block);  // no use moves above the wait
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum[i] = fmaf(i % 4 < 2 ? upper : lower, of_block[i], sum[i]);
      if (!scales.ended(p.blocks)) return;
      const uint32_t done = item;
      item += stride;
      if (item < tiles) scales = scales_of(tile_of(item));  // early: they are needed soon
      store(tile_of(done));
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum[i] = 0.0f;
    };
    float even[kCount], odd[kCount];
    multiply(even);
    while (--left >= 2) {
      multiply(odd);
      wgmma_wait_group<1>();
      add(even);
      multiply(even);
      wgmma_wait_group<1>();
      add(odd);
      --left;
    }
    if (left == 1) {
      multiply(odd);
      wgmma_wait_group<1>();
      add(even);
      wgmma_wait_group<0>();
      add(odd);
    } else {
      wgmma_wait_group<0>();
      add(even);
    }
    if constexpr (Config::kStores == Stores::staged) {
      if (lane == 0) tma_store_wait<0>();
    }
  }
}

/// A block of 128 codes takes as many bytes, and as much time of the tensor cores, as 64 numbers of 16 bits. Sums of
/// two blocks and those over all blocks need more registers than 384 threads get, hence setmaxnreg.
template <int consumers, int n, int cluster_m, int cluster_n>
struct Fp8Config : KernelConfig<consumers, n, 64, 0, cluster_m, cluster_n, kTma, kStaged> {
  static constexpr bool kUsesSetmaxnreg = consumers == 2 && n == 128;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static constexpr int kProducerThreads = kUsesSetmaxnreg ? kWarpgroup : kWarp;
  static constexpr int kThreads = consumers * kWarpgroup + kProducerThreads;
};

// "Columns" and "Rows" name what the two blocks of a cluster share. Speeds: fitted to times measured on an H200 with
// one launch right behind the other, which hides part of what is fixed.
struct Fp8Tile128x128Columns : Fp8Config<2, 128, 2, 1> {
  static constexpr const char* kVariant = "wgmma, tile 128x128, clusters of 2 that share columns";
  static constexpr Speed kSpeed{2685, 374, 0, 46, 1062, true};
};
struct Fp8Tile128x128Rows : Fp8Config<2, 128, 1, 2> {
  static constexpr const char* kVariant = "wgmma, tile 128x128, clusters of 2 that share rows";
  static constexpr Speed kSpeed{2475, 352, 46, 46, 782, true};
};
struct Fp8Tile128x128 : Fp8Config<2, 128, 1, 1> {
  static constexpr const char* kVariant = Tile128x128::kVariant;
  static constexpr Speed kSpeed{2732, 262, 140, 95, 735, true};
};
struct Fp8Tile128x64 : Fp8Config<2, 64, 1, 1> {
  static constexpr const char* kVariant = Tile128x64::kVariant;
  static constexpr Speed kSpeed{2968, 171, 126, 7, 537, true};
};
struct Fp8Tile64x128Columns : Fp8Config<1, 128, 2, 1> {
  static constexpr const char* kVariant = Tile64x128Columns::kVariant;
  static constexpr Speed kSpeed{2111, 259, 0, 38, 868, true};
};
struct Fp8Tile64x128 : Fp8Config<1, 128, 1, 1> {
  static constexpr const char* kVariant = Tile64x128::kVariant;
  static constexpr Speed kSpeed{1662, 108, 170, 68, 905, true};
};
struct Fp8Tile64x64 : Fp8Config<1, 64, 1, 1> {
  static constexpr const char* kVariant = Tile64x64::kVariant;
  static constexpr Speed kSpeed{2454, 111, 78, 48, 416, true};
};

/// Calls run(Config{}) for the configuration with the least estimated time; `p` counts k in pairs of codes.
template <typename AnyProblem, typename Run>
auto with_fp8_config(const AnyProblem& p, Run&& run) {
  return with_fastest(p, run, Fp8Tile128x128Columns{}, Fp8Tile128x128Rows{}, Fp8Tile128x128{}, Fp8Tile128x64{},
                      Fp8Tile64x128Columns{}, Fp8Tile64x128{}, Fp8Tile64x64{});
}

/// Refuses a call that is judged as if its sums kept more than those of these tensor cores do.
inline checkop_status check_fp8_bound(const checkop_call* call) {
  constexpr double kBits = 14, kTerms = 32;
  double bits = 0, terms = 0;
  if (auto status = read_attribute(call, "acc_bits", bits)) return status;
  if (auto status = read_attribute(call, "acc_terms", terms)) return status;
  if (bits <= kBits && terms >= kTerms) return CHECKOP_OK;
  return say(call, CHECKOP_UNSUPPORTED, "acc_bits %g and acc_terms %g: tensor cores keep %g bits and add %g products",
             bits, terms, kBits, kTerms);
}

/// Refuses matrices of codes that TMA can't read.
inline checkop_status check_fp8_matrices(const checkop_call* call, const Matrix& a, const Matrix& b) {
  if (has_tensor_map<uint8_t>(a) && has_tensor_map<uint8_t>(b)) return CHECKOP_OK;
  return say(
      call, CHECKOP_UNSUPPORTED,
      "k_dim %lld: TMA reads rows of a multiple of 16 codes, from 16-byte boundaries on, and at most 2^30 of them",
      static_cast<long long>(a.length));
}

/// Enqueues the products of `p`, of which it sets the maps and what depends on the configuration. TMA loads from
/// a_matrix and b_matrix, which must have tensor maps. row_tiles: the most tiles of a cluster along m.
template <typename Config, typename T, typename Products>
cudaError_t launch_fp8(Fp8Params<T, Products>& p, const Matrix& a_matrix, const Matrix& b_matrix, int64_t row_tiles,
                       cudaStream_t stream) {
  using BoxA = Box<SmemLayout<true, Config::kM, Config::kBlockK>, true, Config::kClusterN>;
  using BoxB = Box<SmemLayout<true, Config::kN, Config::kBlockK>, true, Config::kClusterM>;
  constexpr auto function = fp8_kernel<Config, T, Products>;
  p.tiles_m = static_cast<uint32_t>(row_tiles);
  p.tiles_n = static_cast<uint32_t>(ceil_div(p.n_dim, Config::kN * Config::kClusterN));
  p.band = kBandRows / (Config::kM * Config::kClusterM);
  p.a_lines = BoxA::kLines;
  if (!Products::kMany && row_tiles == 1 && Config::kClusterM == 1) {  // loads only rows that exist
    p.a_lines = static_cast<int>(std::min<int64_t>(p.a_lines, round_up(ceil_div(p.rows, Config::kClusterN), 8)));
  }
  if (!make_tensor_map<uint8_t>(p.a_map, a_matrix, fp8::kBlock, p.a_lines, L2Promotion::none) ||
      !make_tensor_map<uint8_t>(p.b_map, b_matrix, fp8::kBlock, BoxB::kLines, L2Promotion::none)) {
    return cudaErrorInvalidValue;
  }
  p.staged = false;
  if constexpr (Config::kStores == Stores::staged && sizeof(T) == 2) {
    const Matrix d{p.d, p.n_dim, p.rows, p.n_dim};
    p.staged = has_tensor_map<T>(d);
    if (p.staged && !make_tensor_map<T>(p.d_map, d, Config::kBoxColumns, 16, L2Promotion::none))
      return cudaErrorInvalidValue;
  }
  int resident = 0;
  if (const auto error = prepare<Config>(reinterpret_cast<const void*>(function), resident)) return error;
  return enqueue<Config>(function, p, row_tiles * p.tiles_n, resident, stream);
}

}  // namespace checkop::kernels::sm90
