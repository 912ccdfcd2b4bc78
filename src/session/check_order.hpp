// SPDX-License-Identifier: Apache-2.0
// The order of a run's checks, and the division of a run into run shards.
#pragma once

#include <cstdint>
#include <vector>

#include "report/report.hpp"
#include "session/run_options.hpp"
#include "session/selection.hpp"

namespace checkop {

/// Expected cost of a check, in any unit. Small checks cost some time too.
double cost_of(const Check& check);

/// Shuffles the candidates, and the checks of each candidate, by `seed`. Checks of one candidate on one device stay
/// together, because they share a worker.
void shuffle_checks(std::vector<Check>& checks, uint64_t seed);

/// Assigns the cases of `checks` to `total` run shards in turns, the costliest case first, so that a frequently
/// repeated size is spread over shards. Marks the checks of shard `index` as here. All checks of a case are in the same
/// shard. Every shard computes the same assignment.
void deal_cases(std::vector<Check>& checks, int64_t index, int64_t total);

/// The run shard that --shard-index and --total-shards select.
RunShard shard_of(const RunOptions& options, const Selection& selection);

}  // namespace checkop
