// SPDX-License-Identifier: Apache-2.0
// Cases of random sizes: they cover what a hand-written list of edge cases misses.
#pragma once

#include <cstdint>
#include <vector>

#include "case/sweep.hpp"

namespace checkop {

/// Limit on the product of a random case's extents: its gold takes well under a second.
inline constexpr int64_t kMostSpanned = int64_t{1} << 30;
/// Of one run, of all operators together: their checks take about 2 KiB each.
inline constexpr int64_t kMostRandomCases = 2'000'000;

/// Appends `count` cases of the sweep's operator. Each case has one of the sweep's passes, dtypes, sets of optional
/// inputs and given sizes; all other sizes are drawn, and so are the seeds. A size's number of binary digits is
/// distributed uniformly; many sizes equal another size of the case, or lie at or next to a multiple of 8 to 256. The
/// same `seed` draws the same cases, except on machines with a different exp2(). Throws the last
/// draw's InputError when ten thousand draws in a row give no valid case.
void draw_cases(const Sweep& sweep, int64_t count, uint64_t seed, std::vector<Case>& cases);

}  // namespace checkop
