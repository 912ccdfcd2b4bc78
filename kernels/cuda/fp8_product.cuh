// SPDX-License-Identifier: Apache-2.0
// Tiles of matrix products of e4m3 codes, 128 of which share a scale: computed in fp32, codes are decoded on their way
// to shared memory. An element's sums have the same order wherever its tile lies and whatever the other rows are.
#pragma once

#include <cuda_fp8.h>

#include "cuda/group.cuh"

namespace checkop::kernels::fp8 {

constexpr int kBlock = 128;            // codes of a row that share a scale
constexpr int kTile = 64, kStep = 32;  // rows and columns of a thread block's tile; codes of a row in shared memory
constexpr int kSide = 4;               // a thread has kSide x kSide elements
constexpr int kThreads = (kTile / kSide) * (kTile / kSide);
static_assert(kBlock % kTile == 0 && kBlock % kStep == 0);

/// A matrix of codes, whose rows are `length` long and have `blocks` scales; kRowsOfScale rows share one.
template <int kRowsOfScale>
struct Codes {
  const uint8_t* codes;
  const float* scales;
  int64_t length, blocks;

  __device__ float scale(int64_t row, int64_t block) const { return scales[row / kRowsOfScale * blocks + block]; }
  static constexpr bool kOneForTile = kRowsOfScale % kTile == 0;
};

__device__ inline float decode(uint8_t code) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))); }

/// Rows [first, first + kTile) and columns [k, k + kStep) as numbers, and 0 from row `rows` and column `end` on.
template <int kRowsOfScale>
__device__ void load_tile(const Codes<kRowsOfScale>& m, int64_t first, int64_t rows, int64_t k, int64_t end,
                          float (&to)[kStep][kTile + 1]) {
  for (int i = threadIdx.x; i < kTile * kStep; i += kThreads) {
    const int row = i / kStep, column = i % kStep;
    const bool exists = first + row < rows && k + column < end;
    to[column][row] = exists ? decode(m.codes[(first + row) * m.length + k + column]) : 0.0f;
  }
}

/// out[r, n] = sum over k in [begin, end) of a[r, k] b[n, k] with their scales, for the tile of rows from `first_row`
/// up to end_row and columns from `first_column` up to n_dim. `begin` is a multiple of kBlock. For the whole thread
/// block.
template <int kRowsOfA, int kRowsOfB, typename T>
__device__ void multiply_tile(const Codes<kRowsOfA>& a, int64_t first_row, int64_t end_row, const Codes<kRowsOfB>& b,
                              int64_t first_column, int64_t n_dim, int64_t begin, int64_t end, T* __restrict__ out) {
  __shared__ float of_a[kStep][kTile + 1], of_b[kStep][kTile + 1];
  const int row = threadIdx.x / (kTile / kSide) * kSide, column = threadIdx.x % (kTile / kSide) * kSide;
  float total[kSide][kSide] = {};
  for (int64_t first = begin; first < end; first += kBlock) {
    float sum[kSide][kSide] = {};
    const int64_t block_end = first + kBlock < end ? first + kBlock : end;
    for (int64_t k = first; k < block_end; k += kStep) {
      __syncthreads();  // the tiles before are read
      load_tile(a, first_row, end_row, k, end, of_a);
      load_tile(b, first_column, n_dim, k, end, of_b);
      __syncthreads();
#pragma unroll 8
      for (int step = 0; step < kStep; ++step) {
        float x[kSide], y[kSide];
#pragma unroll
        for (int i = 0; i < kSide; ++i) x[i] = of_a[step][row + i], y[i] = of_b[step][column + i];
#pragma unroll
        for (int i = 0; i < kSide; ++i) {
#pragma unroll
          for (int j = 0; j < kSide; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
        }
      }
    }
    float of_columns[kSide];
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      const int64_t n = first_column + (Codes<kRowsOfB>::kOneForTile ? 0 : column + j);
      of_columns[j] = n < n_dim ? b.scale(n, first / kBlock) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      const int64_t r = first_row + row + i;
      const float of_row = r < end_row ? a.scale(r, first / kBlock) : 0.0f;
#pragma unroll
      for (int j = 0; j < kSide; ++j) total[i][j] = fmaf(of_row * of_columns[j], sum[i][j], total[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    const int64_t r = first_row + row + i;
    for (int j = 0; j < kSide && r < end_row; ++j) {
      const int64_t n = first_column + column + j;
      if (n < n_dim) out[r * n_dim + n] = from_float<T>(total[i][j]);
    }
  }
}

/// Refuses a call without the attributes that only the bound uses.
inline checkop_status check_bound_attributes(const checkop_call* call) {
  for (const char* name : {"acc_bits", "acc_terms"}) {
    double value = 0;
    if (auto status = read_attribute(call, name, value)) return status;
  }
  return CHECKOP_OK;
}

/// The e4m3 codes and the scales of an operand.
template <int kRowsOfScale>
Codes<kRowsOfScale> codes_of(const checkop_tensor& codes, const checkop_tensor& scales) {
  return {static_cast<const uint8_t*>(codes.data), static_cast<const float*>(scales.data), last_extent(codes),
          last_extent(scales)};
}

}  // namespace checkop::kernels::fp8
