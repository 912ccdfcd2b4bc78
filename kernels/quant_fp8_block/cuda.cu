// SPDX-License-Identifier: Apache-2.0
// quant_fp8_block / cuda: a warp per block of 128 columns, four columns a lane; portable CUDA.
//   amax = max(largest |x| of a block, eps)
//   factor_first 0: scale = amax/448, with pow2 the power of two from it on;  codes = e4m3(x (1/scale))
//   factor_first 1: factor = 448/amax, with pow2 the power of two up to it, 1 for an amax of 0 or infinity;
//                   scale = 1/factor;  codes = e4m3(x factor)
//   x: [..., hidden] f32|bf16|f16   codes: [..., hidden] e4m3   scales: [..., hidden/128 rounded up] f32
//   Limits: contiguous.   No workspace.   Expected error: none, every operation is rounded as IEEE has it.
#include "cuda/quantized.cuh"

namespace checkop::kernels {
namespace {

struct Fp8Block {
  static constexpr int kWidth = 128;
  static constexpr float kLargest = 448.0f, kMost = std::numeric_limits<float>::max();

  uint8_t* codes;
  float* scales;
  float eps;
  bool factor_first, is_power;

  __device__ float begin(float amax, bool leads, int64_t place) const {
    amax = fmaxf(amax, eps);
    float scale, factor;
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
    if (leads) scales[place] = scale;
    return factor;
  }
  __device__ void store(const float (&q)[kLaneColumns], int64_t row, int64_t first, int n,
                        const QuantShape& shape) const {
    store_e4m3(codes, q, row, first, n, shape);
  }
};

checkop_status forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(1, 2).failed()) return check.status();
  double eps = 0, factor_first = 0, is_power = 0;
  if (auto status = read_attribute(call, "eps", eps)) return status;
  if (auto status = read_attribute(call, "factor_first", factor_first)) return status;
  if (auto status = read_attribute(call, "pow2", is_power)) return status;
  const Fp8Block op{static_cast<uint8_t*>(call->outputs[0].data), static_cast<float*>(call->outputs[1].data),
                    static_cast<float>(eps), factor_first != 0, is_power != 0};
  return launch_quantize(call, 1, CHECKOP_E4M3, 1, CHECKOP_F32, op, "launch quant_fp8_block");
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "quant_fp8_block", "forward", CHECKOP_CUDA, 80, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
