// SPDX-License-Identifier: Apache-2.0
// sum_k a(m, k) * b(n, k) on Hopper. One warp (or warpgroup) loads stages of both operands ahead, one or two warpgroups
// multiply them, and a persistent grid walks the tiles. The epilogue decides what happens to the sums: StoreTiles
// (epilogue.cuh), or one that consumes them in registers. plan.cuh says what fixes the bits.
#pragma once

#include "sm90/epilogue.cuh"
#include "sm90/loader.cuh"

namespace checkop::kernels::sm90 {

template <typename T, typename Epilogue, bool a_along_k, bool b_along_k>
struct Problem {
  CUtensorMap a_map, b_map;  ///< set only with Loads::copy_engine (TMA)
  Epilogue out;
  Factor<T, a_along_k> a;
  Factor<T, b_along_k> b;
  int64_t k;
  uint32_t tiles_m, tiles_n, band;  ///< in tiles of a whole cluster
  int a_lines;  ///< lines per slab of `a` that a block loads if `a` is along k; fewer than a box for few rows
};

template <typename P, typename T, typename Epilogue, bool a_along_k, bool b_along_k>
__global__ __launch_bounds__(P::kThreads,
                             1) void kernel(const __grid_constant__ Problem<T, Epilogue, a_along_k, b_along_k> p) {
  using SlotsA = Layout<a_along_k, P::kM, P::kBlockK>;
  using SlotsB = Layout<b_along_k, P::kN, P::kBlockK>;
  using BoxA = Box<SlotsA, a_along_k, P::kClusterN>;
  using BoxB = Box<SlotsB, b_along_k, P::kClusterM>;
  static_assert(P::kStageBytes == SlotsA::kBytes + SlotsB::kBytes);
  extern __shared__ uint8_t dynamic[];
  // Offsets must be the same in all blocks of a cluster: multicast needs that.
  const uint32_t unaligned = shared_address(dynamic);
  const uint32_t base = (unaligned + kSharedAlign - 1) / kSharedAlign * kSharedAlign;
  const auto full = [&](uint32_t stage) { return base + P::kBarriersAt + stage * kBarrierBytes; };
  const auto empty = [&](uint32_t stage) { return full(P::kStages + stage); };
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarp), 0);
  const int lane = threadIdx.x % kWarp;

  constexpr int kFirstLoader = P::kGroups * 4;  // the warps before it multiply
  if (warp == kFirstLoader && lane == 0) {
    if constexpr (P::kLoads == Loads::copy_engine) {
      prefetch_map(p.a_map);
      prefetch_map(p.b_map);
    }
    for (int stage = 0; stage < P::kStages; ++stage) {
      init_barrier(full(stage), P::kLoads == Loads::plain ? P::kLoadThreads : 1);
      // One arrival from each multiplying warp of every block that receives this block's loads.
      init_barrier(empty(stage), P::kGroups * 4 * (P::kClusterM + P::kClusterN - 1));
    }
    publish_barriers();
  }
  __syncwarp();
  if constexpr (P::kCluster > 1) {
    sync_cluster();
  } else if (P::kLoads == Loads::copy_engine && warp >= kFirstLoader) {
    arrive_threads(0, P::kThreads);  // the loader initialized the barriers itself, so it does not wait
  } else {
    sync_threads(0, P::kThreads);
  }

  const int rank = P::kCluster > 1 ? static_cast<int>(rank_in_cluster()) : 0;
  const int rank_m = rank % P::kClusterM, rank_n = rank / P::kClusterM;
  const uint32_t tiles = p.tiles_m * p.tiles_n, stride = gridDim.x / P::kCluster;
  const auto steps = static_cast<int>(ceil_div(p.k, P::kBlockK));
  // The first row and column of this block's part of a cluster's tile.
  const auto place = [&](uint32_t tile, int64_t& m, int64_t& n) {
    const Place at = place_of(tile, p.tiles_m, p.tiles_n, p.band);
    m = (int64_t{at.m} * P::kClusterM + rank_m) * P::kM;
    n = (int64_t{at.n} * P::kClusterN + rank_n) * P::kN;
  };

  if (warp >= kFirstLoader) {
    if constexpr (P::kMovesRegisters) give_registers<40>();
    Ring<P::kStages> ring;
    if constexpr (P::kLoads == Loads::copy_engine) {
      if (warp == kFirstLoader && lane == 0) {
        constexpr uint32_t kColumn = (1u << P::kClusterM) - 1;
        uint32_t row_of_blocks = 0;
        for (int i = 0; i < P::kClusterN; ++i) row_of_blocks |= 1u << (rank_m + i * P::kClusterM);
        // Rows that are not loaded hold stale data; their results are not stored.
        const int a_lines = a_along_k ? p.a_lines : BoxA::kLines;
        const int stage_bytes = SlotsB::kBytes + a_lines * BoxA::kCount * P::kClusterN * SlotsA::kLine;
        for (uint32_t tile = blockIdx.x / P::kCluster; tile < tiles; tile += stride) {
          int64_t m, n;
          place(tile, m, n);
          for (int step = 0; step < steps; ++step) {
            const uint32_t a_tile = base + ring.stage * P::kStageBytes, b_tile = a_tile + SlotsA::kBytes;
            wait_for(empty(ring.stage), ring.parity ^ 1);
            arrive_expecting(full(ring.stage), stage_bytes);
            load_share<SlotsA, a_along_k, P::kClusterN>(p.a_map, a_tile, full(ring.stage), static_cast<int>(m),
                                                        step * P::kBlockK, rank_n, a_lines,
                                                        static_cast<uint16_t>(row_of_blocks));
            load_share<SlotsB, b_along_k, P::kClusterM>(p.b_map, b_tile, full(ring.stage), static_cast<int>(n),
                                                        step * P::kBlockK, rank_m, BoxB::kLines,
                                                        static_cast<uint16_t>(kColumn << (rank_n * P::kClusterM)));
            ring.advance();
          }
        }
        // A block must not exit while another may still arrive at its barriers.
        for (int i = 0; i < P::kStages && P::kCluster > 1; ++i, ring.advance()) {
          wait_for(empty(ring.stage), ring.parity ^ 1);
        }
      }
    } else {
      const int thread = threadIdx.x - P::kGroups * kGroup;
      for (uint32_t tile = blockIdx.x; tile < tiles; tile += stride) {
        int64_t m, n;
        place(tile, m, n);
        for (int step = 0; step < steps; ++step) {
          uint8_t* a_tile = dynamic + (base - unaligned) + ring.stage * P::kStageBytes;
          wait_for(empty(ring.stage), ring.parity ^ 1);
          load_plainly<SlotsA>(p.a, m, int64_t{step} * P::kBlockK, p.k, a_tile, thread);
          load_plainly<SlotsB>(p.b, n, int64_t{step} * P::kBlockK, p.k, a_tile + SlotsA::kBytes, thread);
          fence_async();
          arrive(full(ring.stage));
          ring.advance();
        }
      }
    }
  } else {
    if constexpr (P::kMovesRegisters) take_registers<232>();
    const int group = warp / 4;
    // A released stage is reported to every block that fills it: lane i arrives at the i-th such block's barrier.
    constexpr int kFillers = P::kClusterM + P::kClusterN - 1;
    // First the blocks of the same columns, then the others of the same rows
    int filler = lane + P::kClusterM * rank_n;
    if (lane >= P::kClusterM) {
      const int i = lane - P::kClusterM;
      filler = rank_m + P::kClusterM * (i < rank_n ? i : i + 1);
    }
    const auto release = [&](uint32_t stage) {
      if constexpr (P::kCluster == 1) {
        if (lane == 0) arrive(empty(stage));
      } else {
        if (lane < kFillers) arrive_at(empty(stage), filler);
      }
    };
    const uint32_t group_at = group * (a_along_k ? 64 * SlotsA::kLine : SlotsA::kSlab);
    float sum[P::kN / 2];
    Ring<P::kStages> ring;

    // Staged stores are deferred into the next tile: one box per step, while the tensor cores are busy.
    constexpr bool kStages16 = Epilogue::template kMayStage<P>;
    uint32_t packed[kStages16 ? P::kN / 4 : 1];
    uint32_t packed_tile = 0;
    int next_box = P::kBoxes;  // first box of packed_tile that is not yet stored
    // A warp alternates between its buffers, also across tiles: a plan may have an odd number of boxes.
    const uint32_t staging = base + P::kStages * P::kStageBytes + warp * P::kStoreBuffers * P::kBoxBytes;
    uint32_t turn = 0;
    const auto store_next_box = [&] {
      if constexpr (kStages16) {
        int64_t m, n;
        place(packed_tile, m, n);
#pragma unroll
        for (int box = 0; box < P::kBoxes; ++box) {  // registers can't be indexed at run time
          if (box != next_box) continue;
          store_staged<P>(packed + box * 16, p.out.c_map, staging + turn * P::kBoxBytes,
                          static_cast<int>(m) + warp * 16, static_cast<int>(n) + box * 64, static_cast<int>(p.a.extent),
                          static_cast<int>(p.b.extent));
        }
        ++next_box;
        turn = (turn + 1) % P::kStoreBuffers;
      }
    };

    for (uint32_t tile = blockIdx.x / P::kCluster; tile < tiles; tile += stride) {
      typename Epilogue::Rows rows{};
      if constexpr (Epilogue::kReadsRows) {  // read early, so that the row data has arrived when the epilogue needs it
        int64_t m, n;
        place(tile, m, n);
        rows = p.out.read_rows(m + group * 64, n, p.a.extent);
      }
      if constexpr (Epilogue::kCarries) {
        int64_t m, n;
        place(tile, m, n);
        p.out.template load<P>(sum, m + group * 64, n, p.a.extent, p.b.extent);
#pragma unroll
        for (int i = 0; i < P::kN / 2; ++i) asm volatile("" : "+f"(sum[i])::"memory");
      }
      uint32_t before = 0;
      int step = 0;
      do {  // k_extent is positive; with a loop that might not run, the assembler would lose track of the accumulators
        wait_for(full(ring.stage), ring.parity);
        const uint32_t tile_at = base + ring.stage * P::kStageBytes;
        const uint64_t a = SlotsA::descriptor(tile_at + group_at);
        const uint64_t b = SlotsB::descriptor(tile_at + SlotsA::kBytes);
        begin_multiply();
#pragma unroll
        for (int q = 0; q < P::kBlockK / 16; ++q) {
          multiply<T, a_along_k, b_along_k, P::kN>(sum, a + SlotsA::step(q) / 16, b + SlotsB::step(q) / 16,
                                                   Epilogue::kCarries | step | q);
        }
        commit_multiply();
        if constexpr (kStages16) {
          if (next_box < P::kBoxes) store_next_box();
        }
        wait_for_multiply<1>();  // the previous step is done, so its stage is free
        if (step > 0) release(before);
        before = ring.stage;
        ring.advance();
      } while (++step < steps);
      if constexpr (kStages16) {
        while (next_box < P::kBoxes) store_next_box();
      }
      wait_for_multiply<0>();
      release(before);
#pragma unroll
      for (int i = 0; i < P::kN / 2; ++i) asm volatile("" : "+f"(sum[i])::"memory");  // no use moves above the wait

      if constexpr (!kStages16) {
        int64_t m, n;
        place(tile, m, n);
        p.out.template take<P>(sum, rows, m + group * 64, n, p.a.extent, p.b.extent);
        continue;
      } else {
        if (p.out.changes_sums() || !p.out.staged) {
          int64_t m, n;
          place(tile, m, n);
          if (!p.out.staged) {
            p.out.template take<P>(sum, rows, m + group * 64, n, p.a.extent, p.b.extent);
            continue;
          }
          p.out.template change<P>(sum, rows, m + group * 64, n, p.a.extent, p.b.extent);
        }
        p.out.pack(sum, packed);
        packed_tile = tile;
        next_box = 0;
      }
    }
    if constexpr (kStages16) {
      while (next_box < P::kBoxes) store_next_box();
      if (lane == 0) wait_for_stores<0>();
    }
  }
}

}  // namespace checkop::kernels::sm90
