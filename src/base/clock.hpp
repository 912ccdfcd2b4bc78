// SPDX-License-Identifier: Apache-2.0
// Elapsed time.
#pragma once

#include <chrono>

namespace checkop {

using Clock = std::chrono::steady_clock;

inline double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace checkop
