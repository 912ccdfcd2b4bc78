// SPDX-License-Identifier: Apache-2.0
// quant_fp8_block / native: CPU; every block of 128 columns by itself, every operation in fp32.
//   amax = max(largest |x| of a block, eps)
//   factor_first 0: scale = amax/448, with pow2 the power of two from it on;  codes = e4m3(x (1/scale))
//   factor_first 1: factor = 448/amax, with pow2 the power of two up to it, 1 for an amax of 0 or infinity;
//                   scale = 1/factor;  codes = e4m3(x factor)
//   x: [..., hidden] fp32|bf16|fp16   codes: [..., hidden] e4m3   scales: [..., hidden/128 rounded up] fp32
//   Limits: contiguous.   Expected error: none.
#include "cpu/codes.hpp"

namespace {

constexpr int64_t kWidth = 128;
constexpr float kLargest = 448;

struct Scaling {
  explicit Scaling(const checkop_call& c)
      : is_factor_first(native::attribute(c, "factor_first") != 0),
        is_power(native::attribute(c, "pow2") != 0),
        eps(native::attribute(c, "eps")) {}

  /// Stores the scale of a block with this amax, and returns what its numbers are multiplied by.
  float factor(float amax, float& scale) const {
    amax = std::max(amax, eps);
    if (!is_factor_first) {
      scale = amax / kLargest;
      if (is_power) {
        const uint32_t bits = std::bit_cast<uint32_t>(scale), exponent = (bits + 0x7fffffu) >> 23;
        scale = std::bit_cast<float>(std::clamp<uint32_t>(exponent, 1, 254) << 23);
      }
      return 1 / scale;
    }
    float factor = kLargest / amax;
    if (amax == 0 || std::isinf(amax)) factor = 1;
    factor = std::min(factor, std::numeric_limits<float>::max());
    if (is_power) factor = std::bit_cast<float>(std::bit_cast<uint32_t>(factor) >> 23 << 23);
    scale = 1 / factor;
    return factor;
  }

  bool is_factor_first, is_power;
  float eps;
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 1, 2);
    const native::Quantisation q(c, kWidth, CHECKOP_E4M3, 1, CHECKOP_F32);
    const Scaling scaling(c);
    auto* const codes = static_cast<uint8_t*>(c.outputs[0].data);
    auto* const scales = static_cast<float*>(c.outputs[1].data);
    q.for_blocks([&](const float* x, int64_t n, int64_t row, int64_t block) {
      const float factor = scaling.factor(native::amax(x, n), scales[row * q.blocks() + block]);
      uint8_t* const to = codes + row * q.columns.value + block * kWidth;
      for (int64_t i = 0; i < n; ++i) to[i] = native::to_e4m3(x[i] * factor);
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "quant_fp8_block", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
