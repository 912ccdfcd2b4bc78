// SPDX-License-Identifier: Apache-2.0
// Members that the JSON report has only for a run shard.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "base/json.hpp"
#include "report/report.hpp"

namespace checkop {

/// The member "shard" of the report.
nlohmann::json shard_json(const RunShard& shard);

/// Reads the member "shard"; nullopt for the report of a whole run. Throws InputError.
std::optional<RunShard> read_shard(const JsonValue& report);

/// The member "whole" of a case: data that only the merged report needs.
nlohmann::json whole_json(const CaseRecord& record);

}  // namespace checkop
