// SPDX-License-Identifier: Apache-2.0
// Gathers the rows that count, so that ignored rows cost nothing in what follows.
//
// The outputs of a row do not depend on its position among the others, so for them any ignored row is left out. Sums
// over rows take 16 rows at a time (sm90/config.cuh), so for them only whole blocks of 16 ignored rows are left out:
// zeros add nothing, but different neighbours would change the order of addition. (dbias without a carry adds 512 such
// sums at a time, so its bits may change.)
#pragma once

#include <type_traits>

#include "linear_logp/portable.cuh"

namespace checkop::kernels::linear_logp {

/// `count` listed rows out of `rows`, in the workspace: their row indices, ascending, and their data.
struct RowList {
  int64_t* __restrict__ index;    ///< [rows]
  int64_t* __restrict__ ids;      ///< [rows], the target ids of the listed rows
  float* __restrict__ grad_logp;  ///< [rows], only for gradients
  unsigned long long* __restrict__ count;

  static constexpr int64_t kRowBytes = 2 * sizeof(int64_t) + sizeof(float);
};

constexpr int kListThreads = 1024;

/// Lists every row of every block of `unit` rows that has an id other than `ignored`; unit is 1 or 16.
static __global__ __launch_bounds__(kListThreads) void list_rows(const int64_t* __restrict__ ids,
                                                                 const float* __restrict__ grad_logp, int64_t ignored,
                                                                 int64_t rows, int unit, RowList to) {
  __shared__ int of_warp[kListThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned block = unit == 1 ? 1u << lane : 0xffffu << lane / 16 * 16;
  int64_t total = 0;
  for (int64_t first = 0; first < rows; first += kListThreads) {
    const int64_t row = first + threadIdx.x;
    const int64_t id = row < rows ? ids[row] : ignored;
    const bool counts = (__ballot_sync(kAllLanes, id != ignored) & block) != 0 && row < rows;
    const unsigned of_lanes = __ballot_sync(kAllLanes, counts);
    if (lane == 0) of_warp[warp] = __popc(of_lanes);
    __syncthreads();
    int64_t position = total + __popc(of_lanes & ((1u << lane) - 1));
    for (int i = 0; i < kListThreads / kWarp; ++i) {
      if (i < warp) position += of_warp[i];
      total += of_warp[i];
    }
    if (counts) {
      to.index[position] = row, to.ids[position] = id;
      if (grad_logp != nullptr) to.grad_logp[position] = grad_logp[row];
    }
    __syncthreads();  // before of_warp is written again
  }
  if (threadIdx.x == 0) *to.count = static_cast<unsigned long long>(total);
}

/// grad_logp is null in the forward pass.
inline void launch_list_rows(const int64_t* ids, const float* grad_logp, int64_t ignored, int64_t rows, int unit,
                             const RowList& to, cudaStream_t stream) {
  list_rows<<<1, kListThreads, 0, stream>>>(ids, grad_logp, ignored, rows, unit, to);
}

/// to[i, :] = hidden[index[i], :], zeros where ids[i] is `ignored`; moves `wide` elements at a time.
template <int wide, typename T>
__global__ __launch_bounds__(kThreads) void gather_rows(const T* __restrict__ hidden, const int64_t* __restrict__ index,
                                                        const int64_t* __restrict__ ids, int64_t ignored, int64_t rows,
                                                        int64_t columns, T* __restrict__ to) {
  using Piece = std::conditional_t<wide == 1, T, Pack<T, wide>>;
  const int64_t pieces = columns / wide, count = rows * pieces;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / pieces;
    Piece piece{};
    if (ids[row] != ignored) piece = reinterpret_cast<const Piece*>(hidden + index[row] * columns)[i % pieces];
    reinterpret_cast<Piece*>(to)[i] = piece;
  }
}

/// Gathers rows [first, first + rows) of the list; `to` is aligned to 16 bytes.
template <typename T>
void launch_gather_rows(const T* hidden, const RowList& list, int64_t first, int64_t rows, int64_t columns,
                        int64_t ignored, T* to, cudaStream_t stream) {
  constexpr int kWide = 16 / sizeof(T);
  const bool is_wide = columns % kWide == 0 && reinterpret_cast<uintptr_t>(hidden) % 16 == 0;
  const auto gather = is_wide ? gather_rows<kWide, T> : gather_rows<1, T>;
  gather<<<blocks_for(rows * columns / (is_wide ? kWide : 1)), kThreads, 0, stream>>>(
      hidden, list.index + first, list.ids + first, ignored, rows, columns, to);
}

/// to[index[i], :] = from[i, :], rounded once; both contiguous.
template <typename T>
__global__ __launch_bounds__(kThreads) void scatter_rows(const float* __restrict__ from,
                                                         const int64_t* __restrict__ index, int64_t rows,
                                                         int64_t columns, T* __restrict__ to) {
  const int64_t count = rows * columns;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    to[index[i / columns] * columns + i % columns] = from_float<T>(from[i]);
  }
}

template <typename T>
void launch_scatter_rows(const float* from, const RowList& list, int64_t rows, int64_t columns, T* to,
                         cudaStream_t stream) {
  scatter_rows<T><<<blocks_for(rows * columns), kThreads, 0, stream>>>(from, list.index, rows, columns, to);
}

/// Calls finish(row, ...) with the original index of row `row` of the list.
template <typename Finish>
struct AtListed {
  const int64_t* __restrict__ index;
  Finish finish;

  template <typename Sum>
  __device__ void operator()(int64_t row, const Sum& total, float target_logit) const {
    finish(index[row], total, target_logit);
  }
};

}  // namespace checkop::kernels::linear_logp
