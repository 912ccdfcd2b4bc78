// SPDX-License-Identifier: Apache-2.0
// Products of groups of rows on Hopper, in one kernel that computes the tiles of all groups: RowGroups, the
// rows of each group times a matrix of its own; SumGroups, sums over the rows of each group. Only the device knows
// where the groups begin and end.
//
// A tile belongs to one group. Its rows behind the group's last one are computed but not stored; a row of c depends on
// that row of `a` alone. Behind the last term of a group both operands are zero, because 0 * NaN would change the sum.
// So the rules of config.cuh hold for each group: its bits are those of a product of the group alone.
#pragma once

#include "gemm/row_groups.cuh"
#include "sm90/select.cuh"

namespace checkop::kernels::sm90 {

/// c of a group = its rows of `a` times the group's matrix. `a` is along k; the matrices lie one after the other in b.
template <bool b_along_k>
struct RowGroups {
  const RowTile* __restrict__ tiles;  ///< of kM * kClusterM rows each, from list_row_groups()
  const int64_t* __restrict__ count;  ///< number of tiles
  int64_t lines;                      ///< rows in memory of a matrix of b: those of c's columns if b is along k, else k
  int64_t k;

  static constexpr bool kMany = true;
  /// Bands are those of the list. A band of several groups would read the matrix of each.
  __device__ TileIndex index(uint32_t tile, uint32_t, uint32_t tiles_n, uint32_t) const {
    const uint32_t any_of_band = tile / tiles_n;
    const auto word = static_cast<uint32_t>(__ldg(&reinterpret_cast<const int4*>(tiles + any_of_band)->w));
    const uint32_t first = any_of_band - (word & 0xffff), height = word >> 16, within = tile - first * tiles_n;
    return {first + within % height, within / height};
  }
  __device__ uint32_t row_tiles() const { return static_cast<uint32_t>(*count); }
  template <typename Config>
  __device__ Tile tile(uint32_t index_m, int rank_m, int64_t n) const {
    const int4 words = __ldg(reinterpret_cast<const int4*>(tiles + index_m));
    const int64_t m = int64_t{words.y} + rank_m * Config::kM, first_line = words.x * lines;
    return {m, n, m, b_along_k ? first_line + n : n, 0, b_along_k ? 0 : first_line, words.z, k};
  }
};

/// c of a group = a^T b, summed over the group's rows of `a` and b, neither of which is along k. The results lie one
/// after the other in c.
struct SumGroups {
  const GroupRows* __restrict__ groups;
  uint32_t count;
  uint32_t tiles_each;  ///< tiles along m of a group, of kM * kClusterM rows each
  int64_t rows;         ///< rows of c of a group

  static constexpr bool kMany = true;
  __device__ TileIndex index(uint32_t tile, uint32_t tiles_m, uint32_t tiles_n, uint32_t band) const {
    return tile_index(tile, tiles_m, tiles_n, band);
  }
  __device__ uint32_t row_tiles() const { return count * tiles_each; }
  template <typename Config>
  __device__ Tile tile(uint32_t index_m, int rank_m, int64_t n) const {
    const uint32_t group = index_m / tiles_each;
    const int2 words = __ldg(reinterpret_cast<const int2*>(groups + group));
    const int64_t a_row = (int64_t{index_m % tiles_each} * Config::kClusterM + rank_m) * Config::kM;
    const int64_t first = group * rows;
    return {first + a_row, n, a_row, n, words.x, words.x, first + rows, int64_t{words.y} - words.x};
  }
};

/// Products of `groups` groups with `rows` rows in all. The rows lie along k if the sums are over rows (sums_rows),
/// else along m. other: the extent along m in the first case, along k in the second.
struct GroupedProblem {
  int64_t rows, groups, other, n;
  bool sums_rows, is_aligned;
};

/// How many tiles of `tile_rows` rows the groups have along m. The host does not know the groups, so it assumes that
/// half a tile of each is empty.
inline int64_t expected_row_tiles(const GroupedProblem& p, int64_t tile_rows) {
  if (p.sums_rows) return p.groups * ceil_div(p.other, tile_rows);
  const int64_t used = std::min(p.groups, p.rows);
  return std::max(used, ceil_div(2 * p.rows + used * tile_rows, 2 * tile_rows));
}

/// Estimated time, as for one product with as many tiles.
template <typename Config>
double estimated_ns(const GroupedProblem& p) {
  constexpr int64_t kTileRows = Config::kM * Config::kClusterM;
  const int64_t m = expected_row_tiles(p, kTileRows) * kTileRows;
  return estimated_ns<Config>(Problem{m, p.n, p.sums_rows ? ceil_div(p.rows, p.groups) : p.other, p.is_aligned});
}

/// The configurations of grouped products.
template <typename Run>
auto with_config(const GroupedProblem& p, Run&& run) {
  return with_fastest(p, run, Divided128x256Columns{}, Divided128x256Rows{}, Tile128x128{}, Tile64x128{}, Tile64x64{});
}

/// Enqueues the products. `a` and `b` have the extents of one group's operands; TMA loads from a_matrix and b_matrix,
/// which must have tensor maps and hold those of all groups. `products` has at most `row_tiles` tiles along m.
template <typename Config, typename T, bool a_along_k, bool b_along_k, typename Products>
cudaError_t launch_grouped(const Products& products, const Operand<T, a_along_k>& a, const Operand<T, b_along_k>& b,
                           const Matrix& a_matrix, const Matrix& b_matrix, int64_t row_tiles, T* c, int64_t c_rows,
                           cudaStream_t stream) {
  using BoxA = Box<SmemLayout<a_along_k, Config::kM, Config::kBlockK>, a_along_k, Config::kClusterN>;
  using BoxB = Box<SmemLayout<b_along_k, Config::kTailN, Config::kBlockK>, b_along_k, Config::kClusterM>;
  constexpr auto function = wgmma_kernel<Config, T, StoreTiles<T, T>, a_along_k, b_along_k, Products>;
  GemmParams<T, StoreTiles<T, T>, a_along_k, b_along_k, Products> p{};
  p.out.c = c;
  if (!stage_tiles<Config>(p.out, c, b.extent, c_rows, b.extent)) return cudaErrorInvalidValue;
  p.a = a, p.b = b, p.products = products;
  p.tiles_n = static_cast<uint32_t>(ceil_div(b.extent, Config::kN * Config::kClusterN));
  p.band = kBandRows / (Config::kM * Config::kClusterM);
  p.a_lines = BoxA::kLines;
  if (!make_tensor_map<T>(p.a_map, a_matrix, BoxA::kLength, BoxA::kLines, L2Promotion::none) ||
      !make_tensor_map<T>(p.b_map, b_matrix, BoxB::kLength, BoxB::kLines, L2Promotion::none)) {
    return cudaErrorInvalidValue;
  }
  int resident = 0;
  if (const auto error = prepare<Config>(reinterpret_cast<const void*>(function), resident)) return error;
  return enqueue<Config>(function, p, row_tiles * p.tiles_n * Config::kParts, resident, stream);
}

}  // namespace checkop::kernels::sm90
