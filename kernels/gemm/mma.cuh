// SPDX-License-Identifier: Apache-2.0
// c[m,n] = sum_k a(m,k) * b(n,k) + bias[n] on tensor cores: fp16 or bf16, any layout of a and b, any size, sm_80 and
// up.
//
// The bits of an element are fixed by this: one fp32 accumulator, which starts at zero, takes the products in blocks of
// 16 along k, from k = 0 upward, one mma.sync each, the last block padded with zeros; then the bias is added in fp32
// and the sum rounded once. k is never split, and an accumulator depends on its own row and column only: the other rows
// and columns, the tile and the kind of loads change nothing. So they may be chosen by size.
#pragma once

#include <type_traits>

#include "cuda/ring.cuh"
#include "gemm/tile.cuh"

namespace checkop::kernels {
namespace mma {

// Elements move in chunks of 8: 16 bytes, the unit of cp.async and of a row of ldmatrix.
constexpr int kChunk = 8, kTileK = 32, kBlockK = 16, kStages = 3;

/// m x n of c by warps_m x warps_n warps. kBlocks blocks share an SM: that leaves 128 registers per thread.
template <int m, int n, int warps_m, int warps_n>
struct Tile {
  static constexpr int kM = m, kN = n, kWarpsN = warps_n, kThreads = warps_m * warps_n * kWarp;
  static constexpr int kWarpM = m / warps_m, kWarpN = n / warps_n;  // of one warp
  static constexpr int kBlocks = 512 / kThreads;
  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0);  // the blocks that ldmatrix loads
};
// A stage takes 16 KiB; three take the 48 KiB that need no opt-in, and two blocks fit on an SM of any sm_8x.
using LargeTile = Tile<128, 128, 2, 4>;
// For small products, which large tiles would spread over only a few SMs, and for unaligned matrices.
using SmallTile = Tile<64, 64, 2, 2>;

/// A tile of `rows` rows by kTileK in shared memory, in the order of global memory. A line is contiguous there: kTileK
/// elements of one row, or `rows` elements at one k. Chunks of a line are swizzled by the number of the line, so that
/// the 8 chunks that ldmatrix reads together, one column of 8 lines, lie in different banks: 8 chunks fill all 32
/// banks. Along k a line has 4 chunks, so a pair of lines fills the banks once and 4 pairs must differ.
template <bool along_k, int rows>
struct SmemLayout {
  static constexpr int kPerLine = (along_k ? kTileK : rows) / kChunk, kLines = along_k ? rows : kTileK;
  static constexpr int kChunks = kPerLine * kLines;
  static __device__ int slot(int line, int chunk) {
    return line * kPerLine + (chunk ^ (along_k ? line / 2 % 4 : line % 8));
  }
};

/// Loads tiles of one operand into shared memory, one step of kTileK after the other. A thread has the same chunk of
/// every kLinesAtOnce-th line. Elements outside the matrix are zero in both operands: 0 * 0 adds nothing, where 0 * NaN
/// would.
template <typename T, bool along_k, int rows, int threads, bool aligned>
class Loader {
 public:
  using Layout = SmemLayout<along_k, rows>;

  __device__ Loader(const Operand<T, along_k>& operand, int64_t first_row)
      : line_(threadIdx.x / Layout::kPerLine), at_(threadIdx.x % Layout::kPerLine * kChunk) {
    slot_ = Layout::slot(static_cast<int>(line_), static_cast<int>(at_) / kChunk);
    (along_k ? line_ : at_) += first_row;
    from_ = operand.data + line_ * operand.ld + at_;
  }

  /// Loads the next step's tile; reads nothing past the end.
  __device__ void load(const Operand<T, along_k>& operand, int64_t k_extent, uint4* __restrict__ tile) {
    const int64_t line_end = along_k ? operand.extent : k_extent;
    const int64_t left = (along_k ? k_extent : operand.extent) - at_;  // in the line, from this chunk on
    const int inside = left >= kChunk ? kChunk : left > 0 ? static_cast<int>(left) : 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int valid = line_ + i * kLinesAtOnce < line_end ? inside : 0;
      const T* from = from_ + i * kLinesAtOnce * operand.ld;
      uint4* to = tile + slot_ + i * kLinesAtOnce * Layout::kPerLine;
      if constexpr (aligned) {
        cp_async(to, from, valid * static_cast<int>(sizeof(T)));
      } else {
        Pack<T, kChunk> pack;
#pragma unroll
        for (int j = 0; j < kChunk; ++j) pack.at[j] = j < valid ? from[j] : from_float<T>(0.0f);
        *to = bit_cast<uint4>(pack);
      }
    }
    (along_k ? at_ : line_) += kTileK;
    from_ += along_k ? kTileK : kTileK * operand.ld;
  }

 private:
  static constexpr int kLinesAtOnce = threads / Layout::kPerLine, kEach = Layout::kLines / kLinesAtOnce;
  // A multiple of 8, so that all of a thread's lines are swizzled alike.
  static_assert(kLinesAtOnce % 8 == 0 && kEach * kLinesAtOnce == Layout::kLines);
  int64_t line_, at_;  ///< in the matrix
  const T* from_;      ///< may point outside the matrix, where nothing is read
  int slot_;
};

/// Loads 16 rows by 16 k of a tile as four 8x8 matrices, (row, k) = (0,0), (8,0), (0,8), (8,8). Of each matrix lane l
/// gets the elements (l / 4, l % 4 * 2) and the next along k. The four are the first operand of mma.m16n8k16, or two
/// second operands: matrices 0 and 2 for rows 0 .. 7, 1 and 3 for rows 8 .. 15. Lanes 8i .. 8i + 7 give the addresses
/// of matrix i, one line each. Tiles along rows hold it transposed; ldmatrix transposes it back.
template <bool along_k, int rows>
__device__ void load_fragments(const uint4* __restrict__ tile, int row, int k, unsigned (&x)[4]) {
  const int lane = threadIdx.x % kWarp, matrix = lane / 8;
  row += matrix % 2 * 8 + (along_k ? lane % 8 : 0);
  k += matrix / 2 * 8 + (along_k ? 0 : lane % 8);
  const int slot = SmemLayout<along_k, rows>::slot(along_k ? row : k, (along_k ? k : row) / kChunk);
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(tile + slot));
  if constexpr (along_k) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
  }
}

/// sum += a * b over one block of 16 along k.
template <typename T>
__device__ void mma_m16n8k16(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T first, second;
};

/// Stores elements (m, n) and (m, n + 1) of c, each rounded once. `pairs`: both lie in one aligned word.
template <typename T>
__device__ void store_pair(T* __restrict__ c, int64_t m, int64_t n, int64_t m_extent, int64_t n_extent,
                           const T* __restrict__ bias, bool pairs, float first, float second) {
  if (m >= m_extent || n >= n_extent) return;
  const bool both = n + 1 < n_extent;
  if (bias != nullptr) {
    first += to_float(bias[n]);
    if (both) second += to_float(bias[n + 1]);
  }
  T* out = c + m * n_extent + n;
  if (pairs) {
    *reinterpret_cast<Pair<T>*>(out) = {from_float<T>(first), from_float<T>(second)};
    return;
  }
  out[0] = from_float<T>(first);
  if (both) out[1] = from_float<T>(second);
}

/// Tile number -> (m, n) in tiles, rasterized in bands of 16 tiles along m, with n as the outer index within a band, so
/// that blocks that run together share rows and columns in L2.
__device__ inline void tile_index(int64_t tile, int64_t tiles_m, int64_t tiles_n, int64_t& m, int64_t& n) {
  constexpr int64_t kBand = 16;
  const int64_t first = tile / (kBand * tiles_n) * kBand, within = tile % (kBand * tiles_n);
  const int64_t height = tiles_m - first < kBand ? tiles_m - first : kBand;
  m = first + within % height;
  n = within / height;
}

/// The tile of c from (first_m, first_n) on, by a block of Tile::kThreads. c: [a.extent, b.extent], contiguous. bias:
/// [b.extent] or null.
template <typename Tile, bool aligned, typename T, bool a_along_k, bool b_along_k>
__device__ __forceinline__ void multiply_tile(const Operand<T, a_along_k>& a, const Operand<T, b_along_k>& b,
                                              int64_t k_extent, int64_t first_m, int64_t first_n,
                                              const T* __restrict__ bias, T* __restrict__ c) {
  using LoaderA = Loader<T, a_along_k, Tile::kM, Tile::kThreads, aligned>;
  using LoaderB = Loader<T, b_along_k, Tile::kN, Tile::kThreads, aligned>;
  __shared__ __align__(128) uint4 a_tile[kStages][LoaderA::Layout::kChunks];
  __shared__ __align__(128) uint4 b_tile[kStages][LoaderB::Layout::kChunks];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int warp_m = warp / Tile::kWarpsN * Tile::kWarpM, warp_n = warp % Tile::kWarpsN * Tile::kWarpN;
  constexpr int kBlocksM = Tile::kWarpM / 16, kBlocksN = Tile::kWarpN / 8;
  float sum[kBlocksM][kBlocksN][4] = {};

  LoaderA load_a(a, first_m);
  LoaderB load_b(b, first_n);
  const int64_t steps = ceil_div(k_extent, kTileK);
  // All conditions on steps are uniform across the block. One group is committed per step, even an empty one at the
  // end, so that the number of groups tells which step has arrived.
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < steps) {
      load_a.load(a, k_extent, a_tile[stage]);
      load_b.load(b, k_extent, b_tile[stage]);
    }
    cp_async_commit_group();
  }
  int now = 0, free = kStages - 1;  // stages: `now` is computed, `free` is filled for the step kStages - 1 ahead
  for (int64_t step = 0; step < steps; ++step) {
    cp_async_wait_group<kStages - 2>();  // this thread's part of the step has arrived
    __syncthreads();  // all threads' parts have; and `free`, read in the previous step, is not read any more
    if (step + kStages - 1 < steps) {
      load_a.load(a, k_extent, a_tile[free]);
      load_b.load(b, k_extent, b_tile[free]);
    }
    cp_async_commit_group();
#pragma unroll
    for (int k = 0; k < kTileK; k += kBlockK) {
      unsigned x[kBlocksM][4], y[kBlocksN / 2][4];
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) load_fragments<a_along_k, Tile::kM>(a_tile[now], warp_m + i * 16, k, x[i]);
#pragma unroll
      for (int j = 0; j < kBlocksN / 2; ++j) load_fragments<b_along_k, Tile::kN>(b_tile[now], warp_n + j * 16, k, y[j]);
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
        for (int j = 0; j < kBlocksN; ++j) mma_m16n8k16<T>(sum[i][j], x[i], y[j / 2][j % 2], y[j / 2][j % 2 + 2]);
      }
    }
    now = now + 1 == kStages ? 0 : now + 1;
    free = free + 1 == kStages ? 0 : free + 1;
  }

  // Of each 16x8 block, lane l holds (l / 4, l % 4 * 2) and the next in n, and the same two 8 rows below.
  const bool pairs = b.extent % 2 == 0 && reinterpret_cast<uintptr_t>(c) % sizeof(Pair<T>) == 0;
#pragma unroll
  for (int i = 0; i < kBlocksM; ++i) {
    const int64_t m = first_m + warp_m + i * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < kBlocksN; ++j) {
      const int64_t n = first_n + warp_n + j * 8 + lane % 4 * 2;
      store_pair(c, m, n, a.extent, b.extent, bias, pairs, sum[i][j][0], sum[i][j][1]);
      store_pair(c, m + 8, n, a.extent, b.extent, bias, pairs, sum[i][j][2], sum[i][j][3]);
    }
  }
}

/// c: [a.extent, b.extent], contiguous. bias: [b.extent] or null. Launch with launch_mma().
template <typename T, bool a_along_k, bool b_along_k, typename Tile, bool aligned>
__global__ __launch_bounds__(Tile::kThreads, Tile::kBlocks) void mma_kernel(Operand<T, a_along_k> a,
                                                                            Operand<T, b_along_k> b, int64_t k_extent,
                                                                            const T* __restrict__ bias,
                                                                            T* __restrict__ c) {
  int64_t first_m, first_n;
  tile_index(blockIdx.x, ceil_div(a.extent, Tile::kM), ceil_div(b.extent, Tile::kN), first_m, first_n);
  first_m *= Tile::kM, first_n *= Tile::kN;
  multiply_tile<Tile, aligned>(a, b, k_extent, first_m, first_n, bias, c);
}

template <typename Tile>
int64_t count_tiles(int64_t m, int64_t n) {
  return ceil_div(m, Tile::kM) * ceil_div(n, Tile::kN);
}

}  // namespace mma

/// Enqueues and returns the name of the variant. The caller checks for launch errors once, after its last kernel. A
/// grid can hold 2^31 tiles, more than fit in any memory.
template <bool a_along_k, bool b_along_k, typename T>
const char* launch_mma(const Operand<T, a_along_k>& a, const Operand<T, b_along_k>& b, int64_t k_extent, const T* bias,
                       T* c, cudaStream_t stream) {
  using namespace mma;
  if (a.extent == 0 || b.extent == 0) return "empty output: nothing to compute";
  // About the number of SMs of a large GPU: with fewer tiles some would idle. A constant, because a report should name
  // the same kernel on any GPU.
  constexpr int64_t kFewTiles = 128;
  const auto launch = [&]<typename Tile, bool aligned>(std::type_identity<Tile>, std::bool_constant<aligned>) {
    const auto blocks = static_cast<unsigned>(count_tiles<Tile>(a.extent, b.extent));
    mma_kernel<T, a_along_k, b_along_k, Tile, aligned><<<blocks, Tile::kThreads, 0, stream>>>(a, b, k_extent, bias, c);
  };
  if (!a.aligned || !b.aligned) {
    launch(std::type_identity<SmallTile>{}, std::false_type{});
    return "mma.sync, tile 64x64, unaligned: element-wise loads";
  }
  if (count_tiles<LargeTile>(a.extent, b.extent) < kFewTiles) {
    launch(std::type_identity<SmallTile>{}, std::true_type{});
    return "mma.sync, tile 64x64";
  }
  launch(std::type_identity<LargeTile>{}, std::true_type{});
  return "mma.sync, tile 128x128";
}

}  // namespace checkop::kernels
