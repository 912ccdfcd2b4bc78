// SPDX-License-Identifier: Apache-2.0
// Shared by the CPU candidates of quant_fp8_block and quant_fp8_block_2d: the scale of numbers that become e4m3 codes.
#pragma once

#include "cpu/codes.hpp"

namespace native {

constexpr int64_t kFp8Block = 128;
constexpr float kLargestE4m3 = 448;

struct Fp8Scaling {
  explicit Fp8Scaling(const checkop_call& c)
      : is_factor_first(attribute(c, "factor_first") != 0),
        is_power(attribute(c, "pow2") != 0),
        eps(attribute(c, "eps")) {}

  /// Returns what the numbers of a block with this amax are multiplied by; sets `scale`, the number that is stored.
  float factor(float amax, float& scale) const {
    amax = std::max(amax, eps);
    if (!is_factor_first) {
      scale = amax / kLargestE4m3;
      if (is_power) {
        const uint32_t bits = std::bit_cast<uint32_t>(scale), exponent = (bits + 0x7fffffu) >> 23;
        scale = std::bit_cast<float>(std::clamp<uint32_t>(exponent, 1, 254) << 23);
      }
      return 1 / scale;
    }
    float factor = kLargestE4m3 / amax;
    if (amax == 0 || std::isinf(amax)) factor = 1;
    factor = std::min(factor, std::numeric_limits<float>::max());
    if (is_power) factor = std::bit_cast<float>(std::bit_cast<uint32_t>(factor) >> 23 << 23);
    scale = 1 / factor;
    return factor;
  }

  bool is_factor_first, is_power;
  float eps;
};

}  // namespace native
