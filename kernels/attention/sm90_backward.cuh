// SPDX-License-Identifier: Apache-2.0
// Attention backward on Hopper, without atomic additions: every gradient is one chain in a fixed order.
//   dv[j] = sum_i round(p[i,j]) do[i]        dk[j] = scale sum_i round(ds[i,j]) q[i]      over the heads of the group
//   dq[i] = scale sum_j round(ds[i,j]) k[j]  ds = p (do v^T - delta),  delta[i] = sum_d do[i,d] o[i,d]
//   p[i,j] = 2^(s[i,j] c - lse2[i]),  lse2 = log2 of the row's sum of 2^(s c); s and c as in the forward pass
// The forward pass of this folder runs first, unless o and lse of one are given. Three kernels follow. prepare_rows
// computes lse2 and delta. In key_gradients a block owns 128 keys of a key head, computes dk and dv over all their
// queries, and stores round(ds). In query_gradients a block owns 128 queries, and multiplies the stored ds by k.
//
// Bits of dq: a chain over blocks of 16 keys, upward; hidden keys add zeros. Bits of dk and dv: a chain over the heads
// of the group and blocks of 16 queries, upward; hidden queries add zeros.
//
// ds lies in memory as images of its operand in shared memory. An image has the ds of 128 keys and 64 queries of a
// plane (a head of a batch entry): 16 KiB, a swizzled line of 128 bytes per key. Images come in pairs, of 128 keys and
// a tile of 128 queries; only pairs whose tile sees a key of the block exist.
//
// Packed sequences (sm90_sequences.cuh) have lists of blocks of keys and of tiles of queries; each belongs to one
// sequence and is counted from its first key or query, so a sequence has the bits that it has alone. Rows that TMA
// loads behind a sequence may hold NaN: those of queries, which both products of key_gradients sum over, are cleared by
// a warp before anybody reads them, as are those of keys in query_gradients. key_gradients stores ds = 0 for such keys.
#pragma once

#include <climits>

#include "attention/sm90.cuh"

namespace checkop::kernels::attention::hopper {

constexpr int kImageQueries = 64;  // queries of an image of ds
constexpr int kImageBytes = kKeys * kImageQueries * 2;
constexpr int kBoxBytes = 16 * kImageQueries * 2;  // a warp's part of an image
constexpr int kQueryTile = 128;                    // queries of a block of query_gradients

/// Which images of ds exist in a plane. Tiles have 128 queries, blocks 128 keys.
struct Images {
  int q_tiles, key_blocks, shift;  ///< block b is seen by tiles from max(b - shift, 0) on

  Images() = default;
  __host__ __device__ Images(int64_t q_seq, int64_t kv_seq, bool causal) {
    q_tiles = static_cast<int>(ceil_div(q_seq, kQueryTile)), key_blocks = static_cast<int>(ceil_div(kv_seq, kKeys));
    const int64_t offset = kv_seq - q_seq;  // ceil_div() of a negative number rounds toward zero, which is up
    shift = !causal ? key_blocks : static_cast<int>(offset > 0 ? ceil_div(offset, kKeys) : -(-offset / kKeys));
  }
  __host__ __device__ int first_tile(int block) const { return block > shift ? block - shift : 0; }
  /// Number of pairs of images of the blocks below this one.
  __host__ __device__ int64_t pairs_before(int block) const {
    const auto triangle = [](int64_t n) { return n > 0 ? n * (n + 1) / 2 : 0; };
    return int64_t{block} * q_tiles - triangle(block - 1 - shift) + triangle(-shift - 1);
  }
  __host__ __device__ int64_t count() const { return 2 * pairs_before(key_blocks); }
  /// Number of an image; `step`: queries / 64.
  __host__ __device__ int64_t index(int block, int step) const {
    return 2 * (pairs_before(block) - first_tile(block)) + step;
  }
  /// Blocks that queries of a tile see.
  __host__ __device__ int blocks(int q_tile) const {
    const int seen = q_tile + shift + 1;
    return seen < 0 ? 0 : seen < key_blocks ? seen : key_blocks;
  }
};

/// 128 queries, or 128 keys, of one of several packed sequences.
struct alignas(16) SequencePart {
  int first_query, n_queries;  ///< of the sequence: rows of q
  int first_key, n_keys;       ///< of the sequence: rows of k
  int index;                   ///< among the 128s of the sequence
  int first_row;               ///< of the sequence, in a plane of lse2 and delta; a multiple of 128
  int first_image;             ///< of the sequence, in a plane
  int unused;

  __device__ Images images(bool causal) const { return {n_queries, n_keys, causal}; }
};
static_assert(sizeof(SequencePart) == 32);

struct PartCounts {
  int of_queries, of_keys;  ///< listed parts
  int images;               ///< of a plane
  int kv_heads;             ///< key heads whose images have room in the workspace
};

/// All sequences, those with the most work first.
struct PartLists {
  SequencePart *of_queries, *of_keys;
  int* first_image;  ///< [sequences], of each in a plane
  PartCounts* counts;
};

template <typename T>
struct BackwardParams {
  CUtensorMap q_map, k_map, v_map, grad_map;  ///< boxes of a step's queries or 128 keys
  CUtensorMap dk_map, dv_map, dq_map;         ///< boxes of 16 rows
  const float* __restrict__ lse2;             ///< [planes, padded_queries], +inf for rows without keys or past the end
  const float* __restrict__ delta;            ///< likewise; 0 there
  std::byte* __restrict__ ds;                 ///< [planes of this launch, images of a plane] images
  KeyLists lists;
  Images images;
  int width;  ///< as in ForwardParams
  int group, kv_heads, q_seq, kv_seq, padded_queries;
  int first_kv_plane, kv_planes;  ///< of this launch
  float c, scale;
  bool causal;
  // Of packed sequences. A plane is then a head, and images, q_seq, kv_seq, first_kv_plane and kv_planes are not used.
  PartLists parts;
  int launch;  ///< number of this launch: each has the next parts.counts->kv_heads key heads, if there are so many
  T* __restrict__ dq, * __restrict__ dk, * __restrict__ dv;
};

/// The key planes of a launch.
struct KeyPlanes {
  int first, n;

  template <typename T>
  __device__ KeyPlanes(const BackwardParams<T>& p, bool is_listed) : first(p.first_kv_plane), n(p.kv_planes) {
    if (!is_listed) return;
    const int at_once = p.parts.counts->kv_heads;
    first = p.launch * at_once, n = max(0, min(at_once, p.kv_heads - first));
  }
};

// --- rows ------------------------------------------------------------------------------------------------------------

constexpr int kRowsPerWarp = 4;  // loads of several rows in flight

/// Queries [first, n) of a plane: the i-th of all n is row `begin` + i * step of q. n is 0 if they do not count.
struct QueryRows {
  int64_t begin;
  int step, first, n;
};

/// The queries of a row of lse2, counted over the planes, and of the next ones of its plane.
struct RowsOfPlanes {
  int q_seq, padded_queries;

  __device__ QueryRows operator()(int64_t row) const {
    return {row / padded_queries * q_seq, 1, static_cast<int>(row % padded_queries), q_seq};
  }
};

struct RowsOfSequences {
  const int32_t* __restrict__ bounds;
  int64_t sequences, tokens, padded_queries;
  int heads;

  __device__ QueryRows operator()(int64_t row) const {
    const int64_t head = row / padded_queries, in_plane = row % padded_queries;
    const SequenceTile tile = tile_of(bounds, sequences, tokens, in_plane / kQueryTile, kQueryTile);
    const bool counts = tile.sequence < sequences && tile.first < tile.n;
    return {tile.begin * heads + head, heads, static_cast<int>(tile.first + in_plane % kQueryTile),
            counts ? static_cast<int>(tile.n) : 0};
  }
};

/// head_dim, width: as in ForwardParams. lse: of every row of q, -inf for rows without keys; times
/// `lse_unit` a logarithm of base 2. rows: planes * padded_queries, a multiple of kRowsPerWarp.
template <typename T, int head_dim, typename Rows>
__global__ __launch_bounds__(256) void prepare_rows(const T* __restrict__ o, const T* __restrict__ grad, int width,
                                                    const float* __restrict__ lse, float lse_unit, int64_t rows,
                                                    Rows queries_of, float* __restrict__ lse2,
                                                    float* __restrict__ delta) {
  constexpr int kPerLane = head_dim / kWarp;
  struct alignas(kPerLane * sizeof(T)) Elements {
    T at[kPerLane];
  };
  const int lane = threadIdx.x % kWarp;
  const bool has_elements = lane * kPerLane < width;
  const int64_t first_row = (int64_t{blockIdx.x} * 8 + threadIdx.x / kWarp) * kRowsPerWarp;
  if (first_row >= rows) return;
  const QueryRows queries = queries_of(first_row);
  if (queries.n == 0) return;
  Elements x[kRowsPerWarp], y[kRowsPerWarp];
  float log_sum[kRowsPerWarp];
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    const int64_t from = queries.begin + int64_t{min(queries.first + i, queries.n - 1)} * queries.step;
    x[i] = has_elements ? reinterpret_cast<const Elements*>(o + from * width)[lane] : Elements{};
    y[i] = has_elements ? reinterpret_cast<const Elements*>(grad + from * width)[lane] : Elements{};
    log_sum[i] = lse[from];
  }
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) sum = fmaf(to_float(x[i].at[j]), to_float(y[i].at[j]), sum);
    sum = warp_sum(sum);
    const bool has_keys = queries.first + i < queries.n && log_sum[i] != -INFINITY;
    if (lane == 0) {
      lse2[first_row + i] = has_keys ? log_sum[i] * lse_unit : INFINITY;
      delta[first_row + i] = has_keys ? sum : 0.0f;
    }
  }
}

// --- dk, dv, ds ------------------------------------------------------------------------------------------------------

/// Work of a block: 128 keys of a key head. Those with the most queries come first.
struct KeysOfPlane {
  int plane, index, first, end;  ///< index: among the blocks of keys; steps [first, end) of each head of the group
  bool kept;                     ///< whether any of the keys is

  template <typename T>
  __device__ KeysOfPlane(const BackwardParams<T>& p, uint32_t item, int queries) {
    index = static_cast<int>(item / p.kv_planes);
    plane = p.first_kv_plane + static_cast<int>(item % p.kv_planes);
    first = p.images.first_tile(index) * (kQueryTile / queries);
    end = p.images.q_tiles * (kQueryTile / queries);
    kept = true;
    if (p.lists.listed != nullptr) {
      const int* before = p.lists.listed_before + plane / p.kv_heads * (p.lists.n_blocks + 1) + index;
      kept = before[0] != before[1];
    }
  }

  __device__ int kv_plane() const { return plane; }
  __device__ int block() const { return index; }
  __device__ int first_step() const { return first; }
  __device__ int end_step() const { return end; }
  __device__ bool has_steps() const { return kept; }
  template <typename T>
  __device__ static int n_keys(const BackwardParams<T>& p) {
    return p.kv_seq;
  }
  /// Query i sees the keys up to i + offset, if causal.
  template <typename T>
  __device__ static int offset(const BackwardParams<T>& p) {
    return p.kv_seq - p.q_seq;
  }
  /// The lines of q and k from which queries and keys are counted.
  __device__ static int query_line() { return 0; }
  __device__ static int key_line() { return 0; }
  /// The row of lse2 of query `query`.
  template <typename T>
  __device__ static int64_t row(const BackwardParams<T>& p, int q_plane, int query) {
    return int64_t{q_plane} * p.padded_queries + query;
  }
  /// Number of the block's image of step 0 of the first head, and the images of a plane.
  template <typename T>
  __device__ int64_t first_image(const BackwardParams<T>& p) const {
    return int64_t{plane - p.first_kv_plane} * p.group * p.images.count() + p.images.index(index, 0);
  }
  template <typename T>
  __device__ static int64_t images(const BackwardParams<T>& p) {
    return p.images.count();
  }
};

constexpr int kQueryStages = 3;

/// The same in packed sequences. The producer writes it to shared memory, where it stays until the consumers are done
/// with the keys: they have no registers left for it.
struct ListedKeys {
  SequencePart part;
  int64_t before;               ///< first_image()
  int of_plane, kv_head;        ///< images(), kv_plane()
  int first, end;               ///< as KeysOfPlane; -1: there are no more keys
  int n_queries[kQueryStages];  ///< queries of the sequence that each stage has; -1: there are no more
};

struct KeysOfSequence {
  const ListedKeys* in;

  __device__ bool exists() const { return in->end >= 0; }
  __device__ int kv_plane() const { return in->kv_head; }
  __device__ int block() const { return in->part.index; }
  __device__ int first_step() const { return in->first; }
  __device__ int end_step() const { return in->end; }
  __device__ bool has_steps() const { return in->first < in->end; }
  template <typename T>
  __device__ int n_keys(const BackwardParams<T>&) const {
    return in->part.n_keys;
  }
  template <typename T>
  __device__ int offset(const BackwardParams<T>&) const {
    return in->part.n_keys - in->part.n_queries;
  }
  __device__ int query_line() const { return in->part.first_query; }
  __device__ int key_line() const { return in->part.first_key; }
  template <typename T>
  __device__ int64_t row(const BackwardParams<T>& p, int q_plane, int query) const {
    return int64_t{q_plane} * p.padded_queries + in->part.first_row + query;
  }
  template <typename T>
  __device__ int64_t first_image(const BackwardParams<T>&) const {
    return in->before;
  }
  template <typename T>
  __device__ int64_t images(const BackwardParams<T>&) const {
    return in->of_plane;
  }
};

/// queries: of a step. late: the exponentials of a step are computed at its start, not at the end of the step before,
/// which leaves registers for more queries. listed: packed sequences.
template <int head_dim, int queries, bool late, bool listed>
struct KeyGradientConfig {
  static constexpr bool kIsListed = listed;  // packed sequences
  static constexpr int kQueries = queries, kImages = queries / kImageQueries;
  static constexpr bool kLate = late;
  static constexpr int kHeadDim = head_dim, kStages = kQueryStages, kConsumers = 2, kThreads = 3 * kWarpgroup;
  static constexpr int kSlabs = head_dim / 64, kKeySlab = kKeys * 128, kQuerySlab = queries * 128;
  static constexpr int kKeyBytes = kSlabs * kKeySlab, kQueryBytes = kSlabs * kQuerySlab;
  static constexpr int kRowBytes = queries * 4;  // of lse2, of delta
  static constexpr int kQueryOffset = 2 * kKeyBytes, kGradOffset = kQueryOffset + kStages * kQueryBytes;
  static constexpr int kStagingOffset = kGradOffset + kStages * kQueryBytes;
  static constexpr int kRowOffset = kStagingOffset + kConsumers * 4 * 2 * kImages * kBoxBytes;
  static constexpr int kBarrierOffset = kRowOffset + kStages * 2 * kRowBytes;
  static constexpr int kBarriers = 2 + (listed ? 6 : 4) * kStages;
  static constexpr int kListedOffset = (kBarrierOffset + kBarriers * kBarrierBytes + 15) / 16 * 16;
  static constexpr int kDynamicSmemBytes =
      kListedOffset + (listed ? static_cast<int>(sizeof(ListedKeys)) : 0) + kSmemAlign;
  static_assert(kDynamicSmemBytes <= kMaxSmemBytes);
};

template <typename Config, typename T>
struct KeyGradients {
  const BackwardParams<T>& p;
  uint32_t base;
  ListedKeys* listed;  ///< in shared memory, of packed sequences
  KeyPlanes planes;

  using Keys = std::conditional_t<Config::kIsListed, KeysOfSequence, KeysOfPlane>;

  using KeyLayout = SmemLayout<true, kKeys, Config::kHeadDim>;               // k, v as rows of a product
  using QueryLayout = SmemLayout<true, Config::kQueries, Config::kHeadDim>;  // q, do as columns of a product
  using QueryAlong = SmemLayout<false, Config::kHeadDim, Config::kQueries>;  // q, do summed over

  __device__ uint32_t key() const { return base; }
  __device__ uint32_t value() const { return base + Config::kKeyBytes; }
  __device__ uint32_t query(uint32_t stage) const { return base + Config::kQueryOffset + stage * Config::kQueryBytes; }
  __device__ uint32_t grad(uint32_t stage) const { return base + Config::kGradOffset + stage * Config::kQueryBytes; }
  __device__ uint32_t row(uint32_t stage) const { return base + Config::kRowOffset + stage * 2 * Config::kRowBytes; }
  __device__ uint32_t barrier(int i) const { return base + Config::kBarrierOffset + i * kBarrierBytes; }
  __device__ uint32_t keys_full() const { return barrier(0); }
  __device__ uint32_t keys_empty() const { return barrier(1); }
  __device__ uint32_t query_full(uint32_t stage) const { return barrier(2 + stage); }
  __device__ uint32_t query_empty(uint32_t stage) const { return barrier(2 + Config::kStages + stage); }
  __device__ uint32_t grad_full(uint32_t stage) const { return barrier(2 + 2 * Config::kStages + stage); }
  __device__ uint32_t grad_empty(uint32_t stage) const { return barrier(2 + 3 * Config::kStages + stage); }
  /// Loaded; in packed sequences, a warp must then clear the queries behind the sequence.
  __device__ uint32_t query_cleared(uint32_t stage) const { return barrier(2 + 4 * Config::kStages + stage); }
  __device__ uint32_t grad_cleared(uint32_t stage) const { return barrier(2 + 5 * Config::kStages + stage); }
  __device__ uint32_t query_ready(uint32_t stage) const {
    return Config::kIsListed ? query_cleared(stage) : query_full(stage);
  }
  __device__ uint32_t grad_ready(uint32_t stage) const {
    return Config::kIsListed ? grad_cleared(stage) : grad_full(stage);
  }
  __device__ uint32_t n_items() const {
    return static_cast<uint32_t>(Config::kIsListed ? p.parts.counts->of_keys : p.images.key_blocks) * planes.n;
  }

  /// The block's item of a turn. Items get smaller with their index where keys are causal, so turns alternate their
  /// direction: the block with the largest item of one turn has the smallest of the next.
  __device__ uint32_t item(uint32_t turn) const {
    return turn * gridDim.x + (turn % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  }
  __device__ Keys keys(uint32_t turn) const {
    if constexpr (Config::kIsListed) {
      return {listed};
    } else {
      return {p, item(turn), Config::kQueries};
    }
  }

  /// Leaves the item of a turn in shared memory, when its place is free.
  __device__ void list(uint32_t turn, uint32_t parity) const {
    constexpr int kSteps = kQueryTile / Config::kQueries;  // of a tile
    const uint32_t at = item(turn), total = n_items();
    SequencePart part{};
    if (at < total) part = p.parts.of_keys[at / planes.n];
    const Images images = part.images(p.causal);
    const int kv_head = at < total ? static_cast<int>(at % planes.n) : 0, of_plane = p.parts.counts->images;
    wait(keys_empty(), parity);
    listed->part = part;
    listed->kv_head = planes.first + kv_head, listed->of_plane = of_plane;
    listed->before = int64_t{kv_head} * p.group * of_plane + part.first_image + images.index(part.index, 0);
    listed->first = images.first_tile(part.index) * kSteps;
    listed->end = at < total ? images.q_tiles * kSteps : -1;
  }

  /// One thread loads.
  __device__ void produce() const {
    PipelineState<1> items;
    PipelineState<Config::kStages> pipe;
    for (uint32_t turn = 0;; ++turn, items.advance()) {
      if constexpr (Config::kIsListed) {
        list(turn, items.parity ^ 1);
      } else {
        if (item(turn) >= n_items()) return;
        wait(keys_empty(), items.parity ^ 1);
      }
      const Keys at = keys(turn);
      if constexpr (Config::kIsListed) {
        if (!at.exists()) break;
      }
      if (!at.has_steps()) {
        arrive(keys_full());
        continue;
      }
      arrive_expect_tx(keys_full(), 2 * Config::kKeyBytes);
      const int key_line = at.key_line() + at.block() * kKeys;
#pragma unroll
      for (int slab = 0; slab < Config::kSlabs; ++slab) {
        tma_load_planes(p.k_map, key() + slab * Config::kKeySlab, keys_full(), slab * 64, key_line, at.kv_plane());
        tma_load_planes(p.v_map, value() + slab * Config::kKeySlab, keys_full(), slab * 64, key_line, at.kv_plane());
      }
      for (int head = 0; head < p.group; ++head) {
        const int plane = at.kv_plane() * p.group + head;
        for (int step = at.first_step(); step < at.end_step(); ++step, pipe.advance()) {
          const int first = step * Config::kQueries, line = at.query_line() + first;
          const int64_t first_row = at.row(p, plane, first);
          const uint32_t q_full = query_full(pipe.stage), g_full = grad_full(pipe.stage);
          wait(query_empty(pipe.stage), pipe.parity ^ 1);
          if constexpr (Config::kIsListed) listed->n_queries[pipe.stage] = max(0, listed->part.n_queries - first);
          arrive_expect_tx(q_full, Config::kQueryBytes + Config::kRowBytes);
#pragma unroll
          for (int slab = 0; slab < Config::kSlabs; ++slab) {
            tma_load_planes(p.q_map, query(pipe.stage) + slab * Config::kQuerySlab, q_full, slab * 64, line, plane);
          }
          bulk_load(row(pipe.stage), p.lse2 + first_row, Config::kRowBytes, q_full);
          wait(grad_empty(pipe.stage), pipe.parity ^ 1);
          arrive_expect_tx(g_full, Config::kQueryBytes + Config::kRowBytes);
#pragma unroll
          for (int slab = 0; slab < Config::kSlabs; ++slab) {
            tma_load_planes(p.grad_map, grad(pipe.stage) + slab * Config::kQuerySlab, g_full, slab * 64, line, plane);
          }
          bulk_load(row(pipe.stage) + Config::kRowBytes, p.delta + first_row, Config::kRowBytes, g_full);
        }
      }
    }
    if constexpr (Config::kIsListed) {
      arrive(keys_full());
      wait(query_empty(pipe.stage), pipe.parity ^ 1);
      listed->n_queries[pipe.stage] = -1;
      arrive(query_full(pipe.stage));
    }
  }

  /// A warp clears the queries and gradients that lie behind a sequence, in the stages that have such.
  __device__ void clear() const {
    const int lane = threadIdx.x % kWarp;
    const auto clear_behind = [&](uint32_t block, int n, uint32_t cleared) {
      if (n < Config::kQueries) clear_from<Config::kSlabs, Config::kQueries>(block, n);
      __syncwarp();
      if (lane == 0) arrive(cleared);
    };
    PipelineState<Config::kStages> pipe;
    for (;; pipe.advance()) {
      wait(query_full(pipe.stage), pipe.parity);
      const int n = listed->n_queries[pipe.stage];
      if (n < 0) return;
      clear_behind(query(pipe.stage), n, query_cleared(pipe.stage));
      wait(grad_full(pipe.stage), pipe.parity);
      clear_behind(grad(pipe.stage), n, grad_cleared(pipe.stage));
      arrive(query_empty(pipe.stage));
    }
  }

  /// This thread's values for columns 8j + l % 4 * 2 and the next.
  __device__ static float2 of_columns(uint32_t row, int j) {
    float2 value;
    const uint32_t at = row + (j * 8 + threadIdx.x % 4 * 2) * 4;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(at) : "memory");
    return value;
  }

  /// A warpgroup computes its 64 keys of all items of this block.
  __device__ __forceinline__ void consume() const {
    constexpr int kHeadDim = Config::kHeadDim, kQueries = Config::kQueries, kPairs = kQueries / 2;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarpgroup), 0);
    const uint32_t staging = base + Config::kStagingOffset + warp * 2 * Config::kImages * kBoxBytes;
    PipelineState<1> items;
    PipelineState<Config::kStages> pipe;
    uint32_t buffer = 0;
    const uint64_t key_rows = KeyLayout::descriptor(key() + group * 64 * 128);
    const uint64_t value_rows = KeyLayout::descriptor(value() + group * 64 * 128);

    float score[kPairs];
    const auto begin_scores = [&](uint32_t stage) {
      const uint64_t b = QueryLayout::descriptor(query(stage));
#pragma unroll
      for (int q = 0; q < kHeadDim / 16; ++q) {
        wgmma<T, true, true, kQueries>(score, key_rows + KeyLayout::k_offset(q) / 16, b + QueryLayout::k_offset(q) / 16,
                                       q);
      }
      wgmma_commit_group();
    };

    for (uint32_t turn = 0;; ++turn, items.advance()) {
      if constexpr (!Config::kIsListed) {
        if (item(turn) >= n_items()) break;
      }
      wait(keys_full(), items.parity);
      const Keys at = keys(turn);
      if constexpr (Config::kIsListed) {
        if (!at.exists()) break;
      }
      const int n_steps = at.has_steps() ? (at.end_step() - at.first_step()) * p.group : 0;
      float dk[kHeadDim / 2], dv[kHeadDim / 2];
      // Key of this thread's rows, less the causal offset: visible to queries from this one on. Beyond all queries if
      // it is not kept.
      int visible_from[2];
      int whole_from;  // all keys are kept, and visible to all queries from this one on
      {
        const int first_key = at.block() * kKeys, n_keys = at.n_keys(p), offset = at.offset(p);
        uint4 bits{~0u, ~0u, ~0u, ~0u};
        if (!Config::kIsListed && p.lists.listed != nullptr) {
          bits = p.lists.bits[int64_t{at.kv_plane() / p.kv_heads} * p.lists.n_blocks + at.block()];
        }
        const bool all_kept = (bits.x & bits.y & bits.z & bits.w) == ~0u && first_key + kKeys <= n_keys;
        whole_from = !all_kept ? INT_MAX : p.causal ? first_key + kKeys - 1 - offset : INT_MIN;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = warp * 16 + lane / 4 + half * 8, key = first_key + row;
          const uint32_t word = row < 32 ? bits.x : row < 64 ? bits.y : row < 96 ? bits.z : bits.w;
          const bool kept = key < n_keys && (word >> row % 32 & 1) != 0;
          visible_from[half] = !kept ? INT_MAX : p.causal ? key - offset : INT_MIN;
        }
      }
      int step = at.first_step();
      std::byte* images = p.ds + at.first_image(p) * kImageBytes + warp * kBoxBytes;  // of this head, this warp's boxes
      const auto hide = [&](float(&value)[kPairs], int first) {
        const int column = first + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < kPairs; ++k) {
          if (column + k / 4 * 8 + k % 2 < visible_from[k / 2 % 2]) value[k] = 0.0f;
        }
      };
      // Turns the scores of step i, whose queries are in `stage`, into p.
      const auto exponentiate_step = [&](uint32_t stage, int first) {
#pragma unroll
        for (int j = 0; j < kQueries / 8; ++j) {
          const float2 lse2 = of_columns(row(stage), j);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            score[4 * j + k] = power_of_2(fmaf(score[4 * j + k], p.c, -(k % 2 == 0 ? lse2.x : lse2.y)));
          }
        }
        if (first < whole_from) hide(score, first);
      };
      // derivative = v do^T
      const auto begin_derivatives = [&](float(&derivative)[kPairs]) {
        const uint64_t b = QueryLayout::descriptor(grad(pipe.stage));
#pragma unroll
        for (int q = 0; q < kHeadDim / 16; ++q) {
          wgmma<T, true, true, kQueries>(derivative, value_rows + KeyLayout::k_offset(q) / 16,
                                         b + QueryLayout::k_offset(q) / 16, q);
        }
        wgmma_commit_group();
      };
      // sum += pairs * rows, over the queries of a step
      const auto begin_sum = [&](float(&sum)[kHeadDim / 2], const uint32_t* pairs, uint32_t rows, int add) {
        const uint64_t b = QueryAlong::descriptor(rows);
#pragma unroll
        for (int q = 0; q < kQueries / 16; ++q) {
          wgmma<T, false, kHeadDim>(sum, pairs + 4 * q, b + QueryAlong::k_offset(q) / 16, add | q);
        }
        wgmma_commit_group();
      };
      // derivative = ds = p (derivative - delta)
      const auto derive = [&](float(&derivative)[kPairs], int first) {
#pragma unroll
        for (int j = 0; j < kQueries / 8; ++j) {
          const float2 delta = of_columns(row(pipe.stage) + Config::kRowBytes, j);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            derivative[4 * j + k] = score[4 * j + k] * (derivative[4 * j + k] - (k % 2 == 0 ? delta.x : delta.y));
          }
        }
        if (first < whole_from) hide(derivative, first);
      };
      const auto store_slopes = [&](const uint32_t* slopes, std::byte* to) {
        const uint32_t from = staging + buffer * Config::kImages * kBoxBytes;
        if (lane == 0) tma_store_wait<1>();  // the store before the last has read its buffer
        __syncwarp();
#pragma unroll
        for (int image = 0; image < Config::kImages; ++image) stage_box(slopes + image * 16, from + image * kBoxBytes);
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
#pragma unroll
          for (int image = 0; image < Config::kImages; ++image) {
            bulk_store(to + image * kImageBytes, from + image * kBoxBytes, kBoxBytes);
          }
          tma_store_commit();
        }
        buffer ^= 1;
      };
      // On entry `score` holds p of step i (if Config::kLate, its scores), at the end that of the next step. The last
      // step computes its own once more, which nothing reads: with a branch that leaves this out, the compiler would
      // copy the accumulators of products in flight.
      const auto run_step = [&](int i) {
        const int first = step * kQueries;
        std::byte* to = images + int64_t{step} * (Config::kImages * kImageBytes);
        if (++step == at.end_step()) step = at.first_step(), images += at.images(p) * kImageBytes;
        PipelineState<Config::kStages> next = pipe;
        next.advance();
        const bool is_last = i + 1 == n_steps;
        const uint32_t next_stage = is_last ? pipe.stage : next.stage;
        float derivative[kPairs];
        uint32_t weights[kPairs / 2], slopes[kPairs / 2];
        if constexpr (!Config::kLate) pack_sums<T>(score, weights);
        wait(grad_ready(pipe.stage), pipe.parity);
        wgmma_fence();
        begin_derivatives(derivative);
        if constexpr (Config::kLate) {
          exponentiate_step(pipe.stage, first);
          pin_registers(score);
          wgmma_wait_group<0>();
          pin_registers(derivative);
          derive(derivative, first);
          pack_sums<T>(derivative, slopes);
          pack_sums<T>(score, weights);
          if (!is_last) wait(query_ready(next.stage), next.parity);
          pin_registers(weights);
          pin_registers(slopes);
          wgmma_fence();
          begin_sum(dv, weights, grad(pipe.stage), i);
          wgmma_fence();
          begin_sum(dk, slopes, query(pipe.stage), i);
          wgmma_fence();
          begin_scores(next_stage);
          store_slopes(slopes, to);
          wgmma_wait_group<0>();
          pin_registers(score);
          pin_registers(dv);
          if (lane == 0) arrive(grad_empty(pipe.stage));  // their delta is released with the queries
        } else {
          begin_sum(dv, weights, grad(pipe.stage), i);
          wgmma_wait_group<1>();
          pin_registers(derivative);
          derive(derivative, first);
          pack_sums<T>(derivative, slopes);
          if (!is_last) wait(query_ready(next.stage), next.parity);
          wgmma_fence();
          begin_scores(next_stage);
          begin_sum(dk, slopes, query(pipe.stage), i);
          store_slopes(slopes, to);
          wgmma_wait_group<1>();
          pin_registers(score);
          pin_registers(dv);
          if (lane == 0) arrive(grad_empty(pipe.stage));  // their delta is released with the queries
          exponentiate_step(next_stage, step * kQueries);
          pin_registers(score);
          wgmma_wait_group<0>();
        }
        pin_registers(dk);
        arrive(query_empty(pipe.stage));  // each lane, since each has read its values of the rows
        pipe = next;
      };
      if (n_steps > 0) {
        wait(query_ready(pipe.stage), pipe.parity);
        wgmma_fence();
        begin_scores(pipe.stage);
        wgmma_wait_group<0>();
        pin_registers(score);
        if constexpr (!Config::kLate) exponentiate_step(pipe.stage, step * kQueries);
        int i = 0;
        do {
          run_step(i);
        } while (++i < n_steps);
      } else {
#pragma unroll
        for (int k = 0; k < kHeadDim / 2; ++k) dk[k] = dv[k] = 0.0f;
      }
      // dk and dv are staged in the shared memory of k and v, of which every warpgroup reads only its own rows. Where
      // some of a warp's rows lie behind a packed sequence, its lanes store the others directly.
      named_barrier_sync(1 + group, kWarpgroup);
      const int first_key = at.block() * kKeys + warp * 16, n_left = at.n_keys(p) - first_key;
      const int line = at.key_line() + first_key, kv_plane = at.kv_plane();
      const bool is_staged = (!Config::kIsListed || n_left >= 16) && n_left > 0;
      const auto put = [&](const float(&sum)[kHeadDim / 2], uint32_t slabs, [[maybe_unused]] T* rows) {
        uint32_t packed[kHeadDim / 4];
        pack_sums<T>(sum, packed);
        if constexpr (Config::kIsListed) {
          if (!is_staged) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int row = lane / 4 + half * 8;
              if (row >= n_left) continue;
              const int64_t of_heads = int64_t{line + row} * p.kv_heads + kv_plane;
              store_row_part<kHeadDim>(packed, half, rows + of_heads * p.width, p.width);
            }
            return;
          }
        }
#pragma unroll
        for (int slab = 0; slab < Config::kSlabs; ++slab) {
          stage_box(packed + slab * 16, slabs + slab * Config::kKeySlab + warp * 16 * 128);
        }
      };
#pragma unroll
      for (int k = 0; k < kHeadDim / 2; ++k) dk[k] *= p.scale;
      put(dk, key(), p.dk);
      put(dv, value(), p.dv);
      fence_proxy_async();
      __syncwarp();
      if (lane == 0) {
        if (is_staged) {
#pragma unroll
          for (int slab = 0; slab < Config::kSlabs; ++slab) {
            const uint32_t offset = slab * Config::kKeySlab + warp * 16 * 128;
            tma_store_planes(p.dk_map, key() + offset, slab * 64, line, kv_plane);
            tma_store_planes(p.dv_map, value() + offset, slab * 64, line, kv_plane);
          }
        }
        tma_store_commit();
        tma_store_wait<0>();
      }
      arrive(keys_empty());
    }
    if (lane == 0) tma_store_wait<0>();
  }
};

template <typename Config, typename T>
__global__ __launch_bounds__(Config::kThreads, 1) void key_gradients(const __grid_constant__ BackwardParams<T> p) {
  extern __shared__ uint8_t dynamic[];
  const uint32_t unaligned = shared_address(dynamic), base = (unaligned + kSmemAlign - 1) / kSmemAlign * kSmemAlign;
  const KeyGradients<Config, T> work{
      p, base, reinterpret_cast<ListedKeys*>(dynamic + (base - unaligned) + Config::kListedOffset),
      KeyPlanes(p, Config::kIsListed)};
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarp), 0);
  const int lane = threadIdx.x % kWarp;
  constexpr int kConsumers = Config::kConsumers * kWarpgroup;
  if (Config::kIsListed && work.planes.n == 0) return;
  if (warp == 8 && lane == 0) {
    init_barrier(work.keys_full(), 1);
    init_barrier(work.keys_empty(), kConsumers);
    for (int stage = 0; stage < Config::kStages; ++stage) {
      init_barrier(work.query_full(stage), 1);
      init_barrier(work.query_empty(stage), kConsumers + (Config::kIsListed ? kWarp : 0));  // clear() has a warp
      init_barrier(work.grad_full(stage), 1);
      init_barrier(work.grad_empty(stage), 8);
      if constexpr (Config::kIsListed) {
        init_barrier(work.query_cleared(stage), 1);
        init_barrier(work.grad_cleared(stage), 1);
      }
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (warp >= 8) {
    setmaxnreg_dec<24>();
    if (warp == 8 && lane == 0) {
      work.produce();
    } else if (warp == 9 && Config::kIsListed) {
      work.clear();
    }
  } else {
    setmaxnreg_inc<240>();
    work.consume();
  }
}

// --- dq --------------------------------------------------------------------------------------------------------------

template <int head_dim, bool listed>
struct QueryGradientConfig {
  static constexpr bool kIsListed = listed;  // packed sequences
  static constexpr int kHeadDim = head_dim, kStages = 3, kThreads = 3 * kWarpgroup;
  static constexpr int kSlabs = head_dim / 64, kKeySlab = kKeys * 128, kKeyBytes = kSlabs * kKeySlab;
  static constexpr int kStageBytes = 2 * kImageBytes + kKeyBytes;
  static constexpr int kStagingOffset = kStages * kStageBytes;
  static constexpr int kBarrierOffset = kStagingOffset + 8 * kSlabs * kBoxBytes;
  static constexpr int kDynamicSmemBytes = kBarrierOffset + 3 * kStages * kBarrierBytes + kSmemAlign;
  static_assert(kDynamicSmemBytes <= kMaxSmemBytes);
};

/// Work of a block: 128 queries of a head. Those with the most keys come first; heads of a group together.
struct QueriesOfPlane {
  int plane, index, blocks;  ///< plane: of this launch; index: among the tiles; blocks of keys
  const uint32_t* listed = nullptr;

  QueriesOfPlane() = default;
  template <typename T>
  __device__ QueriesOfPlane(const BackwardParams<T>& p, const KeyPlanes& planes, uint32_t number) {
    const uint32_t n_planes = static_cast<uint32_t>(planes.n) * p.group;
    const auto tile = static_cast<int>(number / n_planes);
    index = p.causal ? p.images.q_tiles - 1 - tile : tile;
    plane = static_cast<int>(number % n_planes);
    blocks = p.images.blocks(index);
    if (p.lists.listed != nullptr) {
      const int64_t batch = (planes.first + plane / p.group) / p.kv_heads;
      listed = p.lists.listed + batch * p.lists.n_blocks;
      blocks = p.lists.listed_before[batch * (p.lists.n_blocks + 1) + blocks];
    }
  }
  template <typename T>
  __device__ static uint32_t tiles(const BackwardParams<T>& p) {
    return p.images.q_tiles;
  }
  /// The i-th block of keys, with kMixed.
  __device__ uint32_t block(int i) const { return listed == nullptr ? i : listed[i]; }
  /// The first of its two images.
  template <typename T>
  __device__ int64_t image(const BackwardParams<T>& p, int block) const {
    return plane * p.images.count() + p.images.index(block, 2 * index);
  }
  __device__ static int key_line() { return 0; }
  /// Lines of q: of the first query, and where the queries end.
  __device__ int query_line() const { return index * kQueryTile; }
  template <typename T>
  __device__ static int end_line(const BackwardParams<T>& p) {
    return p.q_seq;
  }
  /// A warp clears the keys of a block that are not kept.
  template <int slabs, typename T>
  __device__ void clear_keys(const BackwardParams<T>& p, const KeyPlanes& planes, int i, uint32_t keys) const {
    const uint32_t block = listed[i];
    if ((block & kMixed) == 0) return;
    const int64_t batch = (planes.first + plane / p.group) / p.kv_heads;
    clear_hidden_rows<slabs>(keys, p.lists.bits[batch * p.lists.n_blocks + (block & ~kMixed)]);
  }
};

/// The same in packed sequences.
struct QueriesOfSequence {
  SequencePart part;
  int plane, blocks, of_plane;  ///< of_plane: images

  QueriesOfSequence() = default;
  template <typename T>
  __device__ QueriesOfSequence(const BackwardParams<T>& p, const KeyPlanes& planes, uint32_t number) {
    const uint32_t n_planes = static_cast<uint32_t>(planes.n) * p.group;
    part = p.parts.of_queries[number / n_planes];
    plane = static_cast<int>(number % n_planes);
    blocks = part.images(p.causal).blocks(part.index);
    of_plane = p.parts.counts->images;
  }
  template <typename T>
  __device__ static uint32_t tiles(const BackwardParams<T>& p) {
    return p.parts.counts->of_queries;
  }
  __device__ static uint32_t block(int i) { return i; }
  template <typename T>
  __device__ int64_t image(const BackwardParams<T>& p, int block) const {
    return int64_t{plane} * of_plane + part.first_image + part.images(p.causal).index(block, 2 * part.index);
  }
  __device__ int key_line() const { return part.first_key; }
  __device__ int query_line() const { return part.first_query + part.index * kQueryTile; }
  template <typename T>
  __device__ int end_line(const BackwardParams<T>&) const {
    return part.first_query + part.n_queries;
  }
  template <int slabs, typename T>
  __device__ void clear_keys(const BackwardParams<T>&, const KeyPlanes&, int i, uint32_t keys) const {
    const int n = part.n_keys - i * kKeys;
    if (n < kKeys) clear_from<slabs>(keys, n);
  }
};

template <typename Config, typename T>
__global__ __launch_bounds__(Config::kThreads, 1) void query_gradients(const __grid_constant__ BackwardParams<T> p) {
  using SlopeLayout = SmemLayout<false, 64, kKeys>;             // ds of 64 queries
  using KeyAlong = SmemLayout<false, Config::kHeadDim, kKeys>;  // k summed over
  using Queries = std::conditional_t<Config::kIsListed, QueriesOfSequence, QueriesOfPlane>;
  extern __shared__ uint8_t dynamic[];
  const uint32_t unaligned = shared_address(dynamic);
  const uint32_t base = (unaligned + kSmemAlign - 1) / kSmemAlign * kSmemAlign;
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarp), 0);
  const int lane = threadIdx.x % kWarp;
  const auto stage_at = [&](uint32_t stage) { return base + stage * Config::kStageBytes; };
  const auto barrier = [&](int i) { return base + Config::kBarrierOffset + i * kBarrierBytes; };
  const auto loaded = [&](uint32_t stage) { return barrier(stage); };
  const auto empty = [&](uint32_t stage) { return barrier(Config::kStages + stage); };
  const auto cleared = [&](uint32_t stage) { return barrier(2 * Config::kStages + stage); };
  const bool clears = Config::kIsListed || p.lists.listed != nullptr;
  if (warp == 8 && lane == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      init_barrier(loaded(stage), 1);
      init_barrier(empty(stage), 8);
      init_barrier(cleared(stage), 1);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const KeyPlanes planes(p, Config::kIsListed);
  const uint32_t n_tiles = static_cast<uint32_t>(planes.n) * p.group * Queries::tiles(p);
  Queries at;
  const auto find_tile = [&](uint32_t round) {  // there and back, because tiles get shorter
    const uint32_t number = round * gridDim.x + (round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
    if (number >= n_tiles) return false;
    at = Queries(p, planes, number);
    return true;
  };
  const uint32_t rounds = (n_tiles + gridDim.x - 1) / gridDim.x;
  PipelineState<Config::kStages> pipe;
  if (warp >= 8) {
    setmaxnreg_dec<40>();
    if (warp == 8 && lane == 0) {
      for (uint32_t round = 0; round < rounds; ++round) {
        if (!find_tile(round)) continue;
        const int kv_plane = planes.first + at.plane / p.group;
        for (int i = 0; i < at.blocks; ++i, pipe.advance()) {
          const auto block = static_cast<int>(at.block(i) & ~kMixed);
          wait(empty(pipe.stage), pipe.parity ^ 1);
          arrive_expect_tx(loaded(pipe.stage), Config::kStageBytes);
          bulk_load(stage_at(pipe.stage), p.ds + at.image(p, block) * kImageBytes, 2 * kImageBytes, loaded(pipe.stage));
#pragma unroll
          for (int slab = 0; slab < Config::kSlabs; ++slab) {
            tma_load_planes(p.k_map, stage_at(pipe.stage) + 2 * kImageBytes + slab * Config::kKeySlab,
                            loaded(pipe.stage), slab * 64, at.key_line() + block * kKeys, kv_plane);
          }
        }
      }
    } else if (warp == 9 && clears) {
      for (uint32_t round = 0; round < rounds; ++round) {
        if (!find_tile(round)) continue;
        for (int i = 0; i < at.blocks; ++i, pipe.advance()) {
          wait(loaded(pipe.stage), pipe.parity);
          at.template clear_keys<Config::kSlabs>(p, planes, i, stage_at(pipe.stage) + 2 * kImageBytes);
          __syncwarp();
          if (lane == 0) arrive(cleared(pipe.stage));
        }
      }
    }
    return;
  }
  setmaxnreg_inc<232>();
  const int group = warp / 4;
  const uint32_t staging = base + Config::kStagingOffset + warp * Config::kSlabs * kBoxBytes;
  float dq[Config::kHeadDim / 2];
  for (uint32_t round = 0; round < rounds; ++round) {
    if (!find_tile(round)) continue;
    uint32_t before = 0;
    for (int i = 0; i < at.blocks; ++i) {
      wait(clears ? cleared(pipe.stage) : loaded(pipe.stage), pipe.parity);
      const uint64_t a = SlopeLayout::descriptor(stage_at(pipe.stage) + group * kImageBytes);
      const uint64_t b = KeyAlong::descriptor(stage_at(pipe.stage) + 2 * kImageBytes);
      wgmma_fence();
#pragma unroll
      for (int q = 0; q < kKeys / 16; ++q) {
        wgmma<T, false, false, Config::kHeadDim>(dq, a + SlopeLayout::k_offset(q) / 16, b + KeyAlong::k_offset(q) / 16,
                                                 i | q);
      }
      wgmma_commit_group();
      wgmma_wait_group<1>();  // the step before is done, so its stage is free
      if (i > 0 && lane == 0) arrive(empty(before));
      before = pipe.stage;
      pipe.advance();
    }
    wgmma_wait_group<0>();
    pin_registers(dq);
    if (at.blocks > 0 && lane == 0) arrive(empty(before));
    if (at.blocks == 0) {
#pragma unroll
      for (int k = 0; k < Config::kHeadDim / 2; ++k) dq[k] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < Config::kHeadDim / 2; ++k) dq[k] *= p.scale;
    uint32_t packed[Config::kHeadDim / 4];
    pack_sums<T>(dq, packed);
    const int line = at.query_line() + warp * 16, n_left = at.end_line(p) - line;
    const int plane = planes.first * p.group + at.plane;
    if constexpr (Config::kIsListed) {
      if (n_left < 16) {  // a box of 16 rows would reach into the next sequence
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = lane / 4 + half * 8;
          if (row >= n_left) continue;
          const int64_t of_heads = int64_t{line + row} * (p.kv_heads * p.group) + plane;
          store_row_part<Config::kHeadDim>(packed, half, p.dq + of_heads * p.width, p.width);
        }
        continue;
      }
    }
    if (lane == 0) tma_store_wait<0>();
    __syncwarp();
#pragma unroll
    for (int slab = 0; slab < Config::kSlabs; ++slab) stage_box(packed + slab * 16, staging + slab * kBoxBytes);
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
      if (n_left > 0) {
#pragma unroll
        for (int slab = 0; slab < Config::kSlabs; ++slab) {
          tma_store_planes(p.dq_map, staging + slab * kBoxBytes, slab * 64, line, plane);
        }
      }
      tma_store_commit();
    }
  }
  if (lane == 0) tma_store_wait<0>();
}

// --- launch ----------------------------------------------------------------------------------------------------------

constexpr int64_t kSlopeBytes = int64_t{1} << 30;  // of ds at a time, if that is enough

/// Takes parts of the workspace, one after the other.
struct WorkspaceEnd {
  size_t bytes = 0;

  /// The byte offset of the next `count` bytes.
  size_t take(int64_t count) {
    const size_t at = bytes;
    bytes += static_cast<size_t>(round_up(count, 1024));
    return at;
  }
};

/// Byte offsets into the workspace. ds has kSlopeBytes, or more so that there are two items per SM.
struct BackwardLayout {
  int64_t padded_queries, kv_planes = 1;  ///< kv_planes: key heads at a time
  size_t forward, o, lse, lse2, delta, ds, bytes;

  /// has_o, has_lse: a forward pass saved them.
  BackwardLayout(const AttentionParams& s, bool is_masked, bool has_o, bool has_lse) {
    constexpr int64_t kMultiprocessors = 132;  // of the larger H100 and H200 models; only speed depends on it
    const Images images(s.q_seq, s.kv_seq, s.causal);
    const int64_t all = s.batch * s.kv_heads, of_plane = s.group() * images.count() * kImageBytes;
    padded_queries = round_up(s.q_seq, kQueryTile);
    const int64_t most =
        std::min(all, std::max(kSlopeBytes / of_plane, ceil_div(2 * kMultiprocessors, images.key_blocks)));
    // The parts that take the fewest waves together, and of those the largest.
    const auto waves = [&](int64_t planes) { return ceil_div(planes * images.key_blocks, kMultiprocessors); };
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int64_t planes = 1; planes <= most; ++planes) {
      const int64_t total = all / planes * waves(planes) + waves(all % planes);
      if (total <= least) least = total, kv_planes = planes;
    }
    WorkspaceEnd end;
    forward = end.take(static_cast<int64_t>(forward_workspace_bytes(s, is_masked)));
    const bool has_both = has_o && has_lse;  // else the forward pass runs here, and writes both
    o = end.take(has_both ? 0 : s.heads() * s.q_seq * s.width * 2);
    lse = end.take(has_both ? 0 : s.heads() * s.q_seq * 4);
    lse2 = end.take(s.heads() * padded_queries * 4), delta = end.take(s.heads() * padded_queries * 4);
    ds = end.take(kv_planes * of_plane);
    bytes = end.bytes;
  }
};

/// Forward: ForwardCall, or PackedCall.
template <typename T, typename Forward = ForwardCall<T>>
struct BackwardCall {
  Forward forward;  ///< its o, lse and workspace are not used
  const T *grad, *saved_o;
  const float* saved_lse;  ///< of a forward pass; each may be null
  T *dq, *dk, *dv;
  std::byte* workspace;

  bool has_both() const { return saved_o != nullptr && saved_lse != nullptr; }
};

/// Enqueues prepare_rows() for the o and lse that the call has, or that the forward pass run here has written.
template <int head_dim, typename T, typename Forward, typename Rows>
void launch_prepare_rows(const BackwardCall<T, Forward>& call, const Forward& forward, const Rows& queries_of,
                         const BackwardParams<T>& p, float* lse2, float* delta) {
  const int64_t rows = call.forward.shape.q_heads * call.forward.shape.batch * p.padded_queries;
  prepare_rows<T, head_dim><<<static_cast<unsigned>(ceil_div(rows, 8 * kRowsPerWarp)), 256, 0, forward.stream>>>(
      call.saved_o != nullptr ? call.saved_o : forward.o, call.grad, p.width,
      call.saved_lse != nullptr ? call.saved_lse : forward.lse, call.saved_lse != nullptr ? kLog2E : 1.0f, rows,
      queries_of, lse2, delta);
}

/// Sets the parameters that calls with and without packed sequences have in common. of_queries(data) and of_keys(data):
/// the planes of an array of queries or of keys.
template <typename KeyConfig, typename T, typename Forward, typename OfQueries, typename OfKeys>
bool set_backward(BackwardParams<T>& p, const BackwardCall<T, Forward>& call, const OfQueries& of_queries,
                  const OfKeys& of_keys, L2Promotion promotion) {
  const AttentionParams& s = call.forward.shape;
  p.width = s.width, p.group = static_cast<int>(s.group()), p.kv_heads = static_cast<int>(s.kv_heads);
  p.c = s.scale * kLog2E, p.scale = s.scale, p.causal = s.causal;
  p.dq = call.dq, p.dk = call.dk, p.dv = call.dv;
  const auto map = [&](CUtensorMap& to, const Planes& planes, int box) {
    return make_tensor_map<T>(to, planes, box, 1, box == 16 ? L2Promotion::none : promotion);
  };
  return map(p.q_map, of_queries(call.forward.q), KeyConfig::kQueries) &&
         map(p.grad_map, of_queries(call.grad), KeyConfig::kQueries) && map(p.k_map, of_keys(call.forward.k), kKeys) &&
         map(p.v_map, of_keys(call.forward.v), kKeys) && map(p.dk_map, of_keys(call.dk), 16) &&
         map(p.dv_map, of_keys(call.dv), 16) && map(p.dq_map, of_queries(call.dq), 16);
}

/// Enqueues key_gradients and query_gradients for some key planes. `items`, `tiles`: their numbers, or upper bounds.
template <typename KeyConfig, typename T>
cudaError_t launch_gradients(const BackwardParams<T>& p, int64_t items, int64_t tiles, cudaStream_t stream) {
  using QueryConfig = QueryGradientConfig<KeyConfig::kHeadDim, KeyConfig::kIsListed>;
  constexpr auto keys = key_gradients<KeyConfig, T>;
  constexpr auto queries = query_gradients<QueryConfig, T>;
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  int64_t n_sms = 0;
  if (const auto error = count_multiprocessors(n_sms)) return error;
  if (const auto error = cudaFuncSetAttribute(keys, kAttribute, KeyConfig::kDynamicSmemBytes)) return error;
  if (const auto error = cudaFuncSetAttribute(queries, kAttribute, QueryConfig::kDynamicSmemBytes)) return error;
  key_gradients<KeyConfig, T>
      <<<static_cast<unsigned>(std::min(items, n_sms)), KeyConfig::kThreads, KeyConfig::kDynamicSmemBytes, stream>>>(p);
  query_gradients<QueryConfig, T><<<static_cast<unsigned>(std::min(tiles, n_sms)), QueryConfig::kThreads,
                                    QueryConfig::kDynamicSmemBytes, stream>>>(p);
  return cudaGetLastError();
}

template <int head_dim, bool listed = false>
using GradientConfig = KeyGradientConfig<head_dim, head_dim == 128 ? 64 : 128, /*late=*/head_dim == 64, listed>;

/// Whether shapes and arrays suit the kernels.
template <typename T>
bool has_backward(const BackwardCall<T>& call) {
  const AttentionParams& s = call.forward.shape;
  ForwardCall<T> forward = call.forward;
  forward.o = call.dq;  // as large as o
  const auto fits = [&](const T* data, int64_t lines, int64_t planes) {
    return has_tensor_map<T>(Planes{data, s.width, lines, planes});
  };
  const bool fits_o = call.saved_o == nullptr || fits(call.saved_o, s.q_seq, s.heads());
  return has_forward(forward) && fits_o && fits(call.grad, s.q_seq, s.heads()) &&
         fits(call.dk, s.kv_seq, s.batch * s.kv_heads) && fits(call.dv, s.kv_seq, s.batch * s.kv_heads);
}

/// Enqueues. has_backward() must hold.
template <int head_dim, typename T>
cudaError_t launch_backward(const BackwardCall<T>& call) {
  using KeyConfig = GradientConfig<head_dim>;
  const AttentionParams& s = call.forward.shape;
  const BackwardLayout layout(s, call.forward.keep != nullptr, call.saved_o != nullptr, call.saved_lse != nullptr);
  ForwardCall<T> forward = call.forward;
  forward.o = reinterpret_cast<T*>(call.workspace + layout.o);
  forward.lse = reinterpret_cast<float*>(call.workspace + layout.lse), forward.lse_unit = 1.0f;
  forward.workspace = call.workspace + layout.forward;
  if (!call.has_both()) {
    if (const auto error = launch_forward<ManyQueries<head_dim>>(forward)) return error;
  } else if (forward.keep != nullptr) {
    launch_list_keys(forward);
  }

  const int64_t kv_planes = s.batch * s.kv_heads;
  const auto of_queries = [&](const T* data) { return Planes{data, s.width, s.q_seq, s.heads()}; };
  const auto of_keys = [&](const T* data) { return Planes{data, s.width, s.kv_seq, kv_planes}; };
  BackwardParams<T> p{};
  if (!set_backward<KeyConfig>(p, call, of_queries, of_keys, L2Promotion::bytes_256)) return cudaErrorInvalidValue;
  auto* lse2 = reinterpret_cast<float*>(call.workspace + layout.lse2);
  auto* delta = reinterpret_cast<float*>(call.workspace + layout.delta);
  p.lse2 = lse2, p.delta = delta, p.ds = call.workspace + layout.ds;
  if (forward.keep != nullptr) {
    p.lists = KeyListsLayout(s.batch, s.kv_seq).in(forward.workspace + kCounterBytes, s.kv_seq);
  }
  p.images = Images(s.q_seq, s.kv_seq, s.causal);
  p.q_seq = static_cast<int>(s.q_seq), p.kv_seq = static_cast<int>(s.kv_seq);
  p.padded_queries = static_cast<int>(layout.padded_queries);
  launch_prepare_rows<head_dim>(call, forward, RowsOfPlanes{p.q_seq, p.padded_queries}, p, lse2, delta);
  for (int64_t first = 0; first < kv_planes; first += layout.kv_planes) {
    p.first_kv_plane = static_cast<int>(first);
    p.kv_planes = static_cast<int>(std::min(layout.kv_planes, kv_planes - first));
    const int64_t items = int64_t{p.images.key_blocks} * p.kv_planes;
    const int64_t tiles = int64_t{p.images.q_tiles} * p.kv_planes * p.group;
    if (const auto error = launch_gradients<KeyConfig>(p, items, tiles, forward.stream)) return error;
  }
  return cudaSuccess;
}

}  // namespace checkop::kernels::attention::hopper
