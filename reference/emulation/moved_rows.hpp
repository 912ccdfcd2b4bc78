// SPDX-License-Identifier: Apache-2.0
// Numbers at the ends of their dtype's range on their way through a kernel that only moves them.
#pragma once

#include <algorithm>
#include <cmath>

#include "emulation/common.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kSubnormalsFlushed{"subnormals_flushed", "subnormal numbers become 0"};
inline constexpr FaultSpec kRangeOfHalf{"range_of_half", "rows are clamped to the range of fp16", "accuracy",
                                        "fp32 bf16"};

/// `rows`, of dtype `dtype`, as the emulated kernel reads them.
inline Matrix through_kernel(const Arithmetic& a, DType dtype, Matrix rows) {
  if (a.has(kSubnormalsFlushed.name)) {
    const float least = std::ldexp(1.0F, info(dtype).min_exponent);
    for (float& x : rows.values) x = std::abs(x) < least ? 0 : x;
  }
  if (a.has(kRangeOfHalf.name))
    for (float& x : rows.values) x = std::clamp(x, -65504.0F, 65504.0F);
  return rows;
}

}  // namespace checkop::emulation
