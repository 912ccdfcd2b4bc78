// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA candidates that quantise: lanes of a warp take the blocks of a row, four columns each.
#pragma once

#include <cuda_fp8.h>

#include "cuda/group.cuh"

namespace checkop::kernels {

constexpr int kQuantThreads = 256;
constexpr int kLaneColumns = kQuadColumns;  // their e4m3 codes are a word

/// e4m3 of x: to nearest, ties to even, at most 448; NaN stays NaN.
__device__ inline uint8_t to_e4m3(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }

struct QuantShape {
  int64_t rows, columns, blocks;  ///< blocks of a row
  bool aligned;                   ///< rows begin at multiples of a word of x and of the codes
};

/// Quantises each block of Op::kWidth columns of x: its amax gives its scale, and the scale its codes. Op has
///   float begin(float amax, bool leads, int64_t place): what x is multiplied by; stores the scale if `leads`
///   void store(const float (&q)[4], int64_t row, int64_t first, int n, const QuantShape&): codes of n quotients
/// The maximum of a block has the same bits in any order, so that the lanes' order does not matter.
template <typename T, class Op>
__global__ __launch_bounds__(kQuantThreads) void quantize_blocks(const T* __restrict__ x, QuantShape shape, Op op) {
  constexpr int kLanes = Op::kWidth / kLaneColumns, kUnits = kWarp / kLanes;  // lanes of a block, blocks of a warp
  static_assert(Op::kWidth % kLaneColumns == 0 && kWarp % kLanes == 0);
  const int lane = threadIdx.x % kWarp, in_block = lane % kLanes;
  const int64_t units = shape.rows * shape.blocks, warps = int64_t{gridDim.x} * (kQuantThreads / kWarp);
  const int64_t warp = int64_t{blockIdx.x} * (kQuantThreads / kWarp) + threadIdx.x / kWarp;
  for (int64_t first_unit = warp * kUnits; first_unit < units; first_unit += warps * kUnits) {
    const int64_t unit = first_unit + lane / kLanes;
    const int64_t row = unit / shape.blocks, first = unit % shape.blocks * Op::kWidth + in_block * kLaneColumns;
    int64_t left = unit < units ? shape.columns - first : 0;
    const int n = left < 0 ? 0 : left < kLaneColumns ? static_cast<int>(left) : kLaneColumns;
    const T* __restrict__ const from = x + row * shape.columns + first;
    float values[kLaneColumns];
    load_quad(from, n, shape.aligned, values);
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) amax = fmaxf(amax, fabsf(values[i]));  // fmaxf skips NaN
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, offset));
    if (n == 0) continue;  // after the last exchange of this block
    const float factor = op.begin(amax, in_block == 0, unit);
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) values[i] *= factor;
    op.store(values, row, first, n, shape);
  }
}

/// e4m3 codes of n quotients.
__device__ inline void store_e4m3(uint8_t* __restrict__ codes, const float (&q)[kLaneColumns], int64_t row,
                                  int64_t first, int n, const QuantShape& shape) {
  uint8_t* __restrict__ const to = codes + row * shape.columns + first;
  if (n == kLaneColumns && shape.aligned) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) word |= static_cast<uint32_t>(to_e4m3(q[i])) << (8 * i);
    *reinterpret_cast<uint32_t*>(to) = word;
    return;
  }
  for (int i = 0; i < n; ++i) to[i] = to_e4m3(q[i]);
}

/// Checks x, which is input 0, codes and scales, outputs 0 and 1, and launches quantize_blocks() with `op`.
template <class Op>
checkop_status launch_quantize(const checkop_call* call, int32_t code_dtype, int codes_in_byte, int32_t scale_dtype,
                               const Op& op, const char* doing) {
  CallCheck check(call);
  const checkop_tensor &x = call->inputs[0], &codes = call->outputs[0], &scales = call->outputs[1];
  check.float_dtype(x, "x").rank_at_least(x, "x", 1).contiguous(x, "x");
  if (check.failed()) return check.status();
  const int64_t rows = leading_count(x), columns = last_extent(x), blocks = ceil_div(columns, Op::kWidth);
  const int32_t leading = x.rank - 1;
  check.dtype(codes, "codes", code_dtype).shape(codes, "codes", x, leading, {ceil_div(columns, codes_in_byte)});
  check.contiguous(codes, "codes").dtype(scales, "scales", scale_dtype);
  check.shape(scales, "scales", x, leading, {blocks}).contiguous(scales, "scales");
  if (check.failed()) return check.status();
  if (rows == 0 || columns == 0) return CHECKOP_OK;
  return with_float_type(x.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    constexpr int64_t kMaxBlocks = int64_t{1} << 20;  // the kernel strides over the rest
    constexpr int64_t kUnits = int64_t{kQuantThreads} * kLaneColumns / Op::kWidth;
    const int64_t needed = ceil_div(rows * blocks, kUnits);
    const auto starts_at = [](const void* data, size_t bytes) {
      return reinterpret_cast<uintptr_t>(data) % bytes == 0;
    };
    const QuantShape shape{rows, columns, blocks,
                           columns % kLaneColumns == 0 && starts_at(x.data, sizeof(Quad<T>)) &&
                               starts_at(codes.data, kLaneColumns / codes_in_byte)};
    quantize_blocks<T, Op><<<static_cast<unsigned>(needed < kMaxBlocks ? needed : kMaxBlocks), kQuantThreads, 0,
                             static_cast<cudaStream_t>(call->stream)>>>(static_cast<const T*>(x.data), shape, op);
    return launch_status(call, doing);
  });
}

}  // namespace checkop::kernels
