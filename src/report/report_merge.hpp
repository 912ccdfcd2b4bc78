// SPDX-License-Identifier: Apache-2.0
// Reports of the shards of a run -> the report of the run.
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"

namespace checkop {

/// The JSON report of the whole run: that of a run that was not divided, but for "volatile", and for "command", which
/// is of the flags that the shards have in common. What only a run as a whole can tell is told here: see mark_vacuous()
/// and mark_insensitive(). Where machines differ, a candidate's device is that of its first check, and checks that ran
/// on another one say so. Throws InputError for reports that are not of one run, for a shard that is there twice, and,
/// unless `partial`, for one that is missing or did not come to its end; otherwise the merged report says that it is
/// not complete.
std::string merge_reports(const std::vector<JsonValue>& reports, bool partial);

}  // namespace checkop
