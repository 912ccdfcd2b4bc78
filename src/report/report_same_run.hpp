// SPDX-License-Identifier: Apache-2.0
// Whether reports are those of all shards of one run.
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

/// In the order of their shards. Throws InputError unless they are of one run and each of another shard: the same
/// version, contract, flags, devices, plugins and list of checks.
std::vector<ShardReport> read_shards(const std::vector<JsonValue>& reports);

/// Sentences about shards that are missing or did not come to their end. Throws InputError for the first unless
/// `partial`.
std::vector<std::string> find_gaps(const std::vector<ShardReport>& shards, bool partial);

}  // namespace checkop
