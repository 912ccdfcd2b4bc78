// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA candidates of quant_fp8_block and quant_fp8_block_2d: the scale of numbers that become e4m3 codes,
// and a kernel for tiles of 128 x 128 numbers, whose codes it stores as they are and transposed.
#pragma once

#include "cuda/quantized.cuh"

namespace checkop::kernels {

/// How an amax becomes a scale; every operation is rounded as IEEE has it.
struct Fp8Scaling {
  static constexpr float kLargest = 448.0f, kMost = std::numeric_limits<float>::max();

  float eps;
  bool factor_first, is_power;

  /// Returns what numbers are multiplied by before they become codes; sets `scale`, the number that is stored.
  __device__ float factor(float amax, float& scale) const {
    amax = fmaxf(amax, eps);
    float factor;
    if (factor_first) {
      factor = amax == 0.0f || isinf(amax) ? 1.0f : fminf(__fdiv_rn(kLargest, amax), kMost);
      if (is_power) factor = __uint_as_float(__float_as_uint(factor) & 0xff800000u);
      scale = __frcp_rn(factor);
    } else {
      scale = __fdiv_rn(amax, kLargest);
      if (is_power) {
        const uint32_t exponent = (__float_as_uint(scale) + 0x7fffffu) >> 23;
        scale = __uint_as_float(min(max(exponent, 1u), 254u) << 23);
      }
      factor = __frcp_rn(scale);
    }
    return factor;
  }
};

inline checkop_status read_scaling(const checkop_call* call, Fp8Scaling& scaling) {
  double eps = 0, factor_first = 0, is_power = 0;
  if (auto status = read_attribute(call, "eps", eps)) return status;
  if (auto status = read_attribute(call, "factor_first", factor_first)) return status;
  if (auto status = read_attribute(call, "pow2", is_power)) return status;
  scaling = {static_cast<float>(eps), factor_first != 0, is_power != 0};
  return CHECKOP_OK;
}

constexpr int kTileWidth = 128, kTileWarps = kQuantThreads / kWarp;
constexpr int kTileRows = kTileWidth / kTileWarps;  // of a warp, one below the other; a lane has four columns of each
static_assert(kWarp * kLaneColumns == kTileWidth && kTileRows % kLaneColumns == 0);

/// x as a matrix of `rows` rows, and its outputs. codes_t and scales_t, those of x transposed, may be null.
template <typename T>
struct TileTensors {
  const T* x;
  uint8_t *codes, *codes_t;
  float *scales, *scales_t;
  int64_t rows, columns;
  bool aligned, transposed_aligned;  ///< rows of x and codes, and those of codes_t, begin at multiples of a word
  Fp8Scaling scaling;

  __device__ int64_t down() const { return ceil_div(rows, kTileWidth); }
  __device__ int64_t across() const { return ceil_div(columns, kTileWidth); }
};

/// The codes of a tile, by column: 128 rows are 32 words, and one word more keeps columns in other banks.
using TransposedCodes = uint32_t[kTileWidth][kTileWidth / 4 + 1];

/// The part of a tile that a thread has: 16 rows of four columns.
template <typename T>
struct TilePart {
  Quad<T> at[kTileRows];  ///< as stored: fp32 would take twice the registers
  int64_t row, column;    ///< of its first element, in x
  int columns;            ///< how many of its four columns there are

  /// Numbers that x does not have are 0.
  __device__ TilePart(const TileTensors<T>& t, int64_t tile) {
    row = tile / t.across() * kTileWidth + threadIdx.x / kWarp * kTileRows;
    column = tile % t.across() * kTileWidth + threadIdx.x % kWarp * kLaneColumns;
    const int64_t left = t.columns - column;
    columns = left <= 0 ? 0 : left < kLaneColumns ? static_cast<int>(left) : kLaneColumns;
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const int n = row + r < t.rows ? columns : 0;
      const T* const from = t.x + (row + r) * t.columns + column;
      if (n == kLaneColumns && t.aligned) {
        at[r] = *reinterpret_cast<const Quad<T>*>(from);
      } else {
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) at[r].at[i] = i < n ? from[i] : from_float<T>(0.0f);
      }
    }
  }
  __device__ void store_codes(const TileTensors<T>& t, int r, float factor) const {
    if (row + r >= t.rows) return;
    float q[kLaneColumns];
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) q[i] = to_float(at[r].at[i]) * factor;
    store_e4m3(t.codes, q, row + r, column, columns, {t.rows, t.columns, t.across(), t.aligned});
  }
  /// The codes of four rows of a column as a word.
  __device__ void transpose(TransposedCodes& codes, const float (&factors)[kLaneColumns]) const {
#pragma unroll
    for (int r = 0; r < kTileRows; r += 4) {
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) {
        uint32_t word = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k)
          word |= static_cast<uint32_t>(to_e4m3(to_float(at[r + k].at[i]) * factors[i])) << (8 * k);
        codes[threadIdx.x % kWarp * kLaneColumns + i][(threadIdx.x / kWarp * kTileRows + r) / 4] = word;
      }
    }
  }
};

/// Stores the columns of a tile as rows of codes_t.
template <typename T>
__device__ void store_transposed(const TileTensors<T>& t, int64_t tile, const TransposedCodes& codes) {
  const int64_t first = tile / t.across() * kTileWidth + threadIdx.x % kWarp * 4, left = t.rows - first;
  for (int c = threadIdx.x / kWarp; c < kTileWidth; c += kTileWarps) {
    const int64_t column = tile % t.across() * kTileWidth + c;
    if (column >= t.columns || left <= 0) return;
    const uint32_t word = codes[c][threadIdx.x % kWarp];
    uint8_t* const to = t.codes_t + column * t.rows + first;
    if (left >= 4 && t.transposed_aligned) {
      *reinterpret_cast<uint32_t*>(to) = word;
    } else {
      for (int i = 0; i < 4 && i < left; ++i) to[i] = static_cast<uint8_t>(word >> (8 * i));
    }
  }
}

/// Launches kernel(t) with a block of kQuantThreads threads for each tile.
template <typename T>
void launch_tiles(void (*kernel)(TileTensors<T>), const TileTensors<T>& t, void* stream) {
  constexpr int64_t kMaxBlocks = int64_t{1} << 20;  // the kernel strides over the rest
  const int64_t tiles = ceil_div(t.rows, kTileWidth) * ceil_div(t.columns, kTileWidth);
  kernel<<<static_cast<unsigned>(tiles < kMaxBlocks ? tiles : kMaxBlocks), kQuantThreads, 0,
           static_cast<cudaStream_t>(stream)>>>(t);
}

/// x[rows, columns], codes, scales, codes_t and scales_t of a call.
template <typename T>
TileTensors<T> tile_tensors(const checkop_call* call, int64_t rows, int64_t columns, const Fp8Scaling& scaling) {
  const auto starts_at = [](const void* data, size_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; };
  const checkop_tensor* const out = call->outputs;
  const bool aligned = columns % kLaneColumns == 0 && starts_at(call->inputs[0].data, sizeof(Quad<T>)) &&
                       starts_at(out[0].data, kLaneColumns);
  return {static_cast<const T*>(call->inputs[0].data),
          static_cast<uint8_t*>(out[0].data),
          static_cast<uint8_t*>(out[2].data),
          static_cast<float*>(out[1].data),
          static_cast<float*>(out[3].data),
          rows,
          columns,
          aligned,
          rows % 4 == 0 && starts_at(out[2].data, 4),
          scaling};
}

}  // namespace checkop::kernels
