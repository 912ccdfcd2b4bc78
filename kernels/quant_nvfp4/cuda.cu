// SPDX-License-Identifier: Apache-2.0
// quant_nvfp4 / cuda: four lanes per block of 16 columns, four columns a lane; portable CUDA.
//   S = 2688/amax, 1 where amax is 0, the largest number where it would be infinite
//   scale = e4m3(min((largest |x| of a block) (S (1/6)), 448));  codes = e2m1(x min(1/(scale (1/S)), largest number))
//   x: [..., hidden] f32|bf16|f16   amax: [1] f32   scales: [..., hidden/16 rounded up] e4m3
//   codes: [..., hidden/2 rounded up] e2m1x2, an even column in the lower half of a byte
//   Limits: contiguous.   No workspace.   Expected error: none, every operation is rounded as IEEE has it.
#include "cuda/quantized.cuh"

namespace checkop::kernels {
namespace {

/// e2m1 of x: to nearest, ties to even, at most 6.
__device__ uint32_t to_e2m1(float x) {
  const float size = fabsf(x);
  const int code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) +
                   (size >= 3.5f) + (size > 5.0f);
  return static_cast<uint32_t>(code) | (__float_as_uint(x) >> 28 & 8u);
}

struct Nvfp4 {
  static constexpr int kWidth = 16;
  static constexpr float kMost = std::numeric_limits<float>::max();

  uint8_t *codes, *scales;
  const float* amax_of_tensor;

  __device__ float begin(float amax, bool leads, int64_t place) const {
    const float of_tensor = *amax_of_tensor;
    const float s = of_tensor == 0.0f ? 1.0f : fminf(__fdiv_rn(2688.0f, of_tensor), kMost);
    const uint8_t code = to_e4m3(fminf(amax * (s * (1.0f / 6.0f)), 448.0f));
    if (leads) scales[place] = code;
    const float scale = __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
    return fminf(__frcp_rn(scale * __frcp_rn(s)), kMost);
  }
  __device__ void store(const float (&q)[kLaneColumns], int64_t row, int64_t first, int n,
                        const QuantShape& shape) const {
    uint8_t* __restrict__ const to = codes + row * ceil_div(shape.columns, 2) + first / 2;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) word |= (i < n ? to_e2m1(q[i]) : 0u) << (4 * i);
    if (n == kLaneColumns && shape.aligned) {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(word);
      return;
    }
    to[0] = static_cast<uint8_t>(word);
    if (n > 2) to[1] = static_cast<uint8_t>(word >> 8);
  }
};

checkop_status forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(2, 2).failed()) return check.status();
  const checkop_tensor& amax = call->inputs[1];
  double near = 0;  // of the data alone
  if (auto status = read_attribute(call, "near", near)) return status;
  check.dtype(amax, "amax", CHECKOP_F32).shape(amax, "amax", amax, 0, {1});
  if (check.failed()) return check.status();
  const Nvfp4 op{static_cast<uint8_t*>(call->outputs[0].data), static_cast<uint8_t*>(call->outputs[1].data),
                 static_cast<const float*>(amax.data)};
  return launch_quantize(call, CHECKOP_E2M1X2, 2, CHECKOP_E4M3, op, "launch quant_nvfp4");
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "quant_nvfp4", "forward", CHECKOP_CUDA, 80, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
