// SPDX-License-Identifier: Apache-2.0
// What the JSON report of a shard has on top of that of a whole run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "base/json.hpp"
#include "report/report.hpp"

namespace checkop {

/// The report's "shard".
nlohmann::json shard_json(const RunShard& shard);

/// Of `report`; nothing for the report of a whole run. Throws InputError.
std::optional<RunShard> read_shard(const JsonValue& report);

/// The "whole" of a case: what the report of the whole run needs to know of it and no other member tells.
nlohmann::json whole_json(const CaseRecord& record);

}  // namespace checkop
