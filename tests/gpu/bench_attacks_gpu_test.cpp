// SPDX-License-Identifier: Apache-2.0
// Attacks on the times of a GPU, through the whole program: none is timed as if it did less than it does, and honest
// candidates that use the same features keep the time that events give. Needs a CUDA device on which nothing else runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/attacks.hpp"
#include "support/built.hpp"
#include "support/process.hpp"

namespace checkop::bench_attacks_gpu_test {
namespace {

using namespace attacks_test;

constexpr double kWorkMs = 0.2;
constexpr double kTolerance = 0.1;

/// The records of candidates that were timed in turns.
std::map<std::string, json> time(const std::vector<std::string>& names, const std::string& flags = "--timing burst") {
  const ProcessResult run = run_program(fmt::format(
      "bench --op matmul --batch 1 --seq 3 --k-dim 8 --n-dim 16 --device cuda --dtype fp32 --plugin "
      "{0}/gpu_bench_attacks.so --plugin {0}/gpu_bench_honest.so --plugin {0}/gpu_attacks.so --candidate {1} {2} "
      "--json",
      kPluginFolder, joined(names), flags));
  std::map<std::string, json> records;
  std::istringstream lines(run.text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("{")) continue;
    const json record = json::parse(line);
    records[record.at("candidate").get<std::string>()] = record;
  }
  EXPECT_EQ(records.size(), names.size()) << run.text;
  return records;
}

double median_of(const json& record) { return record.value("ms_median", 0.0); }

void expect_outcome(const Attack& attack, const std::map<std::string, json>& records) {
  for (const char* honest : {"honest_timed", "honest_short"}) {
    ASSERT_TRUE(records.contains(honest)) << attack.name;
    EXPECT_EQ(records.at(honest).at("status"), "ok") << "beside " << attack.name << ": " << records.at(honest).dump();
  }
  ASSERT_TRUE(records.contains(attack.name)) << attack.name;
  const json& record = records.at(attack.name);
  const auto status = record.at("status").get<std::string>();
  const std::string shown = record.dump();
  if (status != "ok") {
    EXPECT_EQ(std::ranges::count(attack.outcomes, status), 1) << attack.name << ": " << shown;
    EXPECT_FALSE(record.contains("ms_median")) << shown;
    EXPECT_NE(record.value("message", ""), "") << shown;
  } else if (attack.outcomes.front() == "the time of its work") {
    EXPECT_GE(median_of(record), (1 - kTolerance) * kWorkMs) << shown;
  } else {
    ASSERT_EQ(attack.outcomes.front(), "half the time of its work, or more") << attack.name << ": " << shown;
    EXPECT_GE(median_of(record), median_of(records.at("honest_short")) / 2) << shown;
  }
}

// These two leave work that meets whatever is timed next, so each is timed beside the honest ones alone; the others
// have one run, since processes take seconds to start.
TEST(GpuBenchAttacks, NoneHasATimeThatItsWorkDoesNotTake) {
  const std::vector<std::string> leave_work{"detached_thread", "leaves_work_for_the_rival"};
  const std::vector<std::string> names = names_of(gpu_bench_attacks());
  for (const std::string& name : leave_work) ASSERT_EQ(std::ranges::count(names, name), 1) << name;
  std::vector<std::string> together{"honest_timed", "honest_short"};
  for (const Attack& attack : gpu_bench_attacks()) {
    if (std::ranges::count(leave_work, attack.name) == 0) together.push_back(attack.name);
  }
  const auto records = time(together);
  for (const Attack& attack : gpu_bench_attacks()) {
    const bool is_alone = std::ranges::count(leave_work, attack.name) == 1;
    expect_outcome(attack, is_alone ? time({"honest_timed", "honest_short", attack.name}) : records);
  }
}

TEST(GpuBenchAttacks, WhoLeavesWorkRunningIsToldSo) {
  const auto records = time({"leaves_work_for_the_rival"});
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records.begin()->second.value("message", ""),
            "its work on the device goes on after it said that all is done");
}

TEST(GpuBenchAttacks, HonestOnesKeepTheTimeThatEventsGive) {
  for (const auto& [name, record] : time(gpu_bench_honest())) {
    const std::string shown = record.dump();
    ASSERT_EQ(record.at("status"), "ok") << shown;
    EXPECT_FALSE(record.contains("overruled")) << shown;
    const bool has_work = name != "honest_short" && name != "honest_cached_maps";
    EXPECT_GE(median_of(record), has_work ? kWorkMs : 0) << shown;
    EXPECT_LE(median_of(record), (1 + kTolerance) * kWorkMs + 0.02) << shown;
  }
}

// Shows that the attack works: with --no-isolate it reaches the clock.
TEST(GpuBenchAttacks, PatchedClockSucceedsWhereNothingIsDefended) {
  const auto records = time({"patches_event_elapsed"}, "--timing burst --no-isolate");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_LT(median_of(records.begin()->second), kWorkMs / 10) << records.begin()->second.dump();
}

// Launches back to back are timed by the judge's clock alone.
TEST(GpuBenchAttacks, SustainedTimesAreTheJudges) {
  const auto records = time({"honest_timed", "patches_event_elapsed", "claims_zero_ms"}, "--timing sustained");
  for (const auto& [name, record] : records)
    EXPECT_GE(median_of(record), (1 - kTolerance) * kWorkMs) << name << ": " << record.dump();
}

}  // namespace
}  // namespace checkop::bench_attacks_gpu_test
