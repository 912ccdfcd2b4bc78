// SPDX-License-Identifier: Apache-2.0
// A key padding mask as the kernels on Hopper read it: for every batch entry the blocks of 128 keys with a kept key,
// and a bit per key.
#pragma once

#include "attention/sm90_softmax.cuh"

namespace checkop::kernels::attention::hopper {

constexpr uint32_t kMixed = 1u << 31;  // flag of a listed block: some of its keys are not kept

/// Of all batch entries, in workspace; `listed` is null without a mask.
struct KeyLists {
  int n_blocks;        ///< blocks of a batch entry
  uint32_t* listed;    ///< [batch, n_blocks] ascending blocks with a kept key, some with kMixed
  int* listed_before;  ///< [batch, n_blocks + 1] number of listed blocks below this one
  uint4* bits;         ///< [batch, n_blocks] bit i % 32 of word i / 32: key i of the block is kept
  int* first_kept;     ///< [batch] key, or kv_seq
};

/// Byte offsets from the start of the lists.
struct KeyListsLayout {
  size_t bits, listed, listed_before, first_kept, bytes;

  KeyListsLayout(int64_t batch, int64_t kv_seq) {
    const auto n_batch = static_cast<size_t>(batch), n_blocks = static_cast<size_t>(ceil_div(kv_seq, kKeys));
    bits = 0, listed = bits + n_batch * n_blocks * sizeof(uint4);
    listed_before = listed + n_batch * n_blocks * sizeof(uint32_t);
    first_kept = listed_before + n_batch * (n_blocks + 1) * sizeof(int);
    bytes = first_kept + n_batch * sizeof(int);
  }
  KeyLists in(std::byte* memory, int64_t kv_seq) const {
    return {static_cast<int>(ceil_div(kv_seq, kKeys)), reinterpret_cast<uint32_t*>(memory + listed),
            reinterpret_cast<int*>(memory + listed_before), reinterpret_cast<uint4*>(memory + bits),
            reinterpret_cast<int*>(memory + first_kept)};
  }
};

constexpr int kListThreads = 1024;  // a batch entry is one block's: many loads at once hide the memory's latency

/// Fills the lists of batch entry blockIdx.x.
static __global__ __launch_bounds__(kListThreads) void list_keys(const uint8_t* __restrict__ keep, int64_t kv_seq,
                                                                 KeyLists lists) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, n_blocks = lists.n_blocks;
  const int64_t batch = blockIdx.x;
  keep += batch * kv_seq;
  uint4* bits = lists.bits + batch * n_blocks;
  for (int block = warp; block < n_blocks; block += kListThreads / kWarp) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t key = int64_t{block} * kKeys + i * kWarp + lane;
      word[i] = __ballot_sync(kAllLanes, key < kv_seq && keep[key] != 0);
    }
    if (lane == 0) bits[block] = {word[0], word[1], word[2], word[3]};
  }
  __syncthreads();
  if (warp != 0) return;
  uint32_t* listed = lists.listed + batch * n_blocks;
  int* listed_before = lists.listed_before + batch * (n_blocks + 1);
  int count = 0, first_kept = static_cast<int>(kv_seq);
  for (int first = 0; first < n_blocks; first += kWarp) {
    const int block = first + lane;
    const uint4 word = block < n_blocks ? bits[block] : uint4{0, 0, 0, 0};
    const bool any = (word.x | word.y | word.z | word.w) != 0;
    const bool all = (word.x & word.y & word.z & word.w) == ~0u;
    const uint32_t found = __ballot_sync(kAllLanes, any);
    const int before = count + __popc(found & ((1u << lane) - 1));
    if (block < n_blocks) listed_before[block] = before;
    if (any) listed[before] = static_cast<uint32_t>(block) | (all ? 0 : kMixed);
    if (any && before == 0) {
      const uint32_t words[4] = {word.x, word.y, word.z, word.w};
      int at = 0;
      while (words[at] == 0) ++at;
      first_kept = block * kKeys + at * kWarp + __ffs(static_cast<int>(words[at])) - 1;
    }
    count += __popc(found);
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    first_kept = min(first_kept, __shfl_xor_sync(kAllLanes, first_kept, offset));
  }
  if (lane == 0) listed_before[n_blocks] = count, lists.first_kept[batch] = first_kept;
}

}  // namespace checkop::kernels::attention::hopper
