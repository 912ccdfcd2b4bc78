// SPDX-License-Identifier: Apache-2.0
// sum_k a(m, k) * b(n, k) on Hopper: a persistent, warp-specialized kernel. A producer warp (or warpgroup) loads both
// operands into the stages of a pipeline; one to four consumer warpgroups multiply them. The epilogue decides what
// happens to the sums: StoreTiles (epilogue.cuh), or one that consumes them in registers. The products decide where the
// tiles lie: OneProduct, or several whose sizes only the device knows (grouped.cuh). config.cuh says what fixes the
// bits.
#pragma once

#include "cuda/dependent.cuh"
#include "sm90/epilogue.cuh"
#include "sm90/loader.cuh"

namespace checkop::kernels::sm90 {

/// A block's tile, or part of a tile. Coordinates of its first element:
struct Tile {
  int64_t m, n;          ///< in c
  int64_t a_row, b_row;  ///< in the matrices of the operands; the same if there is one product
  int64_t a_k, b_k;      ///< likewise, 0 if there is one product
  int64_t m_end, k;      ///< the end of the rows of its product, and the number of terms
};

// Interface of the products of a kernel:
//   index(tile, tiles_m, tiles_n, band)  where a tile of a cluster lies, in tiles; band: see tile_index()
//   kMany                            whether there are many products; only then the two functions below exist
//   row_tiles()                      the number of tiles along m of all products together
//   tile<Config>(index_m, rank_m, n) the tile of a cluster's block at place rank_m along m, from column n on
// With many products, an operand that is not along k may go on past the last term of a product; the kernel replaces the
// rest of its last tile by zeros. An operand along k must end with the last term, so that TMA reads zeros there.

/// The product of two whole operands.
struct OneProduct {
  static constexpr bool kMany = false;
  __device__ TileIndex index(uint32_t tile, uint32_t tiles_m, uint32_t tiles_n, uint32_t band) const {
    return tile_index(tile, tiles_m, tiles_n, band);
  }
};

template <typename T, typename Epilogue, bool a_along_k, bool b_along_k, typename Products = OneProduct>
struct GemmParams {
  CUtensorMap a_map, b_map;  ///< set only with Loads::tma
  Epilogue out;
  Operand<T, a_along_k> a;
  Operand<T, b_along_k> b;
  int64_t k;
  uint32_t tiles_m, tiles_n, band;  ///< in tiles of a whole cluster
  uint32_t whole;  ///< of these tiles, the first ones are computed whole, the others in kParts parts of kTailN columns
  bool starts_next;   ///< the next kernel may start when the last loads are on their way: both fit on the SMs
  int a_lines;        ///< lines per slab of `a` that a block loads if `a` is along k; fewer than a box for few rows
  Products products;  ///< with many products the kernel computes tiles_m and whole itself
};

constexpr int kFirstGroupBarrier = 2;  // of the named barriers: one for each warpgroup

/// The threads of the consumers set the lines from `valid` on of an operand's tile in shared memory to 0. The operand
/// is not along k: a line holds one k. Each thread must then call fence_proxy_async(), and all must wait for each
/// other.
template <typename Layout, int consumers>
__device__ void clear_lines(uint8_t* tile, int valid) {
  const int count = (Layout::kLines - valid) * (Layout::kLine / 16);
#pragma unroll 1
  for (int slab = 0; slab < Layout::kSlabs; ++slab) {
    auto* const to = reinterpret_cast<uint4*>(tile + slab * Layout::kSlab + valid * Layout::kLine);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += consumers * kWarpgroup) to[i] = uint4{};
  }
}

template <typename Config, typename T, typename Epilogue, bool a_along_k, bool b_along_k,
          typename Products = OneProduct>
__global__ __launch_bounds__(Config::kThreads, 1) void wgmma_kernel(
    const __grid_constant__ GemmParams<T, Epilogue, a_along_k, b_along_k, Products> p) {
  using LayoutA = SmemLayout<a_along_k, Config::kM, Config::kBlockK>;
  using LayoutB = SmemLayout<b_along_k, Config::kN, Config::kBlockK>;
  using BoxA = Box<LayoutA, a_along_k, Config::kClusterN>;
  using PartB = SmemLayout<b_along_k, Config::kTailN, Config::kBlockK>;
  using BoxB = Box<PartB, b_along_k, Config::kClusterM>;
  static_assert(LayoutB::kBytes == Config::kParts * PartB::kBytes);
  static_assert(Config::kParts == 1 || !b_along_k || LayoutB::kSlabs == 1);  // the parts of a tile are contiguous
  static_assert(Config::kStageBytes == LayoutA::kBytes + LayoutB::kBytes);
  static_assert(!Products::kMany || Config::kLoads == Loads::tma);
  static_assert(!Products::kMany || !Config::kTransposes);
  extern __shared__ uint8_t dynamic[];
  // Offsets must be the same in all blocks of a cluster: multicast needs that. The compiler keeps the result of
  // __shfl_sync(), while it would compute the address again in every step.
  const uint32_t unaligned = shared_address(dynamic);
  const uint32_t base = __shfl_sync(kAllLanes, (unaligned + kSmemAlign - 1) / kSmemAlign * kSmemAlign, 0);
  const auto full = [&](uint32_t stage) { return base + Config::kBarrierOffset + stage * kBarrierBytes; };
  const auto empty = [&](uint32_t stage) { return full(Config::kStages + stage); };
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarp), 0);
  const int lane = threadIdx.x % kWarp;

  constexpr int kFirstProducerWarp = Config::kConsumers * 4;  // the warps before it are consumers
  if (warp == kFirstProducerWarp && lane == 0) {
    if constexpr (Config::kLoads == Loads::tma) {
      prefetch_tensor_map(p.a_map);
      prefetch_tensor_map(p.b_map);
    }
    for (int stage = 0; stage < Config::kStages; ++stage) {
      init_barrier(full(stage), Config::kLoads == Loads::elementwise ? Config::kProducerThreads : 1);
      // One arrival from each consumer warp of every block that receives this block's loads.
      init_barrier(empty(stage), Config::kConsumers * 4 * (Config::kClusterM + Config::kClusterN - 1));
    }
    fence_barrier_init();
  }
  __syncwarp();
  if constexpr (Config::kCluster > 1) {
    cluster_sync();
  } else if (Config::kLoads == Loads::tma && warp >= kFirstProducerWarp) {
    named_barrier_arrive(0, Config::kThreads);  // the producer initialized the barriers itself, so it does not wait
  } else {
    named_barrier_sync(0, Config::kThreads);
  }
  wait_for_kernel_before();

  const int rank = Config::kCluster > 1 ? static_cast<int>(rank_in_cluster()) : 0;
  const int rank_m = rank % Config::kClusterM, rank_n = rank / Config::kClusterM;
  const uint32_t stride = gridDim.x / Config::kCluster;
  // An item is what a cluster computes at a time: a whole tile or a part of one.
  uint32_t tiles_m = p.tiles_m, whole = p.whole;
  if constexpr (Products::kMany) {
    tiles_m = p.products.row_tiles();
    whole = tiles_m * p.tiles_n;
    if constexpr (Config::kParts > 1) {
      if (p.out.staged) whole -= static_cast<uint32_t>(divided_tiles<Config>(whole, stride));
    }
  }
  const uint32_t items = whole + (tiles_m * p.tiles_n - whole) * Config::kParts;
  const auto is_part = [&](uint32_t item) { return Config::kParts > 1 && item >= whole; };
  const auto one_product_steps = static_cast<int>(ceil_div(p.k, Config::kBlockK));
  const auto steps_of = [&](const Tile& tile) {
    if constexpr (!Products::kMany) return one_product_steps;
    return max(static_cast<int>(ceil_div(tile.k, Config::kBlockK)), 1);  // a sum of nothing is 0
  };
  const auto tile_of = [&](uint32_t item) -> Tile {
    const uint32_t part = is_part(item) ? item - whole : 0;
    const uint32_t tile = is_part(item) ? whole + part / Config::kParts : item;
    const TileIndex index = p.products.index(tile, tiles_m, p.tiles_n, p.band);
    const int64_t n =
        (int64_t{index.n} * Config::kClusterN + rank_n) * Config::kN + part % Config::kParts * Config::kTailN;
    if constexpr (Products::kMany) {
      return p.products.template tile<Config>(index.m, rank_m, n);
    } else {
      const int64_t m = (int64_t{index.m} * Config::kClusterM + rank_m) * Config::kM;
      return {m, n, m, n, 0, 0, p.a.extent, p.k};
    }
  };

  if (warp >= kFirstProducerWarp) {
    if constexpr (Config::kUsesSetmaxnreg) setmaxnreg_dec<Config::kProducerRegisters>();
    PipelineState<Config::kStages> pipe;
    if constexpr (Config::kLoads == Loads::tma) {
      if (warp == kFirstProducerWarp && elect_one()) {
        constexpr uint32_t kColumnMask = (1u << Config::kClusterM) - 1;
        uint32_t row_mask = 0;
        for (int i = 0; i < Config::kClusterN; ++i) row_mask |= 1u << (rank_m + i * Config::kClusterM);
        // Rows that are not loaded hold stale data; their results are not stored.
        const int a_lines = a_along_k ? p.a_lines : BoxA::kLines;
        for (uint32_t item = blockIdx.x / Config::kCluster; item < items; item += stride) {
          const Tile tile = tile_of(item);
          const int steps = steps_of(tile);
          const int parts = is_part(item) ? 1 : Config::kParts;
          const int stage_bytes = parts * PartB::kBytes + a_lines * BoxA::kCount * Config::kClusterN * LayoutA::kLine;
          for (int step = 0; step < steps; ++step) {
            const uint32_t a_tile = base + pipe.stage * Config::kStageBytes, b_tile = a_tile + LayoutA::kBytes;
            wait(empty(pipe.stage), pipe.parity ^ 1);
            arrive_expect_tx(full(pipe.stage), stage_bytes);
            load_slice<LayoutA, a_along_k, Config::kClusterN>(
                p.a_map, a_tile, full(pipe.stage), static_cast<int>(tile.a_row),
                static_cast<int>(tile.a_k) + step * Config::kBlockK, rank_n, a_lines, static_cast<uint16_t>(row_mask));
            for (int part = 0; part < parts; ++part) {
              load_slice<PartB, b_along_k, Config::kClusterM>(
                  p.b_map, b_tile + part * PartB::kBytes, full(pipe.stage),
                  static_cast<int>(tile.b_row) + part * Config::kTailN,
                  static_cast<int>(tile.b_k) + step * Config::kBlockK, rank_m, BoxB::kLines,
                  static_cast<uint16_t>(kColumnMask << (rank_n * Config::kClusterM)));
            }
            pipe.advance();
          }
        }
        if (p.starts_next) start_dependent_kernel();
        // A block must not exit while another may still arrive at its barriers.
        for (int i = 0; i < Config::kStages && Config::kCluster > 1; ++i, pipe.advance()) {
          wait(empty(pipe.stage), pipe.parity ^ 1);
        }
      }
    } else {
      const int thread = threadIdx.x - Config::kConsumers * kWarpgroup;
      for (uint32_t item = blockIdx.x; item < items; item += stride) {
        const Tile tile = tile_of(item);
        const int steps = steps_of(tile);
        for (int step = 0; step < steps; ++step) {
          uint8_t* a_tile = dynamic + (base - unaligned) + pipe.stage * Config::kStageBytes;
          wait(empty(pipe.stage), pipe.parity ^ 1);
          load_elementwise<LayoutA>(p.a, tile.m, int64_t{step} * Config::kBlockK, p.k, a_tile, thread);
          load_elementwise<LayoutB>(p.b, tile.n, int64_t{step} * Config::kBlockK, p.k, a_tile + LayoutA::kBytes,
                                    thread);
          fence_proxy_async();
          arrive(full(pipe.stage));
          pipe.advance();
        }
      }
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
    const uint32_t group_offset = group * (a_along_k ? 64 * LayoutA::kLine : LayoutA::kSlab);
    const uint64_t first_a = LayoutA::descriptor(base + group_offset);  // of the first stage
    const uint64_t first_b = LayoutB::descriptor(base + LayoutA::kBytes);
    float sum[Config::kN / 2];
    PipelineState<Config::kStages> pipe;

    // Staged stores are deferred into the next tile: one box per step, while the tensor cores are busy.
    constexpr bool kMayStage = Epilogue::template kMayStage<Config>;
    uint32_t packed[kMayStage ? Config::kN / 4 : 1];
    uint32_t packed_item = 0;
    int next_box = 0, boxes = 0;  // first box of packed_item that is not yet stored, and number of its boxes
    // A warp, or a warpgroup if it stores the transpose, alternates between its buffers, also across tiles: a tile may
    // have an odd number of boxes.
    constexpr int kBufferBytes = (Config::kTransposes ? 4 : 1) * Config::kBoxBytes;
    const uint32_t staging = base + Config::kStages * Config::kStageBytes +
                             (Config::kTransposes ? group : warp) * Config::kStoreBuffers * kBufferBytes;
    uint32_t store_buffer = 0;
    const auto store_next_box = [&] {
      if constexpr (kMayStage) {
        const Tile tile = tile_of(packed_item);
#pragma unroll
        for (int box = 0; box < Config::kBoxes; ++box) {  // registers can't be indexed at run time
          if (box != next_box) continue;
          const uint32_t* const of_box = packed + box * (Config::kBoxColumns / 4);
          const uint32_t buffer = staging + store_buffer * kBufferBytes;
          const int m = static_cast<int>(tile.m) + (Config::kTransposes ? group * 64 : warp * 16);
          const int n = static_cast<int>(tile.n) + box * Config::kBoxColumns;
          const int m_end = static_cast<int>(tile.m_end), n_extent = static_cast<int>(p.b.extent);
          if constexpr (Config::kTransposes) {
            store_transposed<Config>(of_box, p.out.c_map, buffer, m, n, m_end, n_extent, kFirstGroupBarrier + group);
          } else if constexpr (Products::kMany) {
            store_staged_rows<Config>(of_box, p.out.c_map, buffer, p.out.c, m, n, m_end, n_extent);
          } else {
            store_staged<Config>(of_box, p.out.c_map, buffer, m, n, m_end, n_extent);
          }
        }
        ++next_box;
        store_buffer = (store_buffer + 1) % Config::kStoreBuffers;
      }
    };

    for (uint32_t item = blockIdx.x / Config::kCluster; item < items; item += stride) {
      typename Epilogue::Rows rows{};
      if constexpr (Epilogue::kReadsRows) {  // read early, so that the row data has arrived when the epilogue needs it
        const Tile tile = tile_of(item);
        rows = p.out.template read_rows<Config::kN>(tile.m + group * 64, tile.n, tile.m_end, p.b.extent);
      }
      if constexpr (Epilogue::kCarries) {
        const Tile tile = tile_of(item);
        p.out.template load<Config>(sum, tile.m + group * 64, tile.n, tile.m_end, p.b.extent);
#pragma unroll
        for (int i = 0; i < Config::kN / 2; ++i) asm volatile("" : "+f"(sum[i])::"memory");
      }
      const int64_t k = tile_of(item).k;
      const int steps = steps_of(tile_of(item));
      uint32_t before = 0;
      const auto multiply = [&]<int n>(std::integral_constant<int, n>) {
        int step = 0;
        // k_extent is positive. With a loop that might not run, the assembler would lose track of the accumulators.
        do {
          wait(full(pipe.stage), pipe.parity);
          if constexpr (Products::kMany && !(a_along_k && b_along_k)) {
            if (const auto left = static_cast<int>(k) - step * Config::kBlockK; left < Config::kBlockK) {
              uint8_t* const a_tile = dynamic + (base - unaligned) + pipe.stage * Config::kStageBytes;
              if constexpr (!a_along_k) clear_lines<LayoutA, Config::kConsumers>(a_tile, left);
              if constexpr (!b_along_k) clear_lines<LayoutB, Config::kConsumers>(a_tile + LayoutA::kBytes, left);
              fence_proxy_async();
              named_barrier_sync(1, Config::kConsumers * kWarpgroup);
            }
          }
          const uint64_t a = first_a + pipe.stage * (Config::kStageBytes / 16);
          const uint64_t b = first_b + pipe.stage * (Config::kStageBytes / 16);
          wgmma_fence();
#pragma unroll
          for (int q = 0; q < Config::kBlockK / 16; ++q) {
            wgmma<T, a_along_k, b_along_k, n>(sum, a + LayoutA::k_offset(q) / 16, b + LayoutB::k_offset(q) / 16,
                                              Epilogue::kCarries | step | q);
          }
          wgmma_commit_group();
          if constexpr (kMayStage) {
            if (next_box < boxes) store_next_box();
          }
          wgmma_wait_group<1>();  // the previous step is done, so its stage is free
          if (step > 0) release(before);
          before = pipe.stage;
          pipe.advance();
        } while (++step < steps);
      };
      if (Config::kParts > 1 && is_part(item)) {
        multiply(std::integral_constant<int, Config::kTailN>{});
      } else {
        multiply(std::integral_constant<int, Config::kN>{});
      }
      if constexpr (kMayStage) {
        while (next_box < boxes) store_next_box();
      }
      wgmma_wait_group<0>();
      release(before);
#pragma unroll
      for (int i = 0; i < Config::kN / 2; ++i)
        asm volatile("" : "+f"(sum[i])::"memory");  // no use moves above the wait

      if constexpr (!kMayStage) {
        const Tile tile = tile_of(item);
        p.out.template consume<Config>(sum, rows, tile.m + group * 64, tile.n, tile.m_end, p.b.extent);
        continue;
      } else {
        if (p.out.changes_sums() || !p.out.staged) {
          const Tile tile = tile_of(item);
          if constexpr (!Config::kTransposes) {
            if (!p.out.staged) {
              p.out.template consume<Config>(sum, rows, tile.m + group * 64, tile.n, tile.m_end, p.b.extent);
              continue;
            }
          }
          p.out.template change<Config>(sum, rows, tile.m + group * 64, tile.n, tile.m_end, p.b.extent);
        }
        p.out.pack(sum, packed);
        packed_item = item;
        next_box = 0, boxes = is_part(item) ? Config::kBoxes / Config::kParts : Config::kBoxes;
      }
    }
    if constexpr (kMayStage) {
      while (next_box < boxes) store_next_box();
      if (lane == 0) tma_store_wait<0>();
    }
  }
}

}  // namespace checkop::kernels::sm90
