// SPDX-License-Identifier: Apache-2.0
// quant_nvfp4 / native: CPU; every block of 16 columns by itself, every operation in fp32.
//   S = 2688/amax, 1 where amax is 0, the largest number where it would be infinite
//   scale = e4m3(min((largest |x| of a block) (S (1/6)), 448));  codes = e2m1(x min(1/(scale (1/S)), largest number))
//   x: [..., hidden] fp32|bf16|fp16   amax: [1] fp32   scales: [..., hidden/16 rounded up] e4m3
//   codes: [..., hidden/2 rounded up] e2m1x2, an even column in the lower half of a byte
//   Limits: contiguous.   Expected error: none.
#include "cpu/codes.hpp"

namespace {

constexpr int64_t kWidth = 16;
constexpr float kMost = std::numeric_limits<float>::max();

/// e2m1 of x: to nearest, ties to even, at most 6.
uint8_t to_e2m1(float x) {
  const float size = std::abs(x);
  const int code = static_cast<int>(size > 0.25f) + static_cast<int>(size >= 0.75f) + static_cast<int>(size > 1.25f) +
                   static_cast<int>(size >= 1.75f) + static_cast<int>(size > 2.5f) + static_cast<int>(size >= 3.5f) +
                   static_cast<int>(size > 5.0f);
  return static_cast<uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 2);
    const native::Quantisation q(c, kWidth, CHECKOP_E2M1X2, 2, CHECKOP_E4M3);
    native::Extent one{"size", 1};
    native::check_list(c.inputs[1], "amax", CHECKOP_F32, one);
    const float amax = *static_cast<const float*>(c.inputs[1].data);
    native::exact_attribute(c, "near");  // of the data alone
    const float of_tensor = amax == 0 ? 1 : std::min(2688 / amax, kMost);
    const float sixth = of_tensor * (1.0f / 6), inverse = 1 / of_tensor;
    auto* const codes = static_cast<uint8_t*>(c.outputs[0].data);
    auto* const scales = static_cast<uint8_t*>(c.outputs[1].data);
    const int64_t bytes = (q.columns.value + 1) / 2;
    q.for_blocks([&](const float* x, int64_t n, int64_t row, int64_t block) {
      const uint8_t scale = native::to_e4m3(std::min(native::amax(x, n) * sixth, 448.0f));
      scales[row * q.blocks() + block] = scale;
      const float factor = std::min(1 / (native::from_e4m3(scale) * inverse), kMost);
      uint8_t* const to = codes + row * bytes + block * kWidth / 2;
      for (int64_t i = 0; i < n; i += 2) {
        const uint8_t high = i + 1 < n ? to_e2m1(x[i + 1] * factor) : 0;
        to[i / 2] = static_cast<uint8_t>(to_e2m1(x[i] * factor) | high << 4);
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "quant_nvfp4", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
