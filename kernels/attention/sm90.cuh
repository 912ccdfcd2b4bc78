// SPDX-License-Identifier: Apache-2.0
// Attention forward on Hopper: one persistent kernel. A producer warp loads tiles of queries and blocks of 128 keys by
// TMA; consumer warpgroups have 64 rows each and keep scores, probabilities and sums in registers.
//   s = q k^T, p = 2^(s c - reference), o = (sum_j round(p[j]) v[j]) * (1 / sum_j p[j])     sm90_softmax.cuh
//   q, o: [planes, q_seq, head_dim], planes: batch * q_heads     k, v: [batch * kv_heads, kv_seq, head_dim]
//   lse: [planes, q_seq] f32, optional: natural logarithm of the sum of exponentials; -inf for a row without keys, NaN
//   for one whose scores are all -inf, as o is
//
// A consumer computes the scores of the next block while the tensor cores add this block's p v; at the end of a tile
// the next block is the first of the next tile, so the tensor cores never wait for a tile to begin or to end.
//
// Bits of a row of o: scores and sums are chains of blocks of 16, upward, one fp32 accumulator each (sm90/config.cuh);
// p does not depend on the tile (sm90_softmax.cuh). So the rows of a tile, their number, the order of tiles and the
// number of blocks are free.
#pragma once

#include <algorithm>

#include "attention/sm90_mask.cuh"
#include "attention/sm90_sequences.cuh"
#include "cuda/attention_tile.cuh"

namespace checkop::kernels::attention::hopper {

using namespace sm90;  // NOLINT: the building blocks of this folder's kernels

/// Where queries and keys are. planes: see above, with a mask or without. The others: packed sequences, see
/// sm90_sequences.cuh; their keys are rows of k, or in pages that TMA can load in boxes, or in pages of any size.
enum class Source { planes, rows, pages, any_pages };

/// head_dim: columns of the kernel; rows may be narrower, see ForwardParams::width. consumers: warpgroups of 64 rows;
/// stages: blocks of keys, and of values, in flight.
template <int head_dim, int consumers, int stages, Source source = Source::planes>
struct AttentionConfig {
  static constexpr Source kSource = source;
  static constexpr bool kIsListed = source != Source::planes;  // a list has the tiles
  static constexpr bool kIsPaged = source == Source::pages || source == Source::any_pages;
  static constexpr int kHeadDim = head_dim, kConsumers = consumers, kRows = 64 * consumers, kStages = stages;
  static constexpr int kThreads = (consumers + 1) * kWarpgroup;
  static constexpr bool kUsesSetmaxnreg = consumers > 1;
  static constexpr int kProducerRegisters = consumers == 3 ? 32 : kIsListed ? 40 : 24;
  static constexpr int kConsumerRegisters = consumers == 3 ? 160 : kIsListed ? 232 : 240;

  static constexpr int kSlabs = head_dim / 64, kQuerySlab = kRows * 128, kKeySlab = kKeys * 128;
  static constexpr int kQueryBytes = kSlabs * kQuerySlab, kKeyBytes = kSlabs * kKeySlab;
  // Two tiles of queries, each of them later the tile of o; keys; values; barriers; two tile numbers.
  static constexpr int kKeyOffset = 2 * kQueryBytes, kValueOffset = kKeyOffset + stages * kKeyBytes;
  static constexpr int kBarrierOffset = kValueOffset + stages * kKeyBytes;
  static constexpr int kBarriers = 4 + 5 * stages;
  static constexpr int kTileOffset = kBarrierOffset + kBarriers * kBarrierBytes;
  static constexpr int kDynamicSmemBytes = kTileOffset + 8 + kSmemAlign;
  static_assert(kDynamicSmemBytes <= kMaxSmemBytes && head_dim % 64 == 0);
};

/// For many queries: three warpgroups of them where head_dim leaves them enough registers.
template <int head_dim, Source source = Source::planes>
using ManyQueries =
    std::conditional_t<head_dim == 128, AttentionConfig<128, 2, 2, source>, AttentionConfig<64, 3, 4, source>>;

template <typename T>
struct ForwardParams {
  CUtensorMap q_map, k_map, v_map, o_map;
  T* __restrict__ o;
  float* __restrict__ lse;  ///< or null
  KeyLists lists;
  int width;          ///< elements of a row of q, k, v and o: as many as the kernel has columns, or fewer
  unsigned* counter;  ///< tiles that were taken after each block's first; null: a block has one tile
  int kv_heads, group, q_seq, kv_seq;
  int planes_per_tile, rows_per_plane;  ///< heads of a group that share a tile, and the rows of each
  int units_per_kv_head;                ///< tiles of the same queries of a group
  uint32_t units, units_per_section, q_tiles, tiles;
  float c;         ///< scale log2(e)
  float lse_unit;  ///< what lse counts: ln 2 for natural logarithms, 1 for those of base 2
  bool causal;
  // Of packed sequences. A plane is then a head, and q_seq, kv_seq, q_tiles and tiles are not used.
  TileList list;
  PageTable<T> pages;
};

/// Part of the work of a block: some rows of the heads of a group.
struct TileOfHeads {
  int first_plane, planes, kv_plane;

  /// Finds the heads of tile `index`, and returns its number among the tiles of the same heads. The order of tiles:
  /// sections of as many heads as have their keys in L2 together; in a section the tiles with the most keys first;
  /// heads of a group together.
  template <typename T>
  __device__ uint32_t find_heads(const ForwardParams<T>& p, uint32_t index, uint32_t q_tiles) {
    const uint32_t per_section = p.units_per_section * q_tiles, section = index / per_section;
    const uint32_t first_unit = section * p.units_per_section, within = index - section * per_section;
    const uint32_t n_units = min(p.units_per_section, p.units - first_unit);
    const uint32_t q_tile = within / n_units, unit = first_unit + within - q_tile * n_units;
    kv_plane = static_cast<int>(unit / p.units_per_kv_head);
    const int first_of_group = static_cast<int>(unit % p.units_per_kv_head) * p.planes_per_tile;
    first_plane = kv_plane * p.group + first_of_group;
    planes = min(p.planes_per_tile, p.group - first_of_group);
    return q_tile;
  }
};

struct TileOfPlanes : TileOfHeads {
  int batch, first_query, blocks;

  template <typename T>
  __device__ TileOfPlanes(const ForwardParams<T>& p, uint32_t index) {
    const uint32_t q_tile = find_heads(p, index, p.q_tiles);
    batch = kv_plane / p.kv_heads;
    first_query = static_cast<int>(p.causal ? p.q_tiles - 1 - q_tile : q_tile) * p.rows_per_plane;
    blocks = (max(visible(p, min(first_query + p.rows_per_plane, p.q_seq) - 1), 0) + kKeys - 1) / kKeys;
    if (p.lists.listed != nullptr) blocks = p.lists.listed_before[batch * (p.lists.n_blocks + 1) + blocks];
  }
  TileOfPlanes() = default;

  template <typename T>
  __device__ static uint32_t count(const ForwardParams<T>& p) {
    return p.tiles;
  }
  /// Keys below this one are visible to a query; may be negative.
  template <typename T>
  __device__ static int visible(const ForwardParams<T>& p, int query) {
    return p.causal ? min(p.kv_seq, query + (p.kv_seq - p.q_seq) + 1) : p.kv_seq;
  }
  /// The i-th block of keys, with kMixed.
  template <typename T>
  __device__ uint32_t block(const ForwardParams<T>& p, int i) const {
    return p.lists.listed == nullptr ? i : p.lists.listed[batch * p.lists.n_blocks + i];
  }
  /// The line of a key in its plane.
  __device__ static int line(int key) { return key; }
  /// Queries end here.
  template <typename T>
  __device__ static int end_query(const ForwardParams<T>& p) {
    return p.q_seq;
  }
  /// A row's number among all rows of o.
  template <typename T>
  __device__ int64_t row(const ForwardParams<T>& p, int plane, int query) const {
    return int64_t{first_plane + plane} * p.q_seq + query;
  }
};

/// The same in packed sequences. A query is a row of q.
struct TileOfSequence : TileOfHeads {
  static constexpr int batch = 0;
  ListedTile listed;
  int first_query, blocks;

  template <typename T>
  __device__ TileOfSequence(const ForwardParams<T>& p, uint32_t index) {
    listed = p.list.tiles[find_heads(p, index, *p.list.n_tiles)];
    first_query = listed.first_query;
    blocks = (max(visible(p, listed.end_query - 1), 0) + kKeys - 1) / kKeys;
  }
  TileOfSequence() = default;

  template <typename T>
  __device__ static uint32_t count(const ForwardParams<T>& p) {
    return *p.list.n_tiles * p.units;
  }
  template <typename T>
  __device__ int visible(const ForwardParams<T>& p, int query) const {
    return p.causal ? min(listed.n_keys, query + listed.offset) : listed.n_keys;
  }
  template <typename T>
  __device__ static uint32_t block(const ForwardParams<T>&, int i) {
    return i;
  }
  __device__ int line(int key) const { return listed.first_key + key; }
  template <typename T>
  __device__ int end_query(const ForwardParams<T>&) const {
    return listed.end_query;
  }
  template <typename T>
  __device__ int64_t row(const ForwardParams<T>& p, int plane, int query) const {
    return int64_t{query} * (p.kv_heads * p.group) + first_plane + plane;
  }
};

template <typename Config>
using AttentionTile = std::conditional_t<Config::kIsListed, TileOfSequence, TileOfPlanes>;

/// Addresses in shared memory.
template <typename Config>
struct AttentionSmem {
  uint32_t base;
  volatile uint32_t* tiles;  ///< [2] number of the tile in each buffer of queries

  /// The number of the tile in this buffer, for a whole warp. Lane 0 reads it, which releases the buffer later:
  /// racecheck does not see that a __syncwarp() before that orders the reads of other lanes.
  __device__ uint32_t tile(uint32_t buffer) const {
    return __shfl_sync(kAllLanes, threadIdx.x % kWarp == 0 ? tiles[buffer] : 0, 0);
  }
  __device__ uint32_t query(uint32_t buffer) const { return base + buffer * Config::kQueryBytes; }
  __device__ uint32_t key(uint32_t stage) const { return base + Config::kKeyOffset + stage * Config::kKeyBytes; }
  __device__ uint32_t value(uint32_t stage) const { return base + Config::kValueOffset + stage * Config::kKeyBytes; }
  __device__ uint32_t barrier(int i) const { return base + Config::kBarrierOffset + i * kBarrierBytes; }
  __device__ uint32_t query_full(uint32_t buffer) const { return barrier(buffer); }
  __device__ uint32_t query_empty(uint32_t buffer) const { return barrier(2 + buffer); }
  __device__ uint32_t key_full(uint32_t stage) const { return barrier(4 + stage); }
  __device__ uint32_t key_empty(uint32_t stage) const { return barrier(4 + Config::kStages + stage); }
  __device__ uint32_t value_empty(uint32_t stage) const { return barrier(4 + 2 * Config::kStages + stage); }
  /// Loaded; with a mask, or in packed sequences, a warp must then clear the rows that are not kept.
  __device__ uint32_t value_loaded(uint32_t stage) const { return barrier(4 + 3 * Config::kStages + stage); }
  __device__ uint32_t value_cleared(uint32_t stage) const { return barrier(4 + 4 * Config::kStages + stage); }
};

/// A warp loads the keys of a tile from their pages.
template <typename Config, typename T>
__device__ __forceinline__ void load_pages(const ForwardParams<T>& p, const AttentionSmem<Config>& smem,
                                           const TileOfSequence& tile, PipelineState<Config::kStages>& pipe) {
  constexpr bool kByBox = Config::kSource == Source::pages;
  const auto rows_of = [&](int first_key) {
    return BlockRows<kByBox>(p.pages, tile.listed.first_key, first_key, min(kKeys, tile.listed.n_keys - first_key));
  };
  const auto load = [&](const CUtensorMap& map, const T* from, const BlockRows<kByBox>& rows, int n, uint32_t to,
                        uint32_t barrier) {
    if constexpr (kByBox) {
      load_boxes<Config::kHeadDim>(map, p.pages, rows, n, to, barrier, tile.kv_plane);
    } else {
      load_rows<Config::kHeadDim>(from, p.width, rows, n, to, barrier, tile.kv_plane, p.kv_heads);
    }
  };
  BlockRows<kByBox> next = rows_of(0);
  for (int i = 0; i < tile.blocks; ++i, pipe.advance()) {
    const BlockRows<kByBox> rows = next;
    const int n = min(kKeys, tile.listed.n_keys - i * kKeys);
    if (i + 1 < tile.blocks) next = rows_of((i + 1) * kKeys);
    wait(smem.key_empty(pipe.stage), pipe.parity ^ 1);
    load(p.k_map, p.pages.k, rows, n, smem.key(pipe.stage), smem.key_full(pipe.stage));
    wait(smem.value_empty(pipe.stage), pipe.parity ^ 1);
    load(p.v_map, p.pages.v, rows, n, smem.value(pipe.stage), smem.value_loaded(pipe.stage));
  }
}

/// One thread loads all tiles of this block that have keys; a whole warp where keys lie in pages.
template <typename Config, typename T>
__device__ void produce(const ForwardParams<T>& p, const AttentionSmem<Config>& smem) {
  const bool leads = !Config::kIsPaged || threadIdx.x % kWarp == 0;
  PipelineState<2> queries;
  PipelineState<Config::kStages> pipe;
  uint32_t index = blockIdx.x;
  for (;;) {
    const bool is_end = index >= AttentionTile<Config>::count(p);
    const AttentionTile<Config> tile = is_end ? AttentionTile<Config>() : AttentionTile<Config>(p, index);
    if (is_end || tile.blocks > 0) {
      const uint32_t query_full = smem.query_full(queries.stage);
      wait(smem.query_empty(queries.stage), queries.parity ^ 1);
      if (leads) smem.tiles[queries.stage] = index;
      if (is_end) {
        if (leads) arrive(query_full);
        return;
      }
      if (leads) {
        arrive_expect_tx(query_full, Config::kQueryBytes);
#pragma unroll
        for (int slab = 0; slab < Config::kSlabs; ++slab) {
          tma_load_planes(p.q_map, smem.query(queries.stage) + slab * Config::kQuerySlab, query_full, slab * 64,
                          tile.first_query, tile.first_plane);
        }
      }
      queries.advance();
    }
    if (p.counter != nullptr) {
      // order-free: a tile's result does not depend on the block that computes it.
      if (leads) index = atomicAdd(p.counter, 1u) + gridDim.x;
      if constexpr (Config::kIsPaged) index = __shfl_sync(kAllLanes, index, 0);
    } else {
      index = ~0u;
    }
    if constexpr (Config::kIsPaged) {
      load_pages(p, smem, tile, pipe);
      continue;
    }
    uint32_t next = tile.blocks > 0 ? tile.block(p, 0) : 0;
    for (int i = 0; i < tile.blocks; ++i, pipe.advance()) {
      const int key = static_cast<int>(next & ~kMixed) * kKeys;
      if (i + 1 < tile.blocks) next = tile.block(p, i + 1);
      const uint32_t key_full = smem.key_full(pipe.stage), value_loaded = smem.value_loaded(pipe.stage);
      wait(smem.key_empty(pipe.stage), pipe.parity ^ 1);
      arrive_expect_tx(key_full, Config::kKeyBytes);
#pragma unroll
      for (int slab = 0; slab < Config::kSlabs; ++slab) {
        tma_load_planes(p.k_map, smem.key(pipe.stage) + slab * Config::kKeySlab, key_full, slab * 64, tile.line(key),
                        tile.kv_plane);
      }
      wait(smem.value_empty(pipe.stage), pipe.parity ^ 1);
      arrive_expect_tx(value_loaded, Config::kKeyBytes);
#pragma unroll
      for (int slab = 0; slab < Config::kSlabs; ++slab) {
        tma_load_planes(p.v_map, smem.value(pipe.stage) + slab * Config::kKeySlab, value_loaded, slab * 64,
                        tile.line(key), tile.kv_plane);
      }
    }
  }
}

/// A warp clears the lines of a block of keys whose bit is 0, for wgmma to read.
template <int slabs>
__device__ void clear_hidden_rows(uint32_t block, const uint4& bits) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    for (uint32_t hidden = ~words[part]; hidden != 0; hidden &= hidden - 1) {
      const int line = part * kWarp + __ffs(static_cast<int>(hidden)) - 1;
#pragma unroll
      for (int slab = 0; slab < slabs; ++slab) {
        const uint32_t at = block + (slab * kKeys + line) * 128 + threadIdx.x % kWarp * 4;
        asm volatile("st.shared.b32 [%0], 0;" ::"r"(at) : "memory");
      }
    }
  }
  fence_proxy_async();
}

/// One warp clears the rows of values whose keys are not kept, or that lie behind the sequence, which may hold NaN:
/// 0 * NaN would reach o.
template <typename Config, typename T>
__device__ void clear_hidden_values(const ForwardParams<T>& p, const AttentionSmem<Config>& smem) {
  const int lane = threadIdx.x % kWarp;
  PipelineState<2> queries;
  PipelineState<Config::kStages> pipe;
  for (;; queries.advance()) {
    wait(smem.query_full(queries.stage), queries.parity);
    const uint32_t index = smem.tile(queries.stage);
    __syncwarp();
    if (lane == 0) arrive(smem.query_empty(queries.stage));
    if (index >= AttentionTile<Config>::count(p)) return;
    const AttentionTile<Config> tile(p, index);
    for (int i = 0; i < tile.blocks; ++i, pipe.advance()) {
      const uint32_t block = tile.block(p, i);
      wait(smem.value_loaded(pipe.stage), pipe.parity);
      if constexpr (Config::kIsListed) {
        const int n = tile.listed.n_keys - i * kKeys;
        if (n < kKeys) clear_from<Config::kSlabs>(smem.value(pipe.stage), n);
        if (Config::kSource == Source::any_pages) fence_proxy_async();
      } else if ((block & kMixed) != 0) {
        const uint4 bits = p.lists.bits[tile.batch * p.lists.n_blocks + static_cast<int>(block & ~kMixed)];
        clear_hidden_rows<Config::kSlabs>(smem.value(pipe.stage), bits);
      }
      __syncwarp();
      if (lane == 0) arrive(smem.value_cleared(pipe.stage));
    }
  }
}

/// A consumer warpgroup's part of a tile: rows of it, and where they are stored.
template <typename Config, typename T>
struct ConsumerTile {
  AttentionTile<Config> tile;
  uint32_t buffer;  ///< of the queries
  int visible[2];   ///< of this thread's rows
  int all_visible;  ///< keys below this one are visible to all rows

  __device__ static int row(int half) {
    return static_cast<int>(threadIdx.x) / kWarp * 16 + static_cast<int>(threadIdx.x) % kWarp / 4 + half * 8;
  }
  __device__ int query(const ForwardParams<T>& p, int half) const {
    return tile.first_query + row(half) % p.rows_per_plane;
  }
  __device__ int plane(const ForwardParams<T>& p, int half) const { return row(half) / p.rows_per_plane; }
  /// Whether this thread's row exists.
  __device__ bool exists(const ForwardParams<T>& p, int half) const {
    return plane(p, half) < tile.planes && query(p, half) < tile.end_query(p);
  }
  /// Its number among all rows of o.
  __device__ int64_t index(const ForwardParams<T>& p, int half) const {
    return tile.row(p, plane(p, half), query(p, half));
  }
  __device__ void find_visible(const ForwardParams<T>& p) {
    visible[0] = tile.visible(p, query(p, 0)), visible[1] = tile.visible(p, query(p, 1));
    all_visible = tile.visible(p, tile.first_query);
  }
};

/// Stores this thread's part of a row of `width` elements, the upper or the lower (half 1) of its two, from what
/// pack_sums() packed.
template <int head_dim, typename T>
__device__ __forceinline__ void store_row_part(const uint32_t* packed, int half, T* __restrict__ row, int width) {
  auto* to = reinterpret_cast<uint32_t*>(row) + threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < head_dim / 8; ++i) {
    if (i * 8 < width) to[i * 4] = packed[i * 2 + half];
  }
}

/// Stores the 64 rows of a warpgroup: by TMA from the shared memory of the tile's queries if a warp's rows are
/// neighbours in one plane and none belongs to another sequence; otherwise directly from registers. Returns whether the
/// buffer is still being read.
template <typename Config, typename T>
__device__ __forceinline__ bool store_rows(const ForwardParams<T>& p, const AttentionSmem<Config>& smem,
                                           const ConsumerTile<Config, T>& at, const float (&o)[Config::kHeadDim / 2]) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  uint32_t packed[Config::kHeadDim / 4];
  pack_sums<T>(o, packed);
  if (p.planes_per_tile == 1) {
    named_barrier_sync(1 + warp / 4, kWarpgroup);  // all warps have read their queries
    const int query = at.tile.first_query + warp * 16;
    if (!Config::kIsListed || query + 16 <= at.tile.end_query(p)) {
#pragma unroll
      for (int slab = 0; slab < Config::kSlabs; ++slab) {
        stage_box(packed + slab * 16, smem.query(at.buffer) + slab * Config::kQuerySlab + warp * 16 * 128);
      }
      fence_proxy_async();
      __syncwarp();
      if (lane == 0 && query < at.tile.end_query(p)) {
#pragma unroll
        for (int slab = 0; slab < Config::kSlabs; ++slab) {
          tma_store_planes(p.o_map, smem.query(at.buffer) + slab * Config::kQuerySlab + warp * 16 * 128, slab * 64,
                           query, at.tile.first_plane);
        }
        tma_store_commit();
      }
      return true;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!at.exists(p, half)) continue;
    store_row_part<Config::kHeadDim>(packed, half, p.o + at.index(p, half) * p.width, p.width);
  }
  return false;
}

/// A warp stores o = 0 and lse = -inf for the rows of tiles without keys. No other warp handles these tiles: there are
/// buffers for two tiles, and the consumers still need that of the last tile while they wait for the next one.
template <typename Config, typename T>
__device__ void store_empty_tiles(const ForwardParams<T>& p) {
  const int lane = threadIdx.x % kWarp, chunks = p.width / 8;
  for (uint32_t index = blockIdx.x; index < AttentionTile<Config>::count(p); index += gridDim.x) {
    const AttentionTile<Config> tile(p, index);
    if (tile.blocks > 0) continue;
    for (int i = lane; i < Config::kRows * chunks; i += kWarp) {
      const int row = i / chunks, plane = row / p.rows_per_plane;
      const int query = tile.first_query + row - plane * p.rows_per_plane;
      if (plane >= tile.planes || query >= tile.end_query(p)) continue;
      const int64_t at = tile.row(p, plane, query);
      reinterpret_cast<uint4*>(p.o + at * p.width)[i % chunks] = uint4{0, 0, 0, 0};
      if (i % chunks == 0 && p.lse != nullptr) p.lse[at] = -INFINITY;
    }
  }
}

/// A warpgroup computes its rows of all tiles of this block.
template <typename Config, typename T>
__device__ __forceinline__ void consume(const ForwardParams<T>& p, const AttentionSmem<Config>& smem) {
  constexpr int kHeadDim = Config::kHeadDim;
  using QueryLayout = SmemLayout<true, Config::kRows, kHeadDim>;
  using KeyLayout = SmemLayout<true, kKeys, kHeadDim>;
  using ValueLayout = SmemLayout<false, kHeadDim, kKeys>;
  const int lane = threadIdx.x % kWarp;
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarpgroup), 0);
  const bool is_masked = !Config::kIsListed && p.lists.listed != nullptr;
  const auto value_full = [&](uint32_t stage) {
    return Config::kIsListed || is_masked ? smem.value_cleared(stage) : smem.value_loaded(stage);
  };
  const auto await_keys = [&](uint32_t stage, uint32_t parity) {
    wait(smem.key_full(stage), parity);
    if (Config::kSource == Source::any_pages) fence_proxy_async();
  };

  float score[kScores], o[kHeadDim / 2];
  uint32_t weights[kScores / 2];
  PipelineState<2> queries;
  PipelineState<Config::kStages> keys, values;
  ConsumerTile<Config, T> at;
  RowState rows;
  bool is_storing = false;  // the last tile's store may still read its buffer
  uint32_t stored_buffer = 0;

  const auto release_queries = [&] {
    if (is_storing && lane == 0) {
      tma_store_wait<0>();
      arrive(smem.query_empty(stored_buffer));
    }
    is_storing = false;
  };
  // Finds the next tile; false at the end.
  const auto next_tile = [&] {
    release_queries();
    wait(smem.query_full(queries.stage), queries.parity);
    const uint32_t index = smem.tile(queries.stage);
    if (index >= AttentionTile<Config>::count(p)) return false;
    at.tile = AttentionTile<Config>(p, index), at.buffer = queries.stage;
    queries.advance();
    at.find_visible(p);
    return true;
  };
  // score = q k^T for the next block of keys; asynchronous
  const auto begin_scores = [&] {
    const uint64_t a = QueryLayout::descriptor(smem.query(at.buffer) + group * 64 * 128);
    const uint64_t b = KeyLayout::descriptor(smem.key(keys.stage));
#pragma unroll
    for (int q = 0; q < kHeadDim / 16; ++q) {
      wgmma<T, true, true, kKeys>(score, a + QueryLayout::k_offset(q) / 16, b + KeyLayout::k_offset(q) / 16, q);
    }
    wgmma_commit_group();
  };
  // o = p v, plus o if there is an earlier block; asynchronous
  const auto begin_sums = [&](int add) {
    const uint64_t b = ValueLayout::descriptor(smem.value(values.stage));
#pragma unroll
    for (int q = 0; q < kKeys / 16; ++q) {
      wgmma<T, false, kHeadDim>(o, weights + 4 * q, b + ValueLayout::k_offset(q) / 16, add | q);
    }
    wgmma_commit_group();
  };
  const auto hide = [&](int i) {
    const uint32_t block = at.tile.block(p, i);
    const int first = static_cast<int>(block & ~kMixed) * kKeys;
    if (first + kKeys > at.all_visible) {
      const int visible[2] = {at.visible[0] - first, at.visible[1] - first};
      hide_from(score, visible);
    }
    if (!Config::kIsListed && (block & kMixed) != 0) {
      hide_unset(score, p.lists.bits[at.tile.batch * p.lists.n_blocks + static_cast<int>(block & ~kMixed)]);
    }
  };
  // Packed sequences with three warpgroups have few registers, so a tile is read again where its rows are stored. Its
  // number stays in shared memory until its buffer is released.
  constexpr bool kReadsAgain = Config::kIsListed && Config::kConsumers == 3;
  const auto whole = [&](ConsumerTile<Config, T> of) {
    if constexpr (kReadsAgain) of.tile = AttentionTile<Config>(p, smem.tile(of.buffer));
    return of;
  };
  // Stores the rows of the tile `at_end`, whose sums are complete.
  const auto finish = [&](const ConsumerTile<Config, T>& at_end, const float(&reciprocal)[2], const bool(&any)[2]) {
    const ConsumerTile<Config, T> of = whole(at_end);
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] *= reciprocal[i / 2 % 2];
    if (!any[0] || !any[1]) {  // whatever the values that other rows see
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) o[i] = any[i / 2 % 2] ? o[i] : 0.0f;
    }
    is_storing = store_rows(p, smem, of, o);
    stored_buffer = of.buffer;
    if (!is_storing) {
      __syncwarp();
      if (lane == 0) arrive(smem.query_empty(of.buffer));
    }
  };

  if (!next_tile()) return;
  await_keys(keys.stage, keys.parity);
  wgmma_fence();
  begin_scores();
  wgmma_wait_group<0>();
  pin_registers(score);
  if (lane == 0) arrive(smem.key_empty(keys.stage));
  keys.advance();
  float factor[2];
  hide(0);
  move_reference(score, p.c, rows, factor);
  exponentiate<T>(score, p.c, factor, rows);
  pack_sums<T>(score, weights);

  for (int i = 0;;) {  // `weights` holds block i of the tile
    const bool is_last = i + 1 == at.tile.blocks;
    const int add = i;
    ConsumerTile<Config, T> done;
    float reciprocal[2];
    bool any[2];
    if (is_last) {
      done = at;
      const ConsumerTile<Config, T> of = whole(at);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = whole_sum(rows.sum[half]);
        reciprocal[half] = __frcp_rn(sum);
        any[half] = (is_masked ? p.lists.first_kept[at.tile.batch] : 0) < at.visible[half];
        if (p.lse != nullptr && lane % 4 == 0 && of.exists(p, half)) {
          const float lse = sum == 0.0f ? NAN : (rows.reference<T>(half) + log2f(sum)) * p.lse_unit;
          p.lse[of.index(p, half)] = any[half] ? lse : -INFINITY;
        }
      }
      if (!next_tile()) {
        wait(value_full(values.stage), values.parity);
        wgmma_fence();
        begin_sums(add);
        wgmma_wait_group<0>();
        pin_registers(o);
        finish(done, reciprocal, any);
        break;
      }
      rows = {};
      i = 0;
    } else {
      ++i;
    }
    await_keys(keys.stage, keys.parity);
    wait(value_full(values.stage), values.parity);
    wgmma_fence();
    begin_scores();
    begin_sums(add);
    release_queries();
    wgmma_wait_group<1>();
    pin_registers(score);
    if (lane == 0) arrive(smem.key_empty(keys.stage));
    keys.advance();
    hide(i);
    const bool moved = move_reference(score, p.c, rows, factor);
    exponentiate<T>(score, p.c, factor, rows);
    pin_registers(score);
    const auto await_sums = [&] {
      wgmma_wait_group<0>();
      pin_registers(o);
      if (lane == 0) arrive(smem.value_empty(values.stage));
      values.advance();
    };
    // Two waits: with one in front of the branch, the assembler moves it up, before the exponentials.
    if (is_last) {
      await_sums();
      finish(done, reciprocal, any);
    } else {
      await_sums();
      if (moved) {
#pragma unroll
        for (int j = 0; j < kHeadDim / 2; ++j) o[j] *= factor[j / 2 % 2];
      }
    }
    pack_sums<T>(score, weights);
  }
  if (is_storing && lane == 0) tma_store_wait<0>();  // shared memory is this block's until then
}

template <typename Config, typename T>
__global__ __launch_bounds__(Config::kThreads, 1) void attention_forward(const __grid_constant__ ForwardParams<T> p) {
  extern __shared__ uint8_t dynamic[];
  const uint32_t unaligned = shared_address(dynamic);
  const uint32_t base = (unaligned + kSmemAlign - 1) / kSmemAlign * kSmemAlign;
  const AttentionSmem<Config> smem{
      base, reinterpret_cast<volatile uint32_t*>(dynamic + (base - unaligned) + Config::kTileOffset)};
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarp), 0);
  const int lane = threadIdx.x % kWarp;
  constexpr int kFirstProducerWarp = Config::kConsumers * 4, kArrivals = Config::kConsumers * 4;
  constexpr int kLoaders = Config::kSource == Source::any_pages ? kWarp : 1;
  const bool clears = Config::kIsListed || p.lists.listed != nullptr;
  if (warp == kFirstProducerWarp && lane == 0) {
    prefetch_tensor_map(p.q_map);
    prefetch_tensor_map(p.k_map);
    prefetch_tensor_map(p.v_map);
    prefetch_tensor_map(p.o_map);
    for (int buffer = 0; buffer < 2; ++buffer) {
      init_barrier(smem.query_full(buffer), 1);
      init_barrier(smem.query_empty(buffer), kArrivals + clears);
    }
    for (int stage = 0; stage < Config::kStages; ++stage) {
      init_barrier(smem.key_full(stage), kLoaders);
      init_barrier(smem.key_empty(stage), kArrivals);
      init_barrier(smem.value_empty(stage), kArrivals);
      init_barrier(smem.value_loaded(stage), kLoaders);
      init_barrier(smem.value_cleared(stage), 1);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (warp >= kFirstProducerWarp) {
    if constexpr (Config::kUsesSetmaxnreg) setmaxnreg_dec<Config::kProducerRegisters>();
    if (warp == kFirstProducerWarp) {
      if (Config::kIsPaged || lane == 0) produce(p, smem);
    } else if (warp == kFirstProducerWarp + 1 && clears) {
      clear_hidden_values(p, smem);
    } else if (warp == kFirstProducerWarp + 2) {
      store_empty_tiles<Config>(p);
    }
  } else {
    if constexpr (Config::kUsesSetmaxnreg) setmaxnreg_inc<Config::kConsumerRegisters>();
    consume(p, smem);
  }
}

// --- launch ----------------------------------------------------------------------------------------------------------

template <typename T>
struct ForwardCall {
  AttentionParams shape;
  const T *q, *k, *v;
  const uint8_t* keep;  ///< or null
  T* o;
  float* lse;                      ///< or null
  float lse_unit = 0x1.62e43p-1f;  ///< ln 2; 1 for logarithms of base 2
  std::byte* workspace;
  cudaStream_t stream;
  int max_blocks = 1 << 30;  ///< of the grid: only speed depends on it
};

constexpr size_t kCounterBytes = 256;
constexpr int64_t kSectionBytes = 24 << 20;  // of keys and values: about half of L2; only speed depends on it

inline size_t forward_workspace_bytes(const AttentionParams& shape, bool is_masked) {
  return kCounterBytes + (is_masked ? KeyListsLayout(shape.batch, shape.kv_seq).bytes : 0);
}

/// The kernels have 64 or 128 columns. TMA reads zeros in those behind a narrower row, and stores nothing there.
constexpr int kMostWidth = 128;
inline bool has_width(int64_t width) { return width > 0 && width <= kMostWidth && width % 8 == 0; }

/// Whether the shapes suit the kernel: rows that TMA can read, 32-bit numbers of tiles.
template <typename T>
bool has_forward(const ForwardCall<T>& call) {
  const AttentionParams& s = call.shape;
  const auto stack = [&](const T* data, int64_t lines, int64_t planes) { return Planes{data, s.width, lines, planes}; };
  constexpr int64_t kMaxTiles = int64_t{1} << 31;
  return has_width(s.width) && s.heads() * ceil_div(s.q_seq, 64) < kMaxTiles &&
         s.batch * (ceil_div(s.kv_seq, kKeys) + 1) < kMaxTiles &&
         has_tensor_map<T>(stack(call.q, s.q_seq, s.heads())) && has_tensor_map<T>(stack(call.o, s.q_seq, s.heads())) &&
         has_tensor_map<T>(stack(call.k, s.kv_seq, s.batch * s.kv_heads)) &&
         has_tensor_map<T>(stack(call.v, s.kv_seq, s.batch * s.kv_heads));
}

/// Enqueues the pass over the mask, which must be there.
template <typename T>
KeyLists launch_list_keys(const ForwardCall<T>& call) {
  const AttentionParams& s = call.shape;
  const KeyLists lists = KeyListsLayout(s.batch, s.kv_seq).in(call.workspace + kCounterBytes, s.kv_seq);
  list_keys<<<static_cast<unsigned>(s.batch), kListThreads, 0, call.stream>>>(call.keep, s.kv_seq, lists);
  return lists;
}

/// Heads of a group that share a tile, `most` of them or fewer, so that their keys are loaded once: one, unless there
/// are few queries.
template <typename Config>
int planes_per_tile(int64_t group, int64_t queries, int most) {
  int planes = 1;
  while (planes < group && planes < most && Config::kRows / (planes * 2) >= queries) planes *= 2;
  return planes;
}

/// Divides the heads into units of heads that share tiles, and these into sections. `kv_size`: elements of the keys of
/// a head.
template <typename T>
void divide_heads(ForwardParams<T>& p, int64_t kv_planes, int64_t kv_size) {
  p.units_per_kv_head = static_cast<int>(ceil_div(p.group, p.planes_per_tile));
  p.units = static_cast<uint32_t>(kv_planes * p.units_per_kv_head);
  const int64_t kv_bytes = 2 * kv_size * static_cast<int64_t>(sizeof(T));
  const int64_t kv_heads = std::max<int64_t>(1, kSectionBytes / kv_bytes);
  p.units_per_section = static_cast<uint32_t>(std::min<int64_t>(p.units, kv_heads * p.units_per_kv_head));
}

inline cudaError_t count_multiprocessors(int64_t& n) {
  int device = 0, count = 0;
  if (const auto error = cudaGetDevice(&device)) return error;
  const auto error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  n = count;
  return error;
}

/// `blocks`: of the grid for so many tiles.
template <typename Config, typename T>
cudaError_t prepare_launch(int64_t tiles, int max_blocks, int64_t& blocks) {
  int64_t n_sms = 0;
  if (const auto error = count_multiprocessors(n_sms)) return error;
  blocks = std::min<int64_t>({tiles, n_sms, max_blocks});
  constexpr auto function = attention_forward<Config, T>;
  return cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kDynamicSmemBytes);
}

/// Enqueues. has_forward() must hold.
template <typename Config, typename T>
cudaError_t launch_forward(const ForwardCall<T>& call) {
  const AttentionParams& s = call.shape;
  ForwardParams<T> p{};
  p.o = call.o, p.lse = call.lse, p.width = s.width;
  p.kv_heads = static_cast<int>(s.kv_heads);
  p.group = static_cast<int>(s.group()), p.q_seq = static_cast<int>(s.q_seq), p.kv_seq = static_cast<int>(s.kv_seq);
  p.c = s.scale * kLog2E, p.lse_unit = call.lse_unit, p.causal = s.causal;
  p.planes_per_tile = planes_per_tile<Config>(s.group(), s.q_seq, 8);
  p.rows_per_plane = Config::kRows / p.planes_per_tile;
  divide_heads(p, s.batch * s.kv_heads, s.kv_seq * s.width);
  p.q_tiles = static_cast<uint32_t>(ceil_div(s.q_seq, p.rows_per_plane));
  p.tiles = p.units * p.q_tiles;

  const auto stack = [&](const void* data, int64_t lines, int64_t planes) {
    return Planes{data, s.width, lines, planes};
  };
  const int64_t kv_planes = s.batch * s.kv_heads;
  if (!make_tensor_map<T>(p.q_map, stack(call.q, s.q_seq, s.heads()), p.rows_per_plane, p.planes_per_tile,
                          L2Promotion::bytes_256) ||
      !make_tensor_map<T>(p.k_map, stack(call.k, s.kv_seq, kv_planes), kKeys, 1, L2Promotion::bytes_256) ||
      !make_tensor_map<T>(p.v_map, stack(call.v, s.kv_seq, kv_planes), kKeys, 1, L2Promotion::bytes_256) ||
      !make_tensor_map<T>(p.o_map, stack(call.o, s.q_seq, s.heads()), 16, 1, L2Promotion::none)) {
    return cudaErrorInvalidValue;
  }
  int64_t blocks = 0;
  if (const auto error = prepare_launch<Config, T>(p.tiles, call.max_blocks, blocks)) return error;
  if (blocks < static_cast<int64_t>(p.tiles)) {
    p.counter = reinterpret_cast<unsigned*>(call.workspace);
    if (const auto error = cudaMemsetAsync(p.counter, 0, sizeof(*p.counter), call.stream)) return error;
  }
  if (call.keep != nullptr) p.lists = launch_list_keys(call);
  attention_forward<Config, T>
      <<<static_cast<unsigned>(blocks), Config::kThreads, Config::kDynamicSmemBytes, call.stream>>>(p);
  return cudaGetLastError();
}

}  // namespace checkop::kernels::attention::hopper
