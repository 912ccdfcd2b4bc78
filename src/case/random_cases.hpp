// SPDX-License-Identifier: Apache-2.0
// Cases of random sizes: what a list of edges that somebody thought of leaves out.
#pragma once

#include <cstdint>
#include <vector>

#include "case/sweep.hpp"

namespace checkop {

/// What a random case's extents may come to, multiplied: a gold takes well under a second.
inline constexpr int64_t kMostSpanned = int64_t{1} << 30;
/// Of one run, of all operators together: their checks take about 2 KiB each.
inline constexpr int64_t kMostRandomCases = 2'000'000;

/// Appends `count` cases of the sweep's operator. Each has one of the sweep's passes, dtypes, sets of optional inputs
/// and values of the sizes that are given, every other size drawn, and data of its own. A size is as likely to have 2
/// digits as 3 in base 2; many are equal to another one of the case, or lie at a multiple of 8 to 256 or one beside it.
/// The same `seed` draws the same cases, but for machines whose exp2() differ. Throws InputError when ten
/// thousand draws in a row make no case: the last one's reason.
void draw_cases(const Sweep& sweep, int64_t count, uint64_t seed, std::vector<Case>& cases);

}  // namespace checkop
