// SPDX-License-Identifier: Apache-2.0
// Packed sequences as the attention kernel on Hopper reads them: a list of tiles of queries, made on the device from
// the bounds of the sequences; and the loads of keys that lie in pages.
//   q, o: [tokens, q_heads, head_dim]     k, v: [rows, kv_heads, head_dim]
// A sequence's keys are consecutive rows of k, or a table says in which page each lies: row page * page_size + key %
// page_size of the cache.
#pragma once

#include "attention/sm90_softmax.cuh"
#include "cuda/scan.cuh"
#include "cuda/sequences.cuh"

namespace checkop::kernels::attention::hopper {

using sm90::kWarpgroup;

/// Some queries of one sequence, of all heads.
struct alignas(16) ListedTile {
  int first_query, end_query;  ///< rows of q
  int n_keys;                  ///< of the sequence
  int offset;                  ///< query i sees the keys below min(n_keys, i + offset) if causal
  int first_key;               ///< the row of k with key 0; with pages the number of the sequence
  int unused[3];
};
static_assert(sizeof(ListedTile) == 32);

/// The tiles of all sequences, those with the most keys first.
struct TileList {
  ListedTile* tiles;
  unsigned* n_tiles;
};

/// The sequences of a call. Their lengths are known to the device alone.
struct Sequences {
  const int32_t* q_bounds;  ///< [sequences + 1]
  const int32_t* k_bounds;  ///< [sequences + 1] rows of k; null with pages
  const int32_t* lengths;   ///< [sequences] keys, with pages
  int64_t sequences, tokens;
  int most_blocks;  ///< bound on the blocks of keys of a sequence: only speed depends on it
  bool causal;
};

constexpr int kTileListThreads = kScanThreads;

/// A block of kTileListThreads lists tiles, the largest first, and returns their number. read(slot, tile) finds the
/// tile of a slot, if it has one; size_of(tile) is at most `most`. Tiles of one of `kTileListThreads` classes of sizes
/// come in any order.
template <typename Tile, typename Read, typename SizeOf>
__device__ int list_by_size(int64_t n_slots, int most, const Read& read, const SizeOf& size_of,
                            Tile* __restrict__ tiles) {
  __shared__ int places[kTileListThreads];  // tiles of each class, then the place of its next tile
  __shared__ int of_warp[kWarp];
  const auto class_of = [&](const Tile& tile) {
    const int64_t size = min(size_of(tile), most);
    return kTileListThreads - 1 - static_cast<int>(size * kTileListThreads / (most + 1));
  };
  places[threadIdx.x] = 0;
  __syncthreads();
  Tile tile{};
  for (int64_t slot = threadIdx.x; slot < n_slots; slot += kTileListThreads) {
    // order-free: integers commute.
    if (read(slot, tile)) atomicAdd(&places[class_of(tile)], 1);
  }
  __syncthreads();
  int total;
  const int own = places[threadIdx.x], before = block_sum_before(own, of_warp, total);
  places[threadIdx.x] = before;
  __syncthreads();
  for (int64_t slot = threadIdx.x; slot < n_slots; slot += kTileListThreads) {
    // order-free: no result depends on the order of the tiles.
    if (read(slot, tile)) tiles[atomicAdd(&places[class_of(tile)], 1)] = tile;
  }
  return total;
}

/// One block lists the tiles and clears the counter from which blocks of the attention kernel take tiles.
static __global__ __launch_bounds__(kTileListThreads) void list_tiles(Sequences all, int rows, int64_t n_slots,
                                                                      TileList list, unsigned* counter) {
  const auto read = [&](int64_t slot, ListedTile& tile) {
    const SequenceTile own = tile_of(all.q_bounds, all.sequences, all.tokens, slot, rows);
    if (own.first >= own.n) return false;
    const int64_t s = own.sequence;
    const bool is_rest = s == all.sequences;
    const int first_row = is_rest || all.k_bounds == nullptr ? 0 : all.k_bounds[s];
    tile.first_query = static_cast<int>(own.begin + own.first);
    tile.end_query = static_cast<int>(min(own.begin + own.first + rows, own.begin + own.n));
    tile.n_keys = is_rest ? 0 : all.k_bounds != nullptr ? all.k_bounds[s + 1] - first_row : all.lengths[s];
    tile.offset = tile.n_keys - static_cast<int>(own.begin + own.n) + 1;
    tile.first_key = all.k_bounds != nullptr ? first_row : static_cast<int>(s);
    return true;
  };
  const auto blocks_of = [&](const ListedTile& tile) {
    const int seen = all.causal ? min(tile.n_keys, tile.end_query - 1 + tile.offset) : tile.n_keys;
    return max(seen, 0) / kKeys;
  };
  const int total = list_by_size(n_slots, all.most_blocks, read, blocks_of, list.tiles);
  if (threadIdx.x == 0) *list.n_tiles = static_cast<unsigned>(total), *counter = 0;
}

/// Where the keys of a sequence lie in a cache of pages.
template <typename T>
struct PageTable {
  const T *k, *v;        ///< [pages * page_size, kv_heads, head_dim]
  const int32_t* table;  ///< [sequences, max_pages]
  int64_t max_pages;
  int page_size;
  int box;  ///< keys that certainly lie in one page: the largest power of 2 up to 128 that divides page_size

  /// The row of the cache with a key of a sequence.
  __device__ int row(int sequence, int key) const {
    const int entry = key / page_size;
    return table[sequence * max_pages + entry] * page_size + (key - entry * page_size);
  }
};

/// A lane's rows of a block of keys: of key `lane * box`, or of keys lane, lane + 32, lane + 64 and lane + 96.
template <bool by_box>
struct BlockRows {
  int row[by_box ? 1 : kKeys / kWarp];

  /// `n`: keys of the block that exist, at most kKeys.
  template <typename T>
  __device__ BlockRows(const PageTable<T>& pages, int sequence, int first_key, int n) {
    const int step = by_box ? pages.box : 1;
#pragma unroll
    for (int i = 0; i < (by_box ? 1 : kKeys / kWarp); ++i) {
      const int key = (static_cast<int>(threadIdx.x % kWarp) + i * kWarp) * step;
      row[i] = key < n ? pages.row(sequence, first_key + key) : -1;
    }
  }
};

/// A warp loads a block of keys, or of values, box by box; its bytes are counted at `barrier`.
template <int head_dim, typename T>
__device__ __forceinline__ void load_boxes(const CUtensorMap& map, const PageTable<T>& pages,
                                           const BlockRows<true>& rows, int n, uint32_t to, uint32_t barrier,
                                           int kv_head) {
  constexpr int kSlabs = head_dim / 64, kSlab = kKeys * 128;
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) sm90::arrive_expect_tx(barrier, static_cast<int>(round_up(n, pages.box)) * kSlabs * 128);
  __syncwarp();
  if (rows.row[0] >= 0) {
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      sm90::tma_load_planes(map, to + slab * kSlab + lane * pages.box * 128, barrier, slab * 64, rows.row[0], kv_head);
    }
  }
  __syncwarp();
}

/// The same key by key, for pages of any size; columns from `width` on are set to 0. All lanes arrive at `barrier` when
/// their loads are done; a thread that waits for it must then call fence_proxy_async().
template <int head_dim, typename T>
__device__ __forceinline__ void load_rows(const T* from, int width, const BlockRows<false>& rows, int n, uint32_t to,
                                          uint32_t barrier, int kv_head, int kv_heads) {
  constexpr int kSlab = kKeys * 128, kChunks = head_dim / 8, kAtOnce = kWarp / kChunks;
  const int lane = threadIdx.x % kWarp, chunk = lane % kChunks;
  const int bytes = chunk * 8 < width ? 16 : 0;  // that are read; the rest of 16 becomes 0
  const T* const of_head = from + kv_head * width + (bytes > 0 ? chunk * 8 : 0);
#pragma unroll
  for (int part = 0; part < kKeys / kWarp; ++part) {
#pragma unroll 4
    for (int i = 0; i < kWarp; i += kAtOnce) {
      const int line = i + lane / kChunks, key = part * kWarp + line;
      const int row = __shfl_sync(kAllLanes, rows.row[part], line);
      const uint32_t at = to + chunk / 8 * kSlab + key * 128 + ((chunk % 8) ^ (key % 8)) * 16;
      if (key < n) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at),
                     "l"(of_head + int64_t{row} * kv_heads * width), "r"(bytes)
                     : "memory");
      }
    }
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// A warp clears the lines of a block from line n on, which may hold NaN, for wgmma to read. `lines`: of a slab.
template <int slabs, int lines = kKeys>
__device__ void clear_from(uint32_t block, int n) {
  const int lane = threadIdx.x % kWarp;
  for (int line = n + lane / 8; line < lines; line += kWarp / 8) {
#pragma unroll
    for (int slab = 0; slab < slabs; ++slab) {
      const uint32_t at = block + (slab * lines + line) * 128 + lane % 8 * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
    }
  }
  sm90::fence_proxy_async();
}

}  // namespace checkop::kernels::attention::hopper
