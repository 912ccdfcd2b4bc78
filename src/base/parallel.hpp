// SPDX-License-Identifier: Apache-2.0
// Work over an index range on several threads. Threads live for one call only, so that a fork in between is safe.
#pragma once

#include <cstdint>
#include <functional>

namespace checkop {

/// Runs body(i) for every i in [0, n) on at most `threads` threads, in any order; rethrows the first exception.
/// Throws Interrupted once a signal came that note_interruptions() waits for.
void parallel_for(unsigned threads, int64_t n, const std::function<void(int64_t)>& body);

}  // namespace checkop
