// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA candidates that normalise rows: the threads that work on a row, their columns, the sums over a
// row, and sums of a weight's gradient over rows in two stages.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/group.cuh"
#include "cuda/ring.cuh"

namespace checkop::kernels {

constexpr int kLeastBlock = 128;  // threads; smaller teams share a block

template <int team>
constexpr int kTeamsOf = team < kLeastBlock ? kLeastBlock / team : 1;

/// Sums a and b over a team. Every thread of the block calls and gets its own team's sums. `shared` must not be reused
/// by the next call, but may be by the one after it.
template <int team>
__device__ float2 team_sum(float a, float b, float2* __restrict__ shared) {
  constexpr int kWidth = team < kWarp ? team : kWarp, kWarps = team / kWarp;
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) {
    a += __shfl_xor_sync(kAllLanes, a, offset);
    b += __shfl_xor_sync(kAllLanes, b, offset);
  }
  if constexpr (team > kWarp) {
    static_assert(kTeamsOf<team> == 1);
    const unsigned lane = threadIdx.x % kWarp;
    if (lane == 0) shared[threadIdx.x / kWarp] = make_float2(a, b);
    __syncthreads();
    const float2 mine = lane < kWarps ? shared[lane] : make_float2(0.0f, 0.0f);
    a = warp_sum(mine.x), b = warp_sum(mine.y);
  }
  return make_float2(a, b);
}

struct RmsNormParams {
  int64_t rows, hidden;
  float eps;
  bool aligned;  ///< rows of all tensors start and end at 16-byte boundaries
};

/// Loads groups `first`, `first` + team, ... of a row.
template <typename T, int team, int n>
__device__ void load_groups(const T* __restrict__ row, int64_t first, const RmsNormParams& params,
                            Group<T> (&groups)[n]) {
#pragma unroll
  for (int k = 0; k < n; ++k) {
    groups[k] = load_group(row, (first + k * team) * kGroupColumns<T>, params.hidden, params.aligned);
  }
}

/// Rows of m tensors on their way to a team, which has at most n groups of a row in each thread: a slot has a thread's
/// groups of one row of each tensor, with zeros beyond the row's end. A thread reads what it has copied itself, so no
/// barriers are needed. Every slot is filled once in advance; from then on wait(), read and fetch().
template <typename T, int team, int n, int m>
class RowRing {
  static constexpr int kThreads = team * kTeamsOf<team>, kStep = team * kGroupColumns<T>;

 public:
  __device__ RowRing(const RmsNormParams& params, int slots) : RowRing(params, params.hidden, slots) {}
  /// `stride`: elements from one row to the next, where rows are parts of longer ones.
  __device__ RowRing(const RmsNormParams& params, int64_t stride, int slots)
      : params_(params),
        stride_(stride),
        column_(static_cast<int>(threadIdx.x % team) * kGroupColumns<T>),
        left_(static_cast<int>(params.hidden) - column_),
        ring_(slots) {
    for (int slot = 0; slot < slots; ++slot) {  // once: fetch() leaves groups beyond the row's end as they are
#pragma unroll
      for (int k = 0; k < m * n; ++k) {
        if (k % n * kStep >= left_) *ring_.at(slot * m * n + k) = make_uint4(0, 0, 0, 0);
      }
    }
  }
  __device__ int slots() const { return ring_.slots(); }

  /// Fills the current slot with a row of `tensors` if it exists, and goes to the next one.
  __device__ void fetch(const T* const (&tensors)[m], int64_t row, bool exists) {
    if (exists && params_.aligned) {
      const int64_t offset = row * stride_ + column_;
#pragma unroll
      for (int k = 0; k < m * n; ++k) {
        if (k % n * kStep < left_) cp_async(ring_.at(k), tensors[k / n] + offset + k % n * kStep, 16);
      }
    } else if (exists) {
      Group<T> groups[m][n];
#pragma unroll
      for (int j = 0; j < m; ++j)
        load_groups<T, team>(tensors[j] + row * stride_, threadIdx.x % team, params_, groups[j]);
#pragma unroll
      for (int k = 0; k < m * n; ++k) *ring_.at(k) = groups[k / n][k % n].bits;
    }
    ring_.advance();
  }
  /// Waits for the current slot and reads tensor j of it, with zeros beyond the row's end.
  __device__ void wait() const { ring_.wait(); }
  __device__ void read(int j, Group<T> (&groups)[n]) const {
#pragma unroll
    for (int k = 0; k < n; ++k) groups[k].bits = *ring_.at(j * n + k);
  }
  /// Group k of it once more: a second sweep takes it from shared memory again. The compiler would otherwise keep it in
  /// registers in between, which then are too many for the warps that an SM needs; so the load is volatile.
  __device__ Group<T> read_again(int j, int k) const { return {load_volatile(ring_.at(j * n + k))}; }

 private:
  RmsNormParams params_;
  int64_t stride_;
  int column_, left_;  ///< the thread's first column, and columns from there to the row's end
  BlockRing<m * n, kThreads> ring_;
};

// Slots and blocks per SM of an H200, for about 128 KiB in flight on an SM.
constexpr int kRowSlots = 4;
constexpr int kMultiprocessors = 132;
template <typename Map, int m>
constexpr int kBlocksOnSM = std::clamp(2048 / (Map::n * m * Map::team * kTeamsOf<Map::team>), 1,
                                       1024 / (Map::team * kTeamsOf<Map::team>));

/// Adds the sums of x^2 and of g w x over the groups, in two levels: within a group, then over groups.
template <typename T, int n>
__device__ void add_squares(const Group<T> (&groups)[n], float& squares) {
#pragma unroll
  for (int k = 0; k < n; ++k) {
    float x[kGroupColumns<T>], sum = 0.0f;
    groups[k].unpack(x);
#pragma unroll
    for (int i = 0; i < kGroupColumns<T>; ++i) sum += x[i] * x[i];
    squares += sum;
  }
}
template <typename T, int n>
__device__ void add_products(const Group<T> (&xs)[n], const Group<T> (&gs)[n], const Group<T> (&ws)[n],
                             float& products) {
#pragma unroll
  for (int k = 0; k < n; ++k) {
    float x[kGroupColumns<T>], g[kGroupColumns<T>], w[kGroupColumns<T>], sum = 0.0f;
    xs[k].unpack(x), gs[k].unpack(g), ws[k].unpack(w);
#pragma unroll
    for (int i = 0; i < kGroupColumns<T>; ++i) sum += g[i] * w[i] * x[i];
    products += sum;
  }
}

/// ds = scale (g w - s pull) of an element s that is normalised, where pull = scale^2 mean(g w s). Explicit intrinsics,
/// so that a row has the same bits wherever the compiler finds products that it knows.
__device__ inline float norm_gradient(float s, float g, float w, float scale, float pull) {
  return scale * __fmaf_rn(-s, pull, __fmul_rn(g, w));
}

__device__ float inverse_rms(float squares, const RmsNormParams& params) {
  return rsqrtf(squares / static_cast<float>(params.hidden) + params.eps);
}

/// Threads in a row's team and groups held by a thread; `is_long`: the row has more groups than the team holds.
template <int team_, int n_, bool is_long_ = false>
struct Mapping {
  static constexpr int team = team_, n = n_;
  static constexpr bool is_long = is_long_;
};

/// Calls f(Mapping<...>{}) with the mapping for rows of `hidden` elements, which depends on nothing else.
template <typename T, typename F>
auto with_mapping(int64_t hidden, F&& f) {
  const int64_t n_groups = ceil_div(hidden, kGroupColumns<T>);
  if (n_groups <= 16) return f(Mapping<16, 1>{});  // attention heads of 128 elements in 16 bits
  if (n_groups <= 32) return f(Mapping<32, 1>{});
  if (n_groups <= 64) return f(Mapping<32, 2>{});
  if (n_groups <= 128) return f(Mapping<32, 4>{});
  if (n_groups <= 256) return f(Mapping<128, 2>{});
  if (n_groups <= 512) return f(Mapping<256, 2>{});
  if (n_groups <= 1024) return f(Mapping<512, 2>{});
  if constexpr (sizeof(T) == 4) {  // in 16 bits the sums of twice as many columns would not fit the registers
    if (n_groups <= 2048) return f(Mapping<512, 4>{});
  }
  return f(Mapping<512, 2, true>{});
}

// --- sums over rows --------------------------------------------------------------------------------------------------

/// How many blocks of a backward pass share the rows. The shape alone decides: it fixes the order of dweight's sums.
/// first(b): where the rows of block b begin, if a block has neighbours and not every blocks-th row.
struct Split {
  int64_t rows, blocks;
  __host__ __device__ int64_t first(int64_t block) const { return rows * block / blocks; }
};

constexpr int kFoldColumns = 32, kFoldLanes = 32;

/// Stores a thread's sums of the columns from `first` on to a block's partial row, whose floats are aligned if the
/// tensors' rows are.
template <int n>
__device__ void store_sums(float* __restrict__ partial, int64_t first, const RmsNormParams& params,
                           const float (&sums)[n]) {
  if (params.aligned) {
    if (first >= params.hidden) return;
#pragma unroll
    for (int c = 0; c < n; c += 4) {
      __stwb(reinterpret_cast<float4*>(partial + first + c),
             make_float4(sums[c], sums[c + 1], sums[c + 2], sums[c + 3]));
    }
    return;
  }
#pragma unroll
  for (int c = 0; c < n; ++c) {
    if (first + c < params.hidden) partial[first + c] = sums[c];
  }
}

/// dweight[h] = sum of partials[:, h]: lane j adds rows j, j + 32, ... in ascending order, then the lanes are added.
/// Starts while the kernel that writes the partial rows ends.
template <typename T>
__global__ __launch_bounds__(kFoldColumns* kFoldLanes) void fold_partials(const float* __restrict__ partials,
                                                                          int64_t n_partials, int64_t hidden,
                                                                          T* __restrict__ dweight) {
  __shared__ float lanes[kFoldLanes][kFoldColumns];
  const int64_t h = int64_t{blockIdx.x} * kFoldColumns + threadIdx.x;
  float sum = 0.0f;
  wait_for_kernel_before();
  if (h < hidden) {
#pragma unroll 8
    for (int64_t b = threadIdx.y; b < n_partials; b += kFoldLanes) sum += partials[b * hidden + h];
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || h >= hidden) return;
  for (int j = 1; j < kFoldLanes; ++j) sum += lanes[j][threadIdx.x];
  dweight[h] = from_float<T>(sum);
}

template <typename T>
cudaError_t launch_fold(const float* partials, int64_t n_partials, int64_t hidden, T* dweight, cudaStream_t stream) {
  return launch_dependent(fold_partials<T>, static_cast<unsigned>(ceil_div(hidden, kFoldColumns)),
                          dim3(kFoldColumns, kFoldLanes), stream, partials, n_partials, hidden, dweight);
}

/// The blocks of a part: enough to fill an H200 once with all `parts`; if a team would then add more than 64 rows,
/// enough to fill it twice with each part.
template <typename Map>
Split split_rows(int64_t rows, int64_t parts = 1) {
  constexpr int64_t kTeams = kTeamsOf<Map::team>, kFull = kMultiprocessors * kBlocksOnSM<Map, 2>;
  constexpr int64_t kLeastRows = 4;  // a partial row causes as much traffic as the elements of two to four rows
  const int64_t full = ceil_div(kFull, parts), most = rows > full * kTeams * 64 ? 2 * kFull : full;
  return {rows, std::min(most, ceil_div(rows, kTeams * kLeastRows))};
}

}  // namespace checkop::kernels
