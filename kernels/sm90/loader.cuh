// SPDX-License-Identifier: Apache-2.0
// Loads the operands of a tile into shared memory, in the layouts of wgmma.cuh: by TMA, or element by element for
// matrices that TMA can't read (a line that does not start at a 16-byte boundary). Facts: PTX ISA 9.0, "elect.sync".
#pragma once

#include "gemm/tile.cuh"
#include "sm90/config.cuh"

namespace checkop::kernels::sm90 {

/// True in one thread of a warp whose threads are all active. Only under this condition does the compiler know that a
/// single thread issues the TMA instructions; after a comparison of lanes it puts a loop over the active threads around
/// each of them.
__device__ inline bool elect_one() {
  uint32_t elected;
  asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\nselp.u32 %0, 1, 0, one;\n}" : "=r"(elected));
  return elected != 0;
}

/// The box of an operand that one TMA instruction loads. `sharers` blocks divide a tile by whole slabs where possible,
/// otherwise by the lines of each slab.
template <typename Layout, bool along_k, int sharers>
struct Box {
  static constexpr bool kWholeSlabs = !along_k && Layout::kSlabs % sharers == 0;
  static constexpr int kLength = Layout::kWide, kLines = Layout::kLines / (kWholeSlabs ? 1 : sharers);
  static constexpr int kCount = Layout::kSlabs / (kWholeSlabs ? sharers : 1);
  static_assert(kLines % 8 == 0 && kLines <= 256);  // 8 lines: the period of the swizzle
};

/// Loads one block's slice of the operand tile that begins at (row, k).
///   slice: index of this block among `sharers`     blocks: bit mask of the sharers
///   lines: per box, at most Box::kLines
template <typename Layout, bool along_k, int sharers>
__device__ void load_slice(const CUtensorMap& map, uint32_t to, uint32_t barrier, int row, int k, int slice, int lines,
                           uint16_t blocks) {
  using SliceBox = Box<Layout, along_k, sharers>;
  const int first_slab = SliceBox::kWholeSlabs ? slice * SliceBox::kCount : 0;
  const int first_line = SliceBox::kWholeSlabs ? 0 : slice * lines;
#pragma unroll
  for (int i = 0; i < SliceBox::kCount; ++i) {
    const int slab = first_slab + i;
    const int along = (along_k ? k : row) + slab * Layout::kWide, line = (along_k ? row : k) + first_line;
    const uint32_t destination = to + slab * Layout::kSlab + first_line * Layout::kLine;
    if constexpr (sharers == 1) {
      tma_load(map, destination, barrier, along, line);
    } else {
      tma_load(map, destination, barrier, along, line, blocks);
    }
  }
}

/// A warpgroup loads the whole tile, element by element. Elements outside the matrix are zero in both operands, as with
/// TMA: 0 * 0 adds nothing, where 0 * NaN would. `thread`: 0 .. kWarpgroup - 1. Each thread must then call
/// fence_proxy_async().
template <typename Layout, typename T, bool along_k>
__device__ void load_elementwise(const Operand<T, along_k>& operand, int64_t row, int64_t k, int64_t k_extent,
                                 uint8_t* to, int thread) {
  constexpr int kChunk = 8, kPerLine = Layout::kLine / 16, kChunks = Layout::kBytes / 16;
  static_assert(kChunks % kWarpgroup == 0);
#pragma unroll 4
  for (int i = thread; i < kChunks; i += kWarpgroup) {
    const int chunk = i % kPerLine, line = i / kPerLine % Layout::kLines, slab = i / (kPerLine * Layout::kLines);
    const int64_t along = (along_k ? k : row) + slab * Layout::kWide + chunk * kChunk;
    const int64_t across = (along_k ? row : k) + line;
    const int64_t left = (along_k ? k_extent : operand.extent) - along;
    const bool inside = across < (along_k ? operand.extent : k_extent);
    const T* from = operand.data + across * operand.ld + along;
    Pack<T, kChunk> pack;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) pack.at[j] = inside && j < left ? from[j] : from_float<T>(0.0f);
    const int swizzle = Layout::kLine == 128 ? line % 8 : line / 2 % 4;
    *reinterpret_cast<uint4*>(to + slab * Layout::kSlab + line * Layout::kLine + (chunk ^ swizzle) * 16) =
        bit_cast<uint4>(pack);
  }
}

}  // namespace checkop::kernels::sm90
