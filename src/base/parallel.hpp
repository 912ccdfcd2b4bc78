// SPDX-License-Identifier: Apache-2.0
// Parallel loops. Between calls their threads wait, so that a fork is safe there: a thread that is just waking holds at
// most the lock of their pool, and the child has a pool and threads of its own.
#pragma once

#include <cstdint>
#include <functional>

namespace checkop {

/// Runs body(i) for every i in [0, n) on at most `threads` threads, in any order; rethrows the first exception. Throws
/// Interrupted once note_interruptions() recorded a signal.
void parallel_for(unsigned threads, int64_t n, const std::function<void(int64_t)>& body);

}  // namespace checkop
