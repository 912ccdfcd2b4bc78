// SPDX-License-Identifier: Apache-2.0
// Groups of rows, of which only the device knows where they lie: lists them and the tiles of their rows, each within
// one group, for kernels that multiply group by group.
#pragma once

#include "cuda/scan.cuh"

namespace checkop::kernels {

/// Rows [begin, end) of a group.
struct GroupRows {
  int32_t begin, end;
};
/// A tile of rows of a group, from `row` on. `end`: the end of the group. Group -1: no tile. The tiles of a group come
/// in bands of `height` successive ones, of which this is number `place`.
struct alignas(16) RowTile {
  int32_t group, row, end;
  uint16_t place, height;
};

/// The largest number of tiles of `tile_rows` rows that `groups` groups can have.
inline int64_t most_row_tiles(int64_t rows, int64_t groups, int tile_rows) {
  return ceil_div(rows, tile_rows) + groups;
}

/// Where list_row_groups() writes.
struct RowGroupList {
  GroupRows* groups;
  RowTile* tiles;  ///< [most_tiles]; entries behind the last tile have group -1
  int64_t* count;  ///< number of tiles
  int64_t most_tiles;
};

/// In place of a capacity: the groups are successive.
constexpr int64_t kSuccessive = -1;

/// What says where groups lie among `rows` rows. Successive groups follow each other: group i is rows [given[i],
/// given[i + 1]). Of masked groups each has room for `capacity` rows: group i is the first given[i] ones of its room.
struct GivenGroups {
  const int32_t* __restrict__ given;
  int64_t groups, rows, capacity;
  int align;  ///< of successive groups: what their bounds are multiples of

  __device__ bool is_masked() const { return capacity != kSuccessive; }
  __device__ int64_t elements() const { return is_masked() ? groups : groups + 1; }
  /// Whether element i is bad: offsets start with 0, do not decrease, end within the rows, and are multiples of
  /// `align`; counts lie in [0, capacity].
  __device__ bool is_bad(int64_t i) const {
    if (is_masked()) return given[i] < 0 || given[i] > capacity;
    return i == 0 ? given[0] != 0 : given[i] < given[i - 1] || given[i] > rows || given[i] % align != 0;
  }
  __device__ GroupRows group(int64_t i) const {
    if (!is_masked()) return {given[i], given[i + 1]};
    const auto begin = static_cast<int32_t>(i * capacity);
    return {begin, begin + given[i]};
  }
  /// The rows of no group come in so many pieces: behind the last successive group, or behind each masked one.
  __device__ int64_t rests() const { return is_masked() ? groups : 1; }
  __device__ GroupRows rest(int64_t i) const {
    if (!is_masked()) return {given[groups], static_cast<int32_t>(rows)};
    return {group(i).end, static_cast<int32_t>((i + 1) * capacity)};
  }
};

/// The first block lists the groups and their tiles. If an element of what is given is bad, it notes the first such
/// element and leaves all groups empty. The other blocks set the rows of `out` that are of no group to 0, or all rows
/// to NaN if an element is bad. A row of `out` has `row_bytes` bytes, an even number. The heights of a group's bands
/// differ by one tile at most, and lie between 3/4 and 3/2 of `band_tiles` if the group has as many.
static __global__ __launch_bounds__(kScanThreads) void list_row_groups(GivenGroups from, int tile_rows, int band_tiles,
                                                                       RowGroupList to, uint16_t* __restrict__ out,
                                                                       int64_t row_bytes,
                                                                       unsigned long long* __restrict__ first_bad) {
  __shared__ int64_t of_warp[kWarp];
  bool bad = false;
  for (int64_t i = threadIdx.x; i < from.elements(); i += kScanThreads) {
    const bool is_bad = from.is_bad(i);
    // order-free: the smallest bad element is an integer minimum, independent of the order of the threads.
    if (is_bad && blockIdx.x == 0) atomicMin(first_bad, static_cast<unsigned long long>(i));
    bad = bad || is_bad;
  }
  bad = __syncthreads_or(bad) != 0;
  if (blockIdx.x > 0) {
    constexpr uint16_t kNaN = 0xffff;  // a value of any float type with all bits set is NaN
    const int64_t units = row_bytes / 2, rests = bad ? 1 : from.rests();
    for (int64_t rest = 0; rest < rests; ++rest) {
      const GroupRows rows = bad ? GroupRows{0, static_cast<int32_t>(from.rows)} : from.rest(rest);
      for (int64_t i = rows.begin * units + (int64_t{blockIdx.x} - 1) * kScanThreads + threadIdx.x;
           i < rows.end * units; i += (int64_t{gridDim.x} - 1) * kScanThreads) {
        out[i] = bad ? kNaN : 0;
      }
    }
    return;
  }
  int64_t before = 0;
  for (int64_t first = 0; first < from.groups; first += kScanThreads) {
    const int64_t group = first + threadIdx.x;
    GroupRows own{0, 0};
    if (group < from.groups && !bad) own = from.group(group);
    if (group < from.groups) to.groups[group] = own;
    int64_t of_step = 0;
    const int64_t tiles = ceil_div(own.end - own.begin, tile_rows);
    const int64_t earlier = before + block_sum_before(tiles, of_warp, of_step);
    const int64_t bands = max((tiles + band_tiles / 2) / band_tiles, int64_t{1});
    const int64_t low = tiles / bands, higher = tiles % bands;  // the first bands have a tile more
    for (int64_t band = 0, i = 0; band < bands; ++band) {
      const int64_t first = i, height = low + (band < higher ? 1 : 0);
      for (; i < first + height; ++i) {
        to.tiles[earlier + i] = {static_cast<int32_t>(group), static_cast<int32_t>(own.begin + i * tile_rows), own.end,
                                 static_cast<uint16_t>(i - first), static_cast<uint16_t>(height)};
      }
    }
    before += of_step;
    __syncthreads();  // before the sums are written again
  }
  for (int64_t i = before + threadIdx.x; i < to.most_tiles; i += kScanThreads) to.tiles[i] = {-1, 0, 0, 0, 1};
  if (threadIdx.x == 0) *to.count = before;
}

/// Enqueues list_row_groups() for `out`, [rows, columns]; without columns nothing is set.
template <typename T>
void launch_list_row_groups(const GivenGroups& from, int tile_rows, int band_tiles, const RowGroupList& to, T* out,
                            int64_t columns, unsigned long long* first_bad, cudaStream_t stream) {
  constexpr int64_t kMostBlocks = 128;  // about one for each SM: most calls have few rows behind the groups, or none
  const int64_t row_bytes = columns * static_cast<int64_t>(sizeof(T));
  const int64_t needed = ceil_div(from.rows * row_bytes / 2, kScanThreads);
  const auto blocks = static_cast<unsigned>(1 + (needed < kMostBlocks ? needed : kMostBlocks));
  list_row_groups<<<blocks, kScanThreads, 0, stream>>>(from, tile_rows, band_tiles, to,
                                                       reinterpret_cast<uint16_t*>(out), row_bytes, first_bad);
}

}  // namespace checkop::kernels
