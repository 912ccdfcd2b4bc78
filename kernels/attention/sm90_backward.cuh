// SPDX-License-Identifier: Apache-2.0
// Attention backward on Hopper, without atomic additions: every gradient is one chain in a fixed order.
//   dv[j] = sum_i round(p[i,j]) do[i]        dk[j] = scale sum_i round(ds[i,j]) q[i]      over the heads of the group
//   dq[i] = scale sum_j round(ds[i,j]) k[j]  ds = p (do v^T - delta),  delta[i] = sum_d do[i,d] o[i,d]
//   p[i,j] = 2^(s[i,j] c - lse2[i]),  lse2 = log2 of the row's sum of 2^(s c); s and c as in the forward pass
// The forward pass of this folder runs first, unless o and lse of one are given. Then three kernels. prepare_rows: lse2
// and delta. key_gradients: a block owns 128 keys of a key head, computes dk and dv
// over all their queries, and stores round(ds). query_gradients: a block owns 128 queries, and multiplies the stored ds
// by k.
//
// Bits of dq: a chain over blocks of 16 keys, upward; hidden keys add zeros. Bits of dk and dv: a chain over the heads
// of the group and blocks of 16 queries, upward; hidden queries add zeros.
//
// ds in memory: for a plane (a head of a batch entry), 128 keys and 64 queries 16 KiB, the image of the operand in
// shared memory: a line of 128 bytes per key, swizzled. Only those exist that a query sees: at multiples of 128
// queries.
#pragma once

#include <climits>

#include "attention/sm90.cuh"

namespace checkop::kernels::attention::hopper {

constexpr int kImageQueries = 64;  // of an image of ds
constexpr int kImageBytes = kKeys * kImageQueries * 2;
constexpr int kBoxBytes = 16 * kImageQueries * 2;  // of it, a warp's
constexpr int kQueryTile = 128;                    // of query_gradients

/// Which images of ds exist, in a plane. Tiles of 128 queries, blocks of 128 keys.
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
};

template <typename T>
struct BackwardParams {
  CUtensorMap q_map, k_map, v_map, grad_map;  ///< boxes of a step's queries or 128 keys
  CUtensorMap dk_map, dv_map, dq_map;         ///< boxes of 16 rows
  const float* __restrict__ lse2;             ///< [planes, padded_queries], +inf for rows without keys or past the end
  const float* __restrict__ delta;            ///< likewise; 0 there
  std::byte* __restrict__ ds;                 ///< [planes of this part, images.count()] images
  KeyLists lists;
  Images images;
  int group, kv_heads, q_seq, kv_seq, padded_queries;
  int first_kv_plane, kv_planes;  ///< of this part
  float c, scale;
  bool causal;
};

// --- rows
// ------------------------------------------------------------------------------------------------------------

constexpr int kRowsPerWarp = 4;  // loads of several rows in flight

/// lse: [planes, q_seq], -inf for rows without keys; times `lse_unit` a logarithm of base 2. rows: planes *
/// padded_queries, a multiple of kRowsPerWarp.
template <typename T, int head_dim>
__global__ __launch_bounds__(256) void prepare_rows(const T* __restrict__ o, const T* __restrict__ grad,
                                                    const float* __restrict__ lse, float lse_unit, int64_t rows,
                                                    int q_seq, int padded_queries, float* __restrict__ lse2,
                                                    float* __restrict__ delta) {
  constexpr int kPerLane = head_dim / kWarp;
  struct alignas(kPerLane * sizeof(T)) Elements {
    T at[kPerLane];
  };
  const int lane = threadIdx.x % kWarp;
  const int64_t first_row = (int64_t{blockIdx.x} * 8 + threadIdx.x / kWarp) * kRowsPerWarp;
  if (first_row >= rows) return;
  const int64_t plane = first_row / padded_queries;
  const int first_query = static_cast<int>(first_row % padded_queries);
  Elements x[kRowsPerWarp], y[kRowsPerWarp];
  float log_sum[kRowsPerWarp];
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    const int64_t from = plane * q_seq + min(first_query + i, q_seq - 1);
    x[i] = reinterpret_cast<const Elements*>(o + from * head_dim)[lane];
    y[i] = reinterpret_cast<const Elements*>(grad + from * head_dim)[lane];
    log_sum[i] = lse[from];
  }
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) sum = fmaf(to_float(x[i].at[j]), to_float(y[i].at[j]), sum);
    sum = warp_sum(sum);
    const bool has_keys = first_query + i < q_seq && log_sum[i] != -INFINITY;
    if (lane == 0) {
      lse2[first_row + i] = has_keys ? log_sum[i] * lse_unit : INFINITY;
      delta[first_row + i] = has_keys ? sum : 0.0f;
    }
  }
}

// --- dk, dv, ds
// ------------------------------------------------------------------------------------------------------

/// queries: of a step. late: the exponentials of a step begin with it, not at the end of the step before, which leaves
/// registers for more queries.
template <int head_dim, int queries, bool late>
struct KeyGradientConfig {
  static constexpr int kQueries = queries, kImages = queries / kImageQueries;
  static constexpr bool kLate = late;
  static constexpr int kHeadDim = head_dim, kStages = 3, kConsumers = 2, kThreads = 3 * kWarpgroup;
  static constexpr int kSlabs = head_dim / 64, kKeySlab = kKeys * 128, kQuerySlab = queries * 128;
  static constexpr int kKeyBytes = kSlabs * kKeySlab, kQueryBytes = kSlabs * kQuerySlab;
  static constexpr int kRowBytes = queries * 4;  // of lse2, of delta
  static constexpr int kQueryOffset = 2 * kKeyBytes, kGradOffset = kQueryOffset + kStages * kQueryBytes;
  static constexpr int kStagingOffset = kGradOffset + kStages * kQueryBytes;
  static constexpr int kRowOffset = kStagingOffset + kConsumers * 4 * 2 * kImages * kBoxBytes;
  static constexpr int kBarrierOffset = kRowOffset + kStages * 2 * kRowBytes;
  static constexpr int kDynamicSmemBytes = kBarrierOffset + (2 + 4 * kStages) * kBarrierBytes + kSmemAlign;
  static_assert(kDynamicSmemBytes <= kMaxSmemBytes);
};

/// Work of a block: 128 keys of a key head. Those with the most queries come first.
struct KeyItem {
  int kv_plane, block, first_step, steps;  ///< steps of a head
  bool kept;                               ///< whether any of the keys is

  template <typename T>
  __device__ KeyItem(const BackwardParams<T>& p, uint32_t index, int queries) {
    block = static_cast<int>(index / p.kv_planes);
    kv_plane = p.first_kv_plane + static_cast<int>(index % p.kv_planes);
    first_step = p.images.first_tile(block) * (kQueryTile / queries);
    steps = p.images.q_tiles * (kQueryTile / queries) - first_step;
    kept = true;
    if (p.lists.listed != nullptr) {
      const int* before = p.lists.listed_before + kv_plane / p.kv_heads * (p.lists.n_blocks + 1) + block;
      kept = before[0] != before[1];
    }
  }
};

template <typename Config, typename T>
struct KeyGradients {
  const BackwardParams<T>& p;
  uint32_t base;

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
  __device__ uint32_t n_items() const { return static_cast<uint32_t>(p.images.key_blocks) * p.kv_planes; }

  /// The block's item of a turn. Items get smaller with their index where keys are causal, so turns alternate their
  /// direction: the block with the largest item of one turn has the smallest of the next.
  __device__ uint32_t item(uint32_t turn) const {
    return turn * gridDim.x + (turn % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  }

  /// One thread loads.
  __device__ void produce() const {
    PipelineState<1> items;
    PipelineState<Config::kStages> pipe;
    for (uint32_t turn = 0; item(turn) < n_items(); ++turn, items.advance()) {
      wait(keys_empty(), items.parity ^ 1);
      const KeyItem at(p, item(turn), Config::kQueries);
      if (!at.kept) {
        arrive(keys_full());
        continue;
      }
      arrive_expect_tx(keys_full(), 2 * Config::kKeyBytes);
#pragma unroll
      for (int slab = 0; slab < Config::kSlabs; ++slab) {
        tma_load_planes(p.k_map, key() + slab * Config::kKeySlab, keys_full(), slab * 64, at.block * kKeys,
                        at.kv_plane);
        tma_load_planes(p.v_map, value() + slab * Config::kKeySlab, keys_full(), slab * 64, at.block * kKeys,
                        at.kv_plane);
      }
      for (int head = 0; head < p.group; ++head) {
        const int plane = at.kv_plane * p.group + head;
        for (int step = at.first_step; step < at.first_step + at.steps; ++step, pipe.advance()) {
          const int first = step * Config::kQueries;
          const int64_t first_row = int64_t{plane} * p.padded_queries + first;
          const uint32_t q_full = query_full(pipe.stage), g_full = grad_full(pipe.stage);
          wait(query_empty(pipe.stage), pipe.parity ^ 1);
          arrive_expect_tx(q_full, Config::kQueryBytes + Config::kRowBytes);
#pragma unroll
          for (int slab = 0; slab < Config::kSlabs; ++slab) {
            tma_load_planes(p.q_map, query(pipe.stage) + slab * Config::kQuerySlab, q_full, slab * 64, first, plane);
          }
          bulk_load(row(pipe.stage), p.lse2 + first_row, Config::kRowBytes, q_full);
          wait(grad_empty(pipe.stage), pipe.parity ^ 1);
          arrive_expect_tx(g_full, Config::kQueryBytes + Config::kRowBytes);
#pragma unroll
          for (int slab = 0; slab < Config::kSlabs; ++slab) {
            tma_load_planes(p.grad_map, grad(pipe.stage) + slab * Config::kQuerySlab, g_full, slab * 64, first, plane);
          }
          bulk_load(row(pipe.stage) + Config::kRowBytes, p.delta + first_row, Config::kRowBytes, g_full);
        }
      }
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

    for (uint32_t turn = 0; item(turn) < n_items(); ++turn, items.advance()) {
      wait(keys_full(), items.parity);
      const KeyItem at(p, item(turn), Config::kQueries);
      const int n_steps = at.kept ? at.steps * p.group : 0;
      float dk[kHeadDim / 2], dv[kHeadDim / 2];
      // Key of this thread's rows, less the causal offset: visible to queries from this one on. Beyond all queries if
      // it is not kept.
      int visible_from[2];
      bool all_kept = true;
      {
        const int64_t batch = at.kv_plane / p.kv_heads;
        uint4 bits{~0u, ~0u, ~0u, ~0u};
        if (p.lists.listed != nullptr) bits = p.lists.bits[batch * p.lists.n_blocks + at.block];
        all_kept = (bits.x & bits.y & bits.z & bits.w) == ~0u && (at.block + 1) * kKeys <= p.kv_seq;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = warp * 16 + lane / 4 + half * 8, key = at.block * kKeys + row;
          const uint32_t word = row < 32 ? bits.x : row < 64 ? bits.y : row < 96 ? bits.z : bits.w;
          const bool kept = key < p.kv_seq && (word >> row % 32 & 1) != 0;
          visible_from[half] = !kept ? INT_MAX : p.causal ? key - (p.kv_seq - p.q_seq) : INT_MIN;
        }
      }
      int step = at.first_step;
      const int64_t first_plane = int64_t{at.kv_plane - p.first_kv_plane} * p.group;
      const int64_t first_image = first_plane * p.images.count() + p.images.index(at.block, 0);
      std::byte* images = p.ds + first_image * kImageBytes + warp * kBoxBytes;  // of this head, this warp's boxes
      // Whether all keys are kept, and visible to all queries from this one on.
      const auto is_whole = [&](int first) {
        return all_kept && (!p.causal || first + (p.kv_seq - p.q_seq) >= (at.block + 1) * kKeys - 1);
      };
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
        if (!is_whole(first)) hide(score, first);
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
        if (!is_whole(first)) hide(derivative, first);
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
      // `score` holds p of step i (late: the scores), and in the end that of the next; after the last that of the last
      // again, which nobody needs: with a path of its own, the compiler would copy accumulators of products in flight.
      const auto run_step = [&](int i) {
        const int first = step * kQueries;
        std::byte* to = images + int64_t{step} * (Config::kImages * kImageBytes);
        if (++step == at.first_step + at.steps) step = at.first_step, images += p.images.count() * kImageBytes;
        PipelineState<Config::kStages> next = pipe;
        next.advance();
        const bool is_last = i + 1 == n_steps;
        const uint32_t next_stage = is_last ? pipe.stage : next.stage;
        float derivative[kPairs];
        uint32_t weights[kPairs / 2], slopes[kPairs / 2];
        if constexpr (!Config::kLate) pack_sums<T>(score, weights);
        wait(grad_full(pipe.stage), pipe.parity);
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
          if (!is_last) wait(query_full(next.stage), next.parity);
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
          __syncwarp();  // all lanes have read their values of the rows
          if (lane == 0) arrive(grad_empty(pipe.stage));
        } else {
          begin_sum(dv, weights, grad(pipe.stage), i);
          wgmma_wait_group<1>();
          pin_registers(derivative);
          derive(derivative, first);
          pack_sums<T>(derivative, slopes);
          if (!is_last) wait(query_full(next.stage), next.parity);
          wgmma_fence();
          begin_scores(next_stage);
          begin_sum(dk, slopes, query(pipe.stage), i);
          store_slopes(slopes, to);
          wgmma_wait_group<1>();
          pin_registers(score);
          pin_registers(dv);
          __syncwarp();  // all lanes have read their values of the rows
          if (lane == 0) arrive(grad_empty(pipe.stage));
          exponentiate_step(next_stage, step * kQueries);
          pin_registers(score);
          wgmma_wait_group<0>();
        }
        pin_registers(dk);
        __syncwarp();
        if (lane == 0) arrive(query_empty(pipe.stage));
        pipe = next;
      };
      if (n_steps > 0) {
        wait(query_full(pipe.stage), pipe.parity);
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
      // Through the memory of k and v, of which every warpgroup reads its own rows.
      named_barrier_sync(1 + group, kWarpgroup);
      uint32_t packed[kHeadDim / 4];
#pragma unroll
      for (int k = 0; k < kHeadDim / 2; ++k) dk[k] *= p.scale;
      pack_sums<T>(dk, packed);
#pragma unroll
      for (int slab = 0; slab < Config::kSlabs; ++slab) {
        stage_box(packed + slab * 16, key() + slab * Config::kKeySlab + warp * 16 * 128);
      }
      pack_sums<T>(dv, packed);
#pragma unroll
      for (int slab = 0; slab < Config::kSlabs; ++slab) {
        stage_box(packed + slab * 16, value() + slab * Config::kKeySlab + warp * 16 * 128);
      }
      fence_proxy_async();
      __syncwarp();
      if (lane == 0) {
        const int line = at.block * kKeys + warp * 16;
        if (line < p.kv_seq) {
#pragma unroll
          for (int slab = 0; slab < Config::kSlabs; ++slab) {
            const uint32_t offset = slab * Config::kKeySlab + warp * 16 * 128;
            tma_store_planes(p.dk_map, key() + offset, slab * 64, line, at.kv_plane);
            tma_store_planes(p.dv_map, value() + offset, slab * 64, line, at.kv_plane);
          }
        }
        tma_store_commit();
        tma_store_wait<0>();
        arrive(keys_empty());
      }
    }
    if (lane == 0) tma_store_wait<0>();
  }
};

template <typename Config, typename T>
__global__ __launch_bounds__(Config::kThreads, 1) void key_gradients(const __grid_constant__ BackwardParams<T> p) {
  extern __shared__ uint8_t dynamic[];
  const KeyGradients<Config, T> work{p, (shared_address(dynamic) + kSmemAlign - 1) / kSmemAlign * kSmemAlign};
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarp), 0);
  const int lane = threadIdx.x % kWarp;
  if (warp == 8 && lane == 0) {
    init_barrier(work.keys_full(), 1);
    init_barrier(work.keys_empty(), 8);
    for (int stage = 0; stage < Config::kStages; ++stage) {
      init_barrier(work.query_full(stage), 1);
      init_barrier(work.query_empty(stage), 8);
      init_barrier(work.grad_full(stage), 1);
      init_barrier(work.grad_empty(stage), 8);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (warp >= 8) {
    setmaxnreg_dec<24>();
    if (warp == 8 && lane == 0) work.produce();
  } else {
    setmaxnreg_inc<240>();
    work.consume();
  }
}

// --- dq
// --------------------------------------------------------------------------------------------------------------

template <int head_dim>
struct QueryGradientConfig {
  static constexpr int kHeadDim = head_dim, kStages = 3, kThreads = 3 * kWarpgroup;
  static constexpr int kSlabs = head_dim / 64, kKeySlab = kKeys * 128, kKeyBytes = kSlabs * kKeySlab;
  static constexpr int kStageBytes = 2 * kImageBytes + kKeyBytes;
  static constexpr int kStagingOffset = kStages * kStageBytes;
  static constexpr int kBarrierOffset = kStagingOffset + 8 * kSlabs * kBoxBytes;
  static constexpr int kDynamicSmemBytes = kBarrierOffset + 3 * kStages * kBarrierBytes + kSmemAlign;
  static_assert(kDynamicSmemBytes <= kMaxSmemBytes);
};

template <typename Config, typename T>
__global__ __launch_bounds__(Config::kThreads, 1) void query_gradients(const __grid_constant__ BackwardParams<T> p) {
  using SlopeLayout = SmemLayout<false, 64, kKeys>;             // ds of 64 queries
  using KeyAlong = SmemLayout<false, Config::kHeadDim, kKeys>;  // k summed over
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
  const bool is_masked = p.lists.listed != nullptr;
  if (warp == 8 && lane == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      init_barrier(loaded(stage), 1);
      init_barrier(empty(stage), 8);
      init_barrier(cleared(stage), 1);
    }
    fence_barrier_init();
  }
  __syncthreads();
  // Tiles with the most keys first; heads of a group together. There and back, because tiles get shorter.
  const uint32_t planes = static_cast<uint32_t>(p.kv_planes) * p.group, n_tiles = planes * p.images.q_tiles;
  int plane, q_tile, n_blocks;
  const uint32_t* listed = nullptr;
  const auto find_tile = [&](uint32_t round) {
    const uint32_t index = round * gridDim.x + (round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
    if (index >= n_tiles) return false;
    const auto tile = static_cast<int>(index / planes);
    q_tile = p.causal ? p.images.q_tiles - 1 - tile : tile;
    plane = static_cast<int>(index % planes);
    n_blocks = max(0, min(p.images.key_blocks, q_tile + p.images.shift + 1));
    if (is_masked) {
      const int64_t batch = (p.first_kv_plane + plane / p.group) / p.kv_heads;
      listed = p.lists.listed + batch * p.lists.n_blocks;
      n_blocks = p.lists.listed_before[batch * (p.lists.n_blocks + 1) + n_blocks];
    }
    return true;
  };
  const uint32_t rounds = (n_tiles + gridDim.x - 1) / gridDim.x;
  PipelineState<Config::kStages> pipe;
  if (warp >= 8) {
    setmaxnreg_dec<40>();
    if (warp == 8 && lane == 0) {
      for (uint32_t round = 0; round < rounds; ++round) {
        if (!find_tile(round)) continue;
        for (int i = 0; i < n_blocks; ++i, pipe.advance()) {
          const int block = is_masked ? static_cast<int>(listed[i] & ~kMixed) : i;
          wait(empty(pipe.stage), pipe.parity ^ 1);
          arrive_expect_tx(loaded(pipe.stage), Config::kStageBytes);
          const int64_t image = plane * p.images.count() + p.images.index(block, 2 * q_tile);
          bulk_load(stage_at(pipe.stage), p.ds + image * kImageBytes, 2 * kImageBytes, loaded(pipe.stage));
#pragma unroll
          for (int slab = 0; slab < Config::kSlabs; ++slab) {
            tma_load_planes(p.k_map, stage_at(pipe.stage) + 2 * kImageBytes + slab * Config::kKeySlab,
                            loaded(pipe.stage), slab * 64, block * kKeys, p.first_kv_plane + plane / p.group);
          }
        }
      }
    } else if (warp == 9 && is_masked) {
      for (uint32_t round = 0; round < rounds; ++round) {
        if (!find_tile(round)) continue;
        for (int i = 0; i < n_blocks; ++i, pipe.advance()) {
          wait(loaded(pipe.stage), pipe.parity);
          if ((listed[i] & kMixed) != 0) {
            const int64_t batch = (p.first_kv_plane + plane / p.group) / p.kv_heads;
            clear_hidden_rows<Config::kSlabs>(stage_at(pipe.stage) + 2 * kImageBytes,
                                              p.lists.bits[batch * p.lists.n_blocks + (listed[i] & ~kMixed)]);
          }
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
    for (int i = 0; i < n_blocks; ++i) {
      wait(is_masked ? cleared(pipe.stage) : loaded(pipe.stage), pipe.parity);
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
    if (n_blocks > 0 && lane == 0) arrive(empty(before));
    if (n_blocks == 0) {
#pragma unroll
      for (int k = 0; k < Config::kHeadDim / 2; ++k) dq[k] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < Config::kHeadDim / 2; ++k) dq[k] *= p.scale;
    uint32_t packed[Config::kHeadDim / 4];
    pack_sums<T>(dq, packed);
    if (lane == 0) tma_store_wait<0>();
    __syncwarp();
#pragma unroll
    for (int slab = 0; slab < Config::kSlabs; ++slab) stage_box(packed + slab * 16, staging + slab * kBoxBytes);
    fence_proxy_async();
    __syncwarp();
    const int line = q_tile * kQueryTile + warp * 16;
    if (lane == 0) {
      if (line < p.q_seq) {
#pragma unroll
        for (int slab = 0; slab < Config::kSlabs; ++slab) {
          tma_store_planes(p.dq_map, staging + slab * kBoxBytes, slab * 64, line, p.first_kv_plane * p.group + plane);
        }
      }
      tma_store_commit();
    }
  }
  if (lane == 0) tma_store_wait<0>();
}

// --- launch
// ----------------------------------------------------------------------------------------------------------

/// Byte offsets into the workspace.
struct BackwardLayout {
  static constexpr int64_t kSlopeBytes = int64_t{1} << 30;  // of ds at a time, if that is enough for two items per SM
  int64_t padded_queries, kv_planes = 1;                    ///< kv_planes: key heads at a time
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
    size_t end = 0;
    const auto take = [&](int64_t count) {
      const size_t at = end;
      end += static_cast<size_t>(round_up(count, 1024));
      return at;
    };
    forward = take(static_cast<int64_t>(forward_workspace_bytes(s, is_masked)));
    const bool has_both = has_o && has_lse;  // else the forward pass runs here, and writes both
    o = take(has_both ? 0 : s.heads() * s.q_seq * s.width * 2);
    lse = take(has_both ? 0 : s.heads() * s.q_seq * 4);
    lse2 = take(s.heads() * padded_queries * 4), delta = take(s.heads() * padded_queries * 4);
    ds = take(kv_planes * of_plane);
    bytes = end;
  }
};

template <typename T>
struct BackwardCall {
  ForwardCall<T> forward;  ///< its o, lse and workspace are not used
  const T *grad, *saved_o;
  const float* saved_lse;  ///< of a forward pass; each may be null
  T *dq, *dk, *dv;
  std::byte* workspace;  ///< BackwardLayout::bytes
};

template <typename KeyConfig, typename T>
cudaError_t launch_backward_with(const BackwardCall<T>& call) {
  constexpr int head_dim = KeyConfig::kHeadDim;
  using QueryConfig = QueryGradientConfig<head_dim>;
  const AttentionParams& s = call.forward.shape;
  const bool has_both = call.saved_o != nullptr && call.saved_lse != nullptr;
  const BackwardLayout layout(s, call.forward.keep != nullptr, call.saved_o != nullptr, call.saved_lse != nullptr);
  cudaStream_t stream = call.forward.stream;
  ForwardCall<T> forward = call.forward;
  forward.o = reinterpret_cast<T*>(call.workspace + layout.o);
  forward.lse = reinterpret_cast<float*>(call.workspace + layout.lse), forward.lse_unit = 1.0f;
  forward.workspace = call.workspace + layout.forward;
  if (!has_both) {
    if (const auto error = launch_forward<ManyQueries<head_dim>>(forward)) return error;
  } else if (forward.keep != nullptr) {
    launch_list_keys(forward);
  }
  const T* const o = call.saved_o != nullptr ? call.saved_o : forward.o;
  const float* const lse = call.saved_lse != nullptr ? call.saved_lse : forward.lse;

  BackwardParams<T> p{};
  auto* lse2 = reinterpret_cast<float*>(call.workspace + layout.lse2);
  auto* delta = reinterpret_cast<float*>(call.workspace + layout.delta);
  const int64_t rows = s.heads() * layout.padded_queries;
  prepare_rows<T, head_dim><<<static_cast<unsigned>(ceil_div(rows, 8 * kRowsPerWarp)), 256, 0, stream>>>(
      o, call.grad, lse, call.saved_lse != nullptr ? kLog2E : 1.0f, rows, static_cast<int>(s.q_seq),
      static_cast<int>(layout.padded_queries), lse2, delta);
  p.lse2 = lse2, p.delta = delta, p.ds = call.workspace + layout.ds;
  if (call.forward.keep != nullptr) {
    p.lists = KeyListsLayout(s.batch, s.kv_seq).in(forward.workspace + kCounterBytes, s.kv_seq);
  }
  p.images = Images(s.q_seq, s.kv_seq, s.causal);
  p.group = static_cast<int>(s.group()), p.kv_heads = static_cast<int>(s.kv_heads);
  p.q_seq = static_cast<int>(s.q_seq), p.kv_seq = static_cast<int>(s.kv_seq);
  p.padded_queries = static_cast<int>(layout.padded_queries);
  p.c = s.scale * kLog2E, p.scale = s.scale, p.causal = s.causal;
  const int64_t kv_planes = s.batch * s.kv_heads;
  const auto map = [&](CUtensorMap& to, const T* data, int64_t lines, int64_t planes, int box) {
    return make_tensor_map<T>(to, Planes{data, s.width, lines, planes}, box, 1,
                              box == 16 ? L2Promotion::none : L2Promotion::bytes_256);
  };
  if (!map(p.q_map, forward.q, s.q_seq, s.heads(), KeyConfig::kQueries) ||
      !map(p.grad_map, call.grad, s.q_seq, s.heads(), KeyConfig::kQueries) ||
      !map(p.k_map, forward.k, s.kv_seq, kv_planes, kKeys) || !map(p.v_map, forward.v, s.kv_seq, kv_planes, kKeys) ||
      !map(p.dk_map, call.dk, s.kv_seq, kv_planes, 16) || !map(p.dv_map, call.dv, s.kv_seq, kv_planes, 16) ||
      !map(p.dq_map, call.dq, s.q_seq, s.heads(), 16)) {
    return cudaErrorInvalidValue;
  }
  int64_t n_sms = 0;
  if (const auto error = count_multiprocessors(n_sms)) return error;
  constexpr auto keys = key_gradients<KeyConfig, T>;
  constexpr auto queries = query_gradients<QueryConfig, T>;
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  if (const auto error = cudaFuncSetAttribute(keys, kAttribute, KeyConfig::kDynamicSmemBytes)) return error;
  if (const auto error = cudaFuncSetAttribute(queries, kAttribute, QueryConfig::kDynamicSmemBytes)) return error;
  for (int64_t first = 0; first < kv_planes; first += layout.kv_planes) {
    p.first_kv_plane = static_cast<int>(first);
    p.kv_planes = static_cast<int>(std::min(layout.kv_planes, kv_planes - first));
    const auto key_blocks = std::min<int64_t>(n_sms, int64_t{p.images.key_blocks} * p.kv_planes);
    const auto query_blocks = std::min<int64_t>(n_sms, int64_t{p.images.q_tiles} * p.kv_planes * p.group);
    key_gradients<KeyConfig, T>
        <<<static_cast<unsigned>(key_blocks), KeyConfig::kThreads, KeyConfig::kDynamicSmemBytes, stream>>>(p);
    query_gradients<QueryConfig, T>
        <<<static_cast<unsigned>(query_blocks), QueryConfig::kThreads, QueryConfig::kDynamicSmemBytes, stream>>>(p);
  }
  return cudaGetLastError();
}

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
template <typename T>
cudaError_t launch_backward(const BackwardCall<T>& call) {
  return call.forward.shape.width == 128 ? launch_backward_with<KeyGradientConfig<128, 64, false>>(call)
                                         : launch_backward_with<KeyGradientConfig<64, 128, true>>(call);
}

}  // namespace checkop::kernels::attention::hopper
