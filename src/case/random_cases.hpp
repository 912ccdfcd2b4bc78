// SPDX-License-Identifier: Apache-2.0
// Cases of random sizes: they cover what a hand-written list of edge cases misses.
#pragma once

#include <cstdint>
#include <vector>

#include "case/sweep.hpp"

namespace checkop {

/// Limit on the product of a random case's extents: its gold takes well under a second.
inline constexpr int64_t kMostSpanned = int64_t{1} << 30;
/// Limit on the random cases of a run, over all operators: each check takes about 2 KiB.
inline constexpr int64_t kMostRandomCases = 2'000'000;

/// Appends `count` cases of the sweep's operator. Each case has one of the sweep's passes, dtypes, sets of optional
/// inputs and given sizes; all other sizes are drawn, and so are the seeds. A size's number of binary digits is
/// distributed uniformly; many sizes equal another size of the case, or lie at or next to a multiple of 8 to 256. The
/// same `seed` draws the same cases, except on machines with a different exp2(). Throws the last
/// draw's InputError when ten thousand draws in a row give no valid case.
void draw_cases(const Sweep& sweep, int64_t count, uint64_t seed, std::vector<Case>& cases);

/// Limit on the inputs and outputs of a case of draw_model_cases().
inline constexpr int64_t kMostModelBytes = int64_t{4} << 30;

/// Appends `count` cases of the sweep's operator with sizes that models have, for timing. Each case has the sizes and
/// attributes of one of sweep.presets; in one case of four, its sizes other than 1 are up to a quarter smaller or
/// larger, at multiples of 8. Presets do not give the number of rows: the operator's last row dimension has 1 to 8192,
/// uniform in the logarithm. Of attention, 1 to 8 sequences have 64 to 8192 queries and as many keys, at most 16384 in
/// all. Given sizes stay. The same `seed` draws the same cases.
/// Throws like draw_cases().
void draw_model_cases(const Sweep& sweep, int64_t count, uint64_t seed, std::vector<Case>& cases);

}  // namespace checkop
