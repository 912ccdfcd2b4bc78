// SPDX-License-Identifier: Apache-2.0
// quant_fp8_block_2d / cuda: a block of threads per 128 x 128 numbers, which it reads once; portable CUDA.
//   amax = max(largest |x| of a block, eps)
//   factor_first 0: scale = amax/448, with pow2 the power of two from it on;  codes = e4m3(x (1/scale))
//   factor_first 1: factor = 448/amax, with pow2 the power of two up to it, 1 for an amax of 0 or infinity;
//                   scale = 1/factor;  codes = e4m3(x factor)
//   x: [n, k] f32|bf16|f16   codes: [n, k] e4m3   scales: [n/128, k/128] f32, both extents rounded up
//   codes_t: [k, n] e4m3   scales_t: [k/128, n/128] f32, the same transposed, both optional
//   Limits: contiguous.   No workspace.   Expected error: none, every operation is rounded as IEEE has it.
#include "cuda/fp8_block.cuh"

namespace checkop::kernels {
namespace {

template <typename T>
__global__ __launch_bounds__(kQuantThreads) void quantize_squares(TileTensors<T> t) {
  __shared__ TransposedCodes codes;
  __shared__ float largest[kWarp];
  const int64_t tiles = t.down() * t.across();
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const TilePart<T> part(t, tile);
    const int64_t block_row = tile / t.across(), block_column = tile % t.across();
    float amax = 0.0f, scale;
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i)
        amax = fmaxf(amax, fabsf(to_float(part.at[r].at[i])));  // fmaxf ignores a NaN
    }
    const float factor = t.scaling.factor(block_max(amax, largest), scale);
    if (threadIdx.x == 0) {
      t.scales[tile] = scale;
      if (t.scales_t != nullptr) t.scales_t[block_column * t.down() + block_row] = scale;
    }
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) part.store_codes(t, r, factor);
    if (t.codes_t != nullptr) part.transpose(codes, {factor, factor, factor, factor});
    __syncthreads();  // the next tile writes `largest` only after this, and `codes` only after its own barrier
    if (t.codes_t != nullptr) store_transposed(t, tile, codes);
  }
}

checkop_status forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(1, 4).failed()) return check.status();
  const checkop_tensor& x = call->inputs[0];
  Fp8Scaling scaling;
  if (auto status = read_scaling(call, scaling)) return status;
  check.float_dtype(x, "x").rank_at_least(x, "x", 2).contiguous(x, "x");
  if (check.failed()) return check.status();
  const int64_t n = leading_count(x), k = last_extent(x), down = ceil_div(n, kTileWidth),
                across = ceil_div(k, kTileWidth);
  const auto expect = [&](int output, const char* name, int32_t dtype, int64_t rows, int64_t columns) {
    const checkop_tensor& t = call->outputs[output];
    check.dtype(t, name, dtype).shape(t, name, x, 0, {rows, columns}).contiguous(t, name);
  };
  check.shape(x, "x", x, 0, {n, k});
  expect(0, "codes", CHECKOP_E4M3, n, k);
  expect(1, "scales", CHECKOP_F32, down, across);
  if (call->outputs[2].data != nullptr) {
    expect(2, "codes_t", CHECKOP_E4M3, k, n);
    expect(3, "scales_t", CHECKOP_F32, across, down);
  }
  if (check.failed()) return check.status();
  if (n == 0 || k == 0) return CHECKOP_OK;
  return with_float_type(x.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    launch_tiles<T>(quantize_squares<T>, tile_tensors<T>(call, n, k, scaling), call->stream);
    return launch_status(call, "launch quant_fp8_block_2d");
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "quant_fp8_block_2d", "forward", CHECKOP_CUDA, 80, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
