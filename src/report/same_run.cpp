// SPDX-License-Identifier: Apache-2.0
// Compares the members that all shards of a run must share.
#include "report/same_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "report/reader.hpp"

namespace checkop {
namespace {

constexpr const char* kSameRun = "give reports of the shards of one run";

/// The first of `flags` that is not in `others`; "" if all are.
std::string first_missing(const std::vector<std::string>& flags, const std::vector<std::string>& others) {
  for (const std::string& flag : flags) {
    if (std::find(others.begin(), others.end(), flag) == others.end()) return flag;
  }
  return "";
}

/// Throws InputError if the values of `what` differ.
void require_same(const ShardReport& first, const ShardReport& other, const std::string& what,
                  const std::string& of_first, const std::string& of_other) {
  if (of_first == of_other) return;
  throw InputError(other.json.file(),
                   fmt::format("its {} is {}, that of {} is {}", what, of_other, first.json.file(), of_first),
                   kSameRun);
}

/// The architecture key of each kind of device that candidates ran on.
std::map<std::string, std::string> architectures(const JsonValue& report) {
  std::map<std::string, std::string> found;
  for (const JsonValue& candidate : report.at("candidates").items()) {
    const JsonValue device = candidate.at("device");
    const std::string key = device.at("arch_key").string();
    found.emplace(device.at("kind").string(), key.empty() ? "none" : key);
  }
  return found;
}

void require_same_run(const ShardReport& first, const ShardReport& other) {
  const auto text = [](const ShardReport& report, const char* part, const char* key) {
    return report.json.at(part).at(key).string();
  };
  const auto same = [&](const std::string& what, const std::string& of_first, const std::string& of_other) {
    require_same(first, other, what, of_first, of_other);
  };
  same("version of check_operator", text(first, "environment", "version"), text(other, "environment", "version"));
  same("contract", text(first, "contract", "hash"), text(other, "contract", "hash"));
  for (const auto& [with, without] : {std::pair(&other, &first), {&first, &other}}) {
    const std::string flag = first_missing(with->shard.arguments, without->shard.arguments);
    if (flag.empty()) continue;
    throw InputError(with->json.file(), fmt::format("was run with {}, {} was not", flag, without->json.file()),
                     kSameRun);
  }
  same("number of shards", std::to_string(first.shard.total), std::to_string(other.shard.total));
  same("list of devices", fmt::format("{}", fmt::join(first.shard.devices, ", ")),
       fmt::format("{}", fmt::join(other.shard.devices, ", ")));
  const auto own = architectures(other.json);
  for (const auto& [kind, arch] : architectures(first.json)) {
    if (const auto found = own.find(kind); found != own.end()) same(kind + " architecture", arch, found->second);
  }
  for (size_t i = 0; i < std::min(first.shard.plugins.size(), other.shard.plugins.size()); ++i) {
    const RunShard::Plugin &a = first.shard.plugins[i], &b = other.shard.plugins[i];
    same(fmt::format("plugin {}, by its digest,", b.path), a.digest, b.digest);
  }
  same("list of checks, by its digest,", first.shard.digest, other.shard.digest);
}

}  // namespace

std::vector<ShardReport> read_shards(const std::vector<JsonValue>& reports) {
  std::vector<ShardReport> shards;
  for (const JsonValue& json : reports) {
    const ReadReport report = read_report(json);
    if (!report.shard)
      throw InputError(json.file(), "is the report of a whole run, not of a shard",
                       "give reports that --shard-index and --total-shards made");
    shards.push_back({json, *report.shard, report.complete, report.max_skip});
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    require_same_run(shards.front(), shards[i]);
    for (size_t k = 0; k < i; ++k) {
      if (shards[k].shard.index == shards[i].shard.index)
        throw InputError(shards[i].json.file(),
                         fmt::format("is of {}, and so is {}", shards[i].shard.name(), shards[k].json.file()),
                         "give each shard once");
    }
  }
  std::sort(shards.begin(), shards.end(),
            [](const ShardReport& a, const ShardReport& b) { return a.shard.index < b.shard.index; });
  return shards;
}

std::vector<std::string> find_gaps(const std::vector<ShardReport>& shards, bool partial) {
  constexpr size_t kMostNamed = 10;
  constexpr const char* kHint = "run it, or add --partial for a report that is not complete";
  std::vector<std::string> gaps;
  const int64_t total = shards.front().shard.total, missing = total - std::ssize(shards);
  if (missing > 0) {
    std::vector<int64_t> named;
    auto next = shards.begin();
    for (int64_t index = 0; index < total && named.size() < kMostNamed; ++index) {
      if (next != shards.end() && next->shard.index == index) {
        ++next;
      } else {
        named.push_back(index);
      }
    }
    gaps.push_back(fmt::format("{} of {} shards {} missing: {}{}", missing, total, missing == 1 ? "is" : "are",
                               fmt::join(named, ", "), std::ssize(named) < missing ? ", ..." : ""));
    if (!partial) throw InputError("report merge", gaps.back(), kHint);
  }
  for (const ShardReport& report : shards) {
    if (report.complete) continue;
    if (!partial) throw InputError(report.json.file(), report.shard.name() + " did not come to its end", kHint);
    gaps.push_back(fmt::format("{}: {} did not come to its end", report.json.file(), report.shard.name()));
  }
  return gaps;
}

}  // namespace checkop
