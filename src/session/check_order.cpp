// SPDX-License-Identifier: Apache-2.0
// Shuffles checks, and divides cases among run shards.
#include "session/check_order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>

#include "base/text.hpp"

namespace checkop {
namespace {

/// A digest over all checks of the run: candidate, device and case with its data.
std::string digest_of(const Selection& selection, const RunOptions& options) {
  std::string all;
  for (const Check& check : selection.checks) {
    const bool generated = options.inputs_file.empty();  // a case from files has no flags of its own
    all += fmt::format("{} {} {} {}\n", check_name(check), check.candidate.device, check.candidate.has_kernel,
                       generated ? case_flags(check.c) : "");
  }
  return fnv1a_hex(all);
}

template <class T>
void add_once(std::vector<T>& list, T item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(std::move(item));
}

}  // namespace

double cost_of(const Check& check) {
  constexpr double kSmall = 1 << 20;
  return kSmall + static_cast<double>(tensor_bytes(check.c));
}

void shuffle_checks(std::vector<Check>& checks, uint64_t seed) {
  std::mt19937_64 random(seed);
  // Not std::shuffle, whose order differs between libraries. The modulo's bias of about 2^-50 does not matter.
  const auto mix = [&](auto& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random() % i]);
  };
  std::vector<std::vector<Check>> groups;
  for (Check& check : checks) {
    const auto same = [&](const std::vector<Check>& others) {
      const ChosenCandidate& other = others.front().candidate;
      return other.name == check.candidate.name && other.device == check.candidate.device;
    };
    auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) group = groups.emplace(groups.end());
    group->push_back(std::move(check));
  }
  checks.clear();
  mix(groups);
  for (std::vector<Check>& group : groups) {
    mix(group);
    std::move(group.begin(), group.end(), std::back_inserter(checks));
  }
}

void deal_cases(std::vector<Check>& checks, int64_t index, int64_t total) {
  std::map<size_t, double> costs;
  for (const Check& check : checks) costs[check.case_number] += cost_of(check);
  std::vector<std::pair<size_t, double>> cases(costs.begin(), costs.end());
  std::stable_sort(cases.begin(), cases.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::map<size_t, bool> here;
  for (size_t i = 0; i < cases.size(); ++i) here[cases[i].first] = static_cast<int64_t>(i) % total == index;
  for (Check& check : checks) check.here = here[check.case_number];
}

RunShard shard_of(const RunOptions& options, const Selection& selection) {
  RunShard shard;
  shard.index = options.shard_index.value();
  shard.total = options.total_shards.value();
  shard.checks = std::ssize(selection.checks);
  shard.digest = digest_of(selection, options);
  for (const Check& check : selection.checks) {
    add_once(shard.devices, selection.device_of(check));
    const ChosenCandidate& candidate = check.candidate;
    if (candidate.has_kernel) add_once(shard.plugins, RunShard::Plugin{candidate.plugin_path, candidate.plugin_digest});
  }
  shard.arguments = options.shard_flags;
  std::vector<std::string> words{"check_operator"};
  words.insert(words.end(), shard.arguments.begin(), shard.arguments.end());
  shard.command = quote_command(words);
  return shard;
}

}  // namespace checkop
