// SPDX-License-Identifier: Apache-2.0
// Merges the reports of run shards into the report of the whole run.
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"

namespace checkop {

/// The JSON report of the whole run. Equal to that of an undivided run, except for "volatile", and "command", which has
/// the flags that the shards share. Applies mark_vacuous() and mark_insensitive(), which need the whole run. If
/// machines differ, a candidate's device is that of its first check, and checks on other devices name theirs. Throws
/// InputError if the reports are not of one run or if a shard appears twice. Also throws if a shard is missing or
/// incomplete; with `partial` the merged report then says that it is not complete.
std::string merge_reports(const std::vector<JsonValue>& reports, bool partial);

}  // namespace checkop
