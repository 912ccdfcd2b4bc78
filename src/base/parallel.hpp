// SPDX-License-Identifier: Apache-2.0
// Parallel loops. Threads live for one call only, so that a fork between calls is safe.
#pragma once

#include <cstdint>
#include <functional>

namespace checkop {

/// Runs body(i) for every i in [0, n) on at most `threads` threads, in any order; rethrows the first exception. Throws
/// Interrupted once note_interruptions() recorded a signal.
void parallel_for(unsigned threads, int64_t n, const std::function<void(int64_t)>& body);

}  // namespace checkop
