// SPDX-License-Identifier: Apache-2.0
// quant_fp8_block / cuda: a warp per block of 128 columns, four columns a lane; with codes_t a block of threads per
// 128 x 128 numbers, which it reads once. Portable CUDA.
//   amax = max(largest |x| of a block, eps)
//   factor_first 0: scale = amax/448, with pow2 the power of two from it on;  codes = e4m3(x (1/scale))
//   factor_first 1: factor = 448/amax, with pow2 the power of two up to it, 1 for an amax of 0 or infinity;
//                   scale = 1/factor;  codes = e4m3(x factor)
//   codes_t, scales_t: the same of x transposed, whose columns are all tokens
//   x: [..., hidden] f32|bf16|f16   codes: [..., hidden] e4m3   scales: [..., hidden/128 rounded up] f32
//   codes_t: [hidden, tokens] e4m3   scales_t: [hidden, tokens/128 rounded up] f32, both optional
//   Limits: contiguous.   No workspace.   Expected error: none, every operation is rounded as IEEE has it.
#include "cuda/fp8_block.cuh"

namespace checkop::kernels {
namespace {

struct Fp8Block {
  static constexpr int kWidth = 128;

  uint8_t* codes;
  float* scales;
  Fp8Scaling scaling;

  __device__ float begin(float amax, bool leads, int64_t place) const {
    float scale;
    const float factor = scaling.factor(amax, scale);
    if (leads) scales[place] = scale;
    return factor;
  }
  __device__ void store(const float (&q)[kLaneColumns], int64_t row, int64_t first, int n,
                        const QuantShape& shape) const {
    store_e4m3(codes, q, row, first, n, shape);
  }
};

/// The scales of the rows of a tile, and of its columns.
template <typename T>
__global__ __launch_bounds__(kQuantThreads) void quantize_both(TileTensors<T> t) {
  __shared__ TransposedCodes codes;
  __shared__ float largest[kTileWarps][kTileWidth];  // of a warp's rows, by column
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t tiles = t.down() * t.across();
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const TilePart<T> part(t, tile);
    const int64_t block_row = tile / t.across(), block_column = tile % t.across();
    float of_columns[kLaneColumns] = {};
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      float of_row = 0.0f, scale;
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) {
        const float size = fabsf(to_float(part.at[r].at[i]));
        of_row = fmaxf(of_row, size);  // fmaxf skips NaN
        of_columns[i] = fmaxf(of_columns[i], size);
      }
      const float factor = t.scaling.factor(warp_max(of_row), scale);
      if (lane == 0 && part.row + r < t.rows) t.scales[(part.row + r) * t.across() + block_column] = scale;
      part.store_codes(t, r, factor);
    }
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) largest[warp][lane * kLaneColumns + i] = of_columns[i];
    __syncthreads();
    float factors[kLaneColumns];
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      const int column = lane * kLaneColumns + i;
      float amax = 0.0f, scale;
#pragma unroll
      for (int w = 0; w < kTileWarps; ++w) amax = fmaxf(amax, largest[w][column]);
      factors[i] = t.scaling.factor(amax, scale);
      if (warp == 0 && i < part.columns) t.scales_t[(part.column + i) * t.down() + block_row] = scale;
    }
    part.transpose(codes, factors);
    __syncthreads();  // the next tile writes `largest` only after this, and `codes` only after its own barrier
    store_transposed(t, tile, codes);
  }
}

checkop_status forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(1, 4).failed()) return check.status();
  const checkop_tensor &x = call->inputs[0], &codes_t = call->outputs[2], &scales_t = call->outputs[3];
  Fp8Scaling scaling;
  if (auto status = read_scaling(call, scaling)) return status;
  if (codes_t.data == nullptr) {
    const Fp8Block op{static_cast<uint8_t*>(call->outputs[0].data), static_cast<float*>(call->outputs[1].data),
                      scaling};
    return launch_quantize(call, CHECKOP_E4M3, 1, CHECKOP_F32, op, "launch quant_fp8_block");
  }
  const checkop_tensor &codes = call->outputs[0], &scales = call->outputs[1];
  check.float_dtype(x, "x").rank_at_least(x, "x", 1).contiguous(x, "x");
  if (check.failed()) return check.status();
  const int64_t tokens = leading_count(x), columns = last_extent(x);
  check.dtype(codes, "codes", CHECKOP_E4M3).shape(codes, "codes", x, x.rank, {}).contiguous(codes, "codes");
  check.dtype(scales, "scales", CHECKOP_F32).shape(scales, "scales", x, x.rank - 1, {ceil_div(columns, kTileWidth)});
  check.contiguous(scales, "scales");
  check.dtype(codes_t, "codes_t", CHECKOP_E4M3).shape(codes_t, "codes_t", x, 0, {columns, tokens});
  check.contiguous(codes_t, "codes_t").dtype(scales_t, "scales_t", CHECKOP_F32);
  check.shape(scales_t, "scales_t", x, 0, {columns, ceil_div(tokens, kTileWidth)}).contiguous(scales_t, "scales_t");
  if (check.failed()) return check.status();
  if (tokens == 0 || columns == 0) return CHECKOP_OK;
  return with_float_type(x.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    launch_tiles<T>(quantize_both<T>, tile_tensors<T>(call, tokens, columns, scaling), call->stream);
    return launch_status(call, "launch quant_fp8_block");
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "quant_fp8_block", "forward", CHECKOP_CUDA, 80, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
