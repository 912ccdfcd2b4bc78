// SPDX-License-Identifier: Apache-2.0
// quant_mxfp8 / cuda: eight lanes per block of 32 columns, four columns a lane; portable CUDA.
//   round_up 1: scale = the least power of two that is at least amax (1/448);  0: the largest one up to amax, over 2^8
//   codes = e4m3(x/scale), at most 448
//   x: [..., hidden] f32|bf16|f16   codes: [..., hidden] e4m3   scales: [..., hidden/32 rounded up] e8m0
//   Limits: contiguous.   No workspace.   Expected error: none.
#include "cuda/quantized.cuh"

namespace checkop::kernels {
namespace {

struct Mxfp8 {
  static constexpr int kWidth = 32;

  uint8_t *codes, *scales;
  bool rounds_up;

  /// The exponent of the scale plus 127.
  __device__ uint32_t code_of(float amax) const {
    if (isinf(amax)) return 254u;
    const uint32_t bits = __float_as_uint(rounds_up ? amax * (1.0f / 448.0f) : amax);
    const uint32_t exponent = bits >> 23, fraction = bits & 0x7fffffu;
    if (!rounds_up) return exponent < 8u ? 0u : exponent - 8u;
    const bool is_least = exponent == 0u && fraction <= 0x400000u;  // up to 2^-127
    return exponent + (fraction != 0u && !is_least ? 1u : 0u);
  }
  __device__ float begin(float amax, bool leads, int64_t place) const {
    const uint32_t code = code_of(amax);
    if (leads) scales[place] = static_cast<uint8_t>(code);
    return code == 254u ? 0x1p-127f : __uint_as_float((254u - code) << 23);  // the former is subnormal
  }
  __device__ void store(const float (&q)[kLaneColumns], int64_t row, int64_t first, int n,
                        const QuantShape& shape) const {
    store_e4m3(codes, q, row, first, n, shape);
  }
};

checkop_status forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(1, 2).failed()) return check.status();
  double rounds_up = 0;
  if (auto status = read_attribute(call, "round_up", rounds_up)) return status;
  const Mxfp8 op{static_cast<uint8_t*>(call->outputs[0].data), static_cast<uint8_t*>(call->outputs[1].data),
                 rounds_up != 0};
  return launch_quantize(call, CHECKOP_E4M3, 1, CHECKOP_E8M0, op, "launch quant_mxfp8");
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "quant_mxfp8", "forward", CHECKOP_CUDA, 80, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
