// SPDX-License-Identifier: Apache-2.0
// Writes and reads the members of a run shard.
#include "report/run_shard.hpp"

#include <nlohmann/json.hpp>

#include "report/vacuity.hpp"

namespace checkop {

using Json = nlohmann::json;

Json shard_json(const RunShard& shard) {
  Json plugins = Json::array();
  for (const RunShard::Plugin& plugin : shard.plugins)
    plugins.push_back({{"path", plugin.path}, {"digest", plugin.digest}});
  return {{"index", shard.index},         {"total", shard.total},     {"checks", shard.checks},
          {"digest", shard.digest},       {"devices", shard.devices}, {"plugins", plugins},
          {"arguments", shard.arguments}, {"command", shard.command}};
}

std::optional<RunShard> read_shard(const JsonValue& report) {
  const auto json = report.find("shard");
  if (!json) return {};
  RunShard shard;
  shard.total = json->at("total").integer(1);
  shard.index = json->at("index").integer(0, shard.total - 1);
  shard.checks = json->at("checks").integer(0);
  shard.digest = json->at("digest").string();
  for (const JsonValue& device : json->at("devices").items()) shard.devices.push_back(device.string());
  for (const JsonValue& plugin : json->at("plugins").items())
    shard.plugins.push_back({plugin.at("path").string(), plugin.at("digest").string()});
  for (const JsonValue& argument : json->at("arguments").items()) shard.arguments.push_back(argument.string());
  shard.command = json->at("command").string();
  return shard;
}

Json whole_json(const CaseRecord& record) {
  const CheckFacts facts = facts_of(record);
  Json names = Json::array();
  for (const OutputFacts& output : facts.outputs) {
    if (output.shown) names.push_back(output.name);
  }
  return {{"index", record.whole_index}, {"has_rows", facts.has_rows}, {"invariance_of", names}};
}

}  // namespace checkop
