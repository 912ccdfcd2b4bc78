// SPDX-License-Identifier: Apache-2.0
// Attention forward of packed sequences on Hopper: enqueues a kernel that lists the tiles, then the kernel of sm90.cuh.
#pragma once

#include <algorithm>

#include "attention/sm90.cuh"

namespace checkop::kernels::attention::hopper {

template <typename T>
struct PackedCall {
  AttentionParams shape;  ///< without q_seq and kv_seq; batch 1
  Sequences sequences;
  const T* q;
  const T *k, *v;        ///< [rows, kv_heads, head_dim]
  int64_t rows;          ///< of k
  const int32_t* table;  ///< [sequences, max_pages], or null: the keys of a sequence are consecutive rows
  int64_t max_pages, page_size;
  T* o;
  float* lse;                      ///< [tokens, q_heads], or null
  float lse_unit = 0x1.62e43p-1f;  ///< as in ForwardCall
  std::byte* workspace;
  cudaStream_t stream;
  int max_blocks = 1 << 30;  ///< as in ForwardCall
};

/// The part of a call that varlen_attention and paged_attention have in common: the inputs q, k, v and cu_seqlens_q at
/// 0 to 3, and the outputs o and lse of the forward pass. `rows`: of k; most_keys: a bound on the keys of a sequence.
template <typename T>
PackedCall<T> packed_call(const checkop_call* call, const AttentionParams& shape, int64_t rows, int64_t most_keys) {
  const checkop_tensor* in = call->inputs;
  PackedCall<T> packed{};
  packed.shape = shape, packed.rows = rows;
  packed.q = static_cast<const T*>(in[0].data), packed.k = static_cast<const T*>(in[1].data);
  packed.v = static_cast<const T*>(in[2].data);
  packed.sequences.q_bounds = static_cast<const int32_t*>(in[3].data);
  packed.sequences.sequences = in[3].shape[0] - 1, packed.sequences.tokens = in[0].shape[0];
  packed.sequences.most_blocks = static_cast<int>(ceil_div(most_keys, kKeys)), packed.sequences.causal = shape.causal;
  packed.o = static_cast<T*>(call->outputs[0].data), packed.lse = static_cast<float*>(call->outputs[1].data);
  packed.workspace = static_cast<std::byte*>(call->workspace);
  packed.stream = static_cast<cudaStream_t>(call->stream);
  return packed;
}

/// Queries of a sequence on average, rounded up: the host does not know the lengths.
inline int64_t mean_queries(const Sequences& s) { return ceil_div(s.tokens, std::max<int64_t>(s.sequences, 1)); }

constexpr int kMostPlanes = 16;  // heads that share a tile of packed sequences

/// Bytes for any configuration, whose tiles have at least 64 / kMostPlanes queries.
inline size_t packed_workspace_bytes(int64_t tokens, int64_t sequences) {
  return kCounterBytes + static_cast<size_t>(tiles_of(tokens, sequences, 64 / kMostPlanes)) * sizeof(ListedTile);
}

/// The workspace of a call with inputs q and cu_seqlens_q at 0 and 3, whose shapes need not have been checked.
inline size_t packed_workspace(const checkop_call* call) {
  if (call->n_inputs < 4 || call->inputs[0].rank != 3 || call->inputs[3].rank != 1) return 0;
  return packed_workspace_bytes(call->inputs[0].shape[0], call->inputs[3].shape[0] - 1);
}

/// Queries, keys, values or o: a plane is a head.
template <typename T>
Planes planes_of(const T* data, int64_t rows, int64_t heads, int64_t width) {
  return {data, width, rows, heads, heads * width, width};
}

/// A line of 128 elements has two boxes side by side; a shorter one has another head's row next to it.
inline L2Promotion packed_promotion(int width) { return width == 128 ? L2Promotion::bytes_256 : L2Promotion::none; }

/// Whether the shapes suit the kernel: heads that TMA can read, 32-bit numbers of rows and tiles.
template <typename T>
bool has_packed(const PackedCall<T>& call) {
  const AttentionParams& s = call.shape;
  const int64_t tokens = call.sequences.tokens;
  constexpr int64_t kMaxTiles = int64_t{1} << 31;
  return has_width(s.width) && s.q_heads * tiles_of(tokens, call.sequences.sequences, 64 / kMostPlanes) < kMaxTiles &&
         call.max_pages * call.page_size < kMaxTiles &&
         has_tensor_map<T>(planes_of(call.q, tokens, s.q_heads, s.width)) &&
         has_tensor_map<T>(planes_of(call.o, tokens, s.q_heads, s.width)) &&
         has_tensor_map<T>(planes_of(call.k, call.rows, s.kv_heads, s.width)) &&
         has_tensor_map<T>(planes_of(call.v, call.rows, s.kv_heads, s.width));
}

/// Enqueues. has_packed() must hold.
template <typename Config, typename T>
cudaError_t launch_packed(const PackedCall<T>& call) {
  const AttentionParams& s = call.shape;
  const Sequences& sequences = call.sequences;
  ForwardParams<T> p{};
  p.o = call.o, p.lse = call.lse, p.width = s.width;
  p.kv_heads = static_cast<int>(s.kv_heads), p.group = static_cast<int>(s.group());
  p.c = s.scale * kLog2E, p.lse_unit = call.lse_unit, p.causal = s.causal;
  p.planes_per_tile = planes_per_tile<Config>(s.group(), mean_queries(sequences), kMostPlanes);
  p.rows_per_plane = Config::kRows / p.planes_per_tile;
  // Where a sequence has one tile, no tiles share keys that L2 should hold.
  const bool shares_keys = mean_queries(sequences) > p.rows_per_plane;
  divide_heads(p, s.kv_heads, shares_keys ? call.rows * s.width : 1);
  p.pages = {call.k, call.v, call.table, call.max_pages, static_cast<int>(call.page_size), kKeys};
  if (Config::kIsPaged) {
    while (p.pages.page_size % p.pages.box != 0) p.pages.box /= 2;
  }
  const auto promotion = packed_promotion(s.width);
  const int box = Config::kSource == Source::pages ? p.pages.box : kKeys;
  const int64_t tokens = sequences.tokens;
  if (!make_tensor_map<T>(p.q_map, planes_of(call.q, tokens, s.q_heads, s.width), p.rows_per_plane, p.planes_per_tile,
                          promotion) ||
      !make_tensor_map<T>(p.k_map, planes_of(call.k, call.rows, s.kv_heads, s.width), box, 1, promotion) ||
      !make_tensor_map<T>(p.v_map, planes_of(call.v, call.rows, s.kv_heads, s.width), box, 1, promotion) ||
      !make_tensor_map<T>(p.o_map, planes_of(call.o, tokens, s.q_heads, s.width), 16, 1, L2Promotion::none)) {
    return cudaErrorInvalidValue;
  }
  const int64_t slots = tiles_of(tokens, sequences.sequences, p.rows_per_plane);
  int64_t blocks = 0;
  if (const auto error = prepare_launch<Config, T>(slots * p.units, call.max_blocks, blocks)) return error;
  auto* counters = reinterpret_cast<unsigned*>(call.workspace);
  p.counter = counters;
  p.list = {reinterpret_cast<ListedTile*>(call.workspace + kCounterBytes), counters + 1};
  list_tiles<<<1, kTileListThreads, 0, call.stream>>>(sequences, p.rows_per_plane, slots, p.list, p.counter);
  attention_forward<Config, T>
      <<<static_cast<unsigned>(blocks), Config::kThreads, Config::kDynamicSmemBytes, call.stream>>>(p);
  return cudaGetLastError();
}

}  // namespace checkop::kernels::attention::hopper
