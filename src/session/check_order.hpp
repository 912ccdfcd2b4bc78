// SPDX-License-Identifier: Apache-2.0
// The order of a run's checks, and the division of a run among machines.
#pragma once

#include <cstdint>
#include <vector>

#include "report/report.hpp"
#include "session/run_options.hpp"
#include "session/selection.hpp"

namespace checkop {

/// What a check may cost, in any unit: small ones cost some time too.
double cost_of(const Check& check);

/// Another order of candidates, and of the checks of each, for every seed. Those of a candidate on a device stay
/// together: they share a worker.
void shuffle_checks(std::vector<Check>& checks, uint64_t seed);

/// Deals the cases of `checks` to `total` shards, the costliest first and one to each in turn, so that a size that
/// comes up again and again does not fall to the same shard every time. Marks the checks of shard `index` as here. All
/// checks of a case are of one shard, and every shard deals alike.
void deal_cases(std::vector<Check>& checks, int64_t index, int64_t total);

/// The part that --shard-index and --total-shards make of the run.
RunShard shard_of(const RunOptions& options, const Selection& selection);

}  // namespace checkop
