// SPDX-License-Identifier: Apache-2.0
// Exponentials as powers of 2, computed by the hardware.
// Facts: PTX ISA 9.0, "ex2".
#pragma once

namespace checkop::kernels::sm90 {

constexpr float kLog2E = 0x1.715476p+0f;

/// 2^x: error up to 2 ulp, 0 below 2^-126.
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace checkop::kernels::sm90
