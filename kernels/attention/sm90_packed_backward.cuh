// SPDX-License-Identifier: Apache-2.0
// Attention backward of packed sequences on Hopper: enqueues a kernel that lists what each block computes, then the
// kernels of sm90_backward.cuh.
//
// The lengths of the sequences are known to the device alone. The host takes as much memory for ds as one sequence of
// all tokens would need for a key head, or 1 GiB if that is more and all key heads can use it; the device divides the
// key heads among launches of which the last ones may find nothing left to do.
#pragma once

#include "attention/sm90_backward.cuh"
#include "attention/sm90_packed.cuh"

namespace checkop::kernels::attention::hopper {

/// One block lists the tiles of 128 queries and the blocks of 128 keys of all sequences and of the rows behind the
/// last, and decides of how many key heads ds is in memory at a time. most_images: how many images of ds there is room
/// for.
static __global__ __launch_bounds__(kTileListThreads) void list_parts(Sequences all, int64_t tokens_k, int group,
                                                                      int kv_heads, int64_t most_images, PartLists to) {
  __shared__ int of_warp[kWarp];
  const auto part_of = [&](int64_t s) {
    SequencePart part{};
    part.first_query = all.q_bounds[s], part.n_queries = all.q_bounds[s + 1] - part.first_query;
    part.first_key = all.k_bounds[s], part.n_keys = all.k_bounds[s + 1] - part.first_key;
    part.first_row = static_cast<int>((part.first_query / kQueryTile + s) * kQueryTile);
    return part;
  };
  int images = 0;
  for (int64_t first = 0; first < all.sequences; first += kTileListThreads) {
    const int64_t s = first + threadIdx.x;
    const int own = s < all.sequences ? static_cast<int>(part_of(s).images(all.causal).count()) : 0;
    int total;
    const int before = block_sum_before(own, of_warp, total);
    if (s < all.sequences) to.first_image[s] = images + before;
    images += total;
    __syncthreads();
  }
  // The part of a slot; `rest` has the tokens behind the last sequence.
  const auto read_part = [&](const SequenceTile& own, const SequencePart& rest, SequencePart& part) {
    if (own.first >= own.n) return false;
    part = rest;
    if (own.sequence < all.sequences) part = part_of(own.sequence), part.first_image = to.first_image[own.sequence];
    part.index = static_cast<int>(own.first / kKeys);
    return true;
  };
  const auto read_queries = [&](int64_t slot, SequencePart& part) {
    const SequenceTile own = tile_of(all.q_bounds, all.sequences, all.tokens, slot, kQueryTile);
    return read_part(own, {static_cast<int>(own.begin), static_cast<int>(own.n)}, part);
  };
  const auto read_keys = [&](int64_t slot, SequencePart& part) {
    const SequenceTile own = tile_of(all.k_bounds, all.sequences, tokens_k, slot, kKeys);
    return read_part(own, {0, 0, static_cast<int>(own.begin), static_cast<int>(own.n)}, part);
  };
  const auto blocks_of = [&](const SequencePart& part) { return part.images(all.causal).blocks(part.index); };
  const auto tiles_of_block = [&](const SequencePart& part) {
    const Images of = part.images(all.causal);
    return max(0, of.q_tiles - of.first_tile(part.index));
  };
  const int64_t slots_q = tiles_of(all.tokens, all.sequences, kQueryTile);
  const int64_t slots_k = tiles_of(tokens_k, all.sequences, kKeys);
  const int most_tiles = static_cast<int>(ceil_div(all.tokens, kQueryTile));
  PartCounts counts{};
  counts.of_queries = list_by_size(slots_q, all.most_blocks, read_queries, blocks_of, to.of_queries);
  counts.of_keys = list_by_size(slots_k, most_tiles, read_keys, tiles_of_block, to.of_keys);
  counts.images = images;
  const int64_t at_once = images == 0 ? kv_heads : max(most_images / (int64_t{images} * group), int64_t{1});
  const int64_t launches = ceil_div(int64_t{kv_heads}, at_once);
  counts.kv_heads = static_cast<int>(ceil_div(int64_t{kv_heads}, launches));
  if (threadIdx.x == 0) *to.counts = counts;
}

/// Byte offsets into the workspace, and what is known of the sequences.
struct PackedBackwardLayout {
  int64_t padded_queries;  ///< of a plane
  int64_t slots_q, slots_k;
  int64_t images;    ///< for which ds has room
  int64_t launches;  ///< at most so many are needed
  bool fits;         ///< whether the kernels can number all these
  size_t forward, o, lse, lse2, delta, counts, first_image, of_queries, of_keys, ds, bytes;

  /// has_o, has_lse: a forward pass saved them.
  PackedBackwardLayout(const AttentionParams& s, int64_t tokens_q, int64_t tokens_k, int64_t sequences, bool has_o,
                       bool has_lse) {
    slots_q = tiles_of(tokens_q, sequences, kQueryTile), slots_k = tiles_of(tokens_k, sequences, kKeys);
    padded_queries = slots_q * kQueryTile;
    const int64_t of_kv_head = s.group() * most_images(tokens_q, tokens_k, sequences, s.causal);
    const int64_t heads = std::clamp<int64_t>(kSlopeBytes / kImageBytes / of_kv_head, 1, s.kv_heads);
    images = heads * of_kv_head, launches = ceil_div(s.kv_heads, heads);
    constexpr int64_t kMost = int64_t{1} << 30;
    fits = of_kv_head < kMost && padded_queries < kMost && slots_q * s.q_heads < kMost && slots_k * s.kv_heads < kMost;
    WorkspaceEnd end;
    const bool has_both = has_o && has_lse;  // else the forward pass runs here, and writes both
    forward = end.take(has_both ? 0 : static_cast<int64_t>(packed_workspace_bytes(tokens_q, sequences)));
    o = end.take(has_both ? 0 : tokens_q * s.q_heads * s.width * 2);
    lse = end.take(has_both ? 0 : tokens_q * s.q_heads * 4);
    lse2 = end.take(s.q_heads * padded_queries * 4), delta = end.take(s.q_heads * padded_queries * 4);
    counts = end.take(sizeof(PartCounts)), first_image = end.take(sequences * 4);
    of_queries = end.take(slots_q * static_cast<int64_t>(sizeof(SequencePart)));
    of_keys = end.take(slots_k * static_cast<int64_t>(sizeof(SequencePart)));
    ds = end.take(images * kImageBytes);
    bytes = end.bytes;
  }

  /// A bound on the images of a plane, whatever the lengths. With x = queries / 128 and y = keys / 128 of a sequence,
  /// its tiles see at most (x + 1)(y + 1) blocks of keys. If causal, tile t sees min(y + 1, t + y - x + 2) at most,
  /// where that is positive, and t < x + 1; so they see x + 2y + 2 + g(x, y) at most, where g(x, y) = xy - x^2 / 2, or
  /// y^2 / 2 if x > y, is the area that is visible. No sum of these products and areas exceeds that of all tokens in
  /// one sequence. An image is half of a tile.
  static int64_t most_images(int64_t tokens_q, int64_t tokens_k, int64_t sequences, bool causal) {
    const double x = static_cast<double>(tokens_q) / kQueryTile, y = static_cast<double>(tokens_k) / kKeys;
    const auto n = static_cast<double>(std::min({sequences, tokens_q, tokens_k}));  // with queries and keys
    const double seen = std::min(x, y), area = causal ? seen * y - seen * seen / 2 : x * y;
    return 2 * static_cast<int64_t>(area + (causal ? x + 2 * y + 2 * n : x + y + n) + 1);
  }
};

template <typename T>
using PackedBackwardCall = BackwardCall<T, PackedCall<T>>;

template <typename T>
PackedBackwardLayout layout_of(const PackedBackwardCall<T>& call) {
  const Sequences& sequences = call.forward.sequences;
  return {call.forward.shape,  sequences.tokens,        call.forward.rows,
          sequences.sequences, call.saved_o != nullptr, call.saved_lse != nullptr};
}

/// Whether shapes and arrays suit the kernels.
template <typename T>
bool has_packed_backward(const PackedBackwardCall<T>& call) {
  const AttentionParams& s = call.forward.shape;
  PackedCall<T> forward = call.forward;
  forward.o = call.dq;  // as large as o
  const auto fits = [&](const T* data, int64_t rows, int64_t heads) {
    return has_tensor_map<T>(planes_of(data, rows, heads, s.width));
  };
  return has_packed(forward) && fits(call.grad, forward.sequences.tokens, s.q_heads) &&
         fits(call.dk, forward.rows, s.kv_heads) && fits(call.dv, forward.rows, s.kv_heads) && layout_of(call).fits;
}

/// Enqueues. has_packed_backward() must hold.
template <int head_dim, typename T>
cudaError_t launch_packed_backward(const PackedBackwardCall<T>& call) {
  using KeyConfig = GradientConfig<head_dim, /*listed=*/true>;
  const AttentionParams& s = call.forward.shape;
  const Sequences& sequences = call.forward.sequences;
  const PackedBackwardLayout layout = layout_of(call);
  const auto at = [&](size_t offset) { return call.workspace + offset; };
  PackedCall<T> forward = call.forward;
  forward.o = reinterpret_cast<T*>(at(layout.o));
  forward.lse = reinterpret_cast<float*>(at(layout.lse)), forward.lse_unit = 1.0f;
  forward.workspace = at(layout.forward);
  if (!call.has_both()) {
    if (const auto error = launch_packed<ManyQueries<head_dim, Source::rows>>(forward)) return error;
  }

  BackwardParams<T> p{};
  const auto of_queries = [&](const T* data) { return planes_of(data, sequences.tokens, s.q_heads, s.width); };
  const auto of_keys = [&](const T* data) { return planes_of(data, forward.rows, s.kv_heads, s.width); };
  if (!set_backward<KeyConfig>(p, call, of_queries, of_keys, packed_promotion(s.width))) return cudaErrorInvalidValue;
  auto *lse2 = reinterpret_cast<float*>(at(layout.lse2)), *delta = reinterpret_cast<float*>(at(layout.delta));
  p.lse2 = lse2, p.delta = delta, p.ds = at(layout.ds);
  p.padded_queries = static_cast<int>(layout.padded_queries);
  p.parts = {reinterpret_cast<SequencePart*>(at(layout.of_queries)),
             reinterpret_cast<SequencePart*>(at(layout.of_keys)), reinterpret_cast<int*>(at(layout.first_image)),
             reinterpret_cast<PartCounts*>(at(layout.counts))};
  list_parts<<<1, kTileListThreads, 0, forward.stream>>>(sequences, forward.rows, p.group, p.kv_heads, layout.images,
                                                         p.parts);
  const RowsOfSequences rows{sequences.q_bounds, sequences.sequences, sequences.tokens, layout.padded_queries,
                             static_cast<int>(s.q_heads)};
  launch_prepare_rows<head_dim>(call, forward, rows, p, lse2, delta);
  for (p.launch = 0; p.launch < layout.launches; ++p.launch) {
    const int64_t items = layout.slots_k * s.kv_heads, tiles = layout.slots_q * s.q_heads;
    if (const auto error = launch_gradients<KeyConfig>(p, items, tiles, forward.stream)) return error;
  }
  return cudaSuccess;
}

}  // namespace checkop::kernels::attention::hopper
