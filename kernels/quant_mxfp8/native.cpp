// SPDX-License-Identifier: Apache-2.0
// quant_mxfp8 / native: CPU; every block of 32 columns by itself, its exponent from the bits of its amax.
//   round_up 1: scale = the least power of two that is at least amax (1/448);  0: the largest one up to amax, over 2^8
//   codes = e4m3(x/scale), at most 448
//   x: [..., hidden] fp32|bf16|fp16   codes: [..., hidden] e4m3   scales: [..., hidden/32 rounded up] e8m0
//   Limits: contiguous.   Expected error: none.
#include "cpu/codes.hpp"

namespace {

constexpr int64_t kWidth = 32;

/// The exponent of the scale plus 127: its e8m0 code.
uint8_t scale_code(float amax, bool rounds_up) {
  if (std::isinf(amax)) return 0xfe;
  const uint32_t bits = std::bit_cast<uint32_t>(rounds_up ? amax * (1.0f / 448) : amax);
  const uint32_t exponent = bits >> 23, fraction = bits & 0x7fffffu;
  if (!rounds_up) return static_cast<uint8_t>(exponent < 8 ? 0 : exponent - 8);
  // A subnormal number from 2^-127 down has code 0, one above it code 1.
  const bool above = fraction != 0 && !(exponent == 0 && fraction <= 0x400000u);
  return static_cast<uint8_t>(exponent + (above ? 1 : 0));
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 1, 2);
    const native::Quantisation q(c, kWidth, CHECKOP_E4M3, 1, CHECKOP_E8M0);
    const bool rounds_up = native::attribute(c, "round_up") != 0;
    auto* const codes = static_cast<uint8_t*>(c.outputs[0].data);
    auto* const scales = static_cast<uint8_t*>(c.outputs[1].data);
    q.for_blocks([&](const float* x, int64_t n, int64_t row, int64_t block) {
      const uint8_t code = scale_code(native::amax(x, n), rounds_up);
      scales[row * q.blocks() + block] = code;
      const float factor = std::ldexp(1.0f, 127 - code);
      uint8_t* const to = codes + row * q.columns.value + block * kWidth;
      for (int64_t i = 0; i < n; ++i) to[i] = native::to_e4m3(x[i] * factor);
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "quant_mxfp8", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
