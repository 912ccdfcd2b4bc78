// SPDX-License-Identifier: Apache-2.0
// Checks that reports come from the shards of one run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "report/report.hpp"

namespace checkop {

struct ShardReport {
  JsonValue json;
  RunShard shard;
  bool complete = false;
  std::optional<int64_t> max_skip;
};

/// The reports in the order of their shards. Throws InputError if they are not of one run (version, contract, flags,
/// devices, plugins and list of checks must be equal), or if a shard appears twice.
std::vector<ShardReport> read_shards(const std::vector<JsonValue>& reports);

/// One sentence per missing or incomplete shard. Unless `partial`, throws InputError for the first.
std::vector<std::string> find_gaps(const std::vector<ShardReport>& shards, bool partial);

}  // namespace checkop
