// SPDX-License-Identifier: Apache-2.0
// Candidates that try to get a time which they have not earned, through the whole program: each has none, and the
// record says why. docs/adversary.md has the same table.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/paths.hpp"
#include "support/process.hpp"
#include "support/run_helper.hpp"

namespace checkop::bench_cheats_test {
namespace {

using nlohmann::json;

struct Cheat {
  std::string name;
  std::vector<std::string> reasons;  ///< any one of them begins the message
  std::string timing = "burst,sustained";
};

const std::vector<Cheat>& cheats() {
  static const std::vector<Cheat> all{
      {"always_wrong", {"accuracy"}},
      {"computes_first", {"accuracy", "nonfinite"}, "burst"},
      {"remembers_by_address", {"accuracy"}, "burst"},
      {"remembers_by_address", {"determinism"}, "sustained"},
      {"finds_its_answer", {"determinism"}, "sustained"},
      {"looks_at_one_element", {"accuracy"}, "burst"},
      {"works_in_a_thread", {"accuracy", "nonfinite", "guard"}, "burst"},
      {"works_in_a_thread", {"accuracy", "nonfinite", "guard", "determinism"}, "sustained"},
      {"wrong_when_timed", {"accuracy"}, "burst"},
      {"wrong_when_timed", {"determinism"}, "sustained"},
      {"bench_writes_input", {"input"}},
      {"bench_writes_slack", {"guard"}},
      {"changes_bits", {"determinism"}},
      {"changes_results", {"accuracy", "determinism"}},
  };
  return all;
}

ProcessResult bench(const std::string& candidates, const std::string& flags) {
  return run_program(
      fmt::format("bench --op matmul --batch 1 --seq 3 --k-dim 8 --n-dim 16 --device cpu --plugin {} "
                  "--candidate {} {} --json",
                  test_plugin("bench_cheats"), candidates, flags));
}

std::vector<json> records_of(const ProcessResult& result) {
  std::vector<json> records;
  std::istringstream lines(result.text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("{")) records.push_back(json::parse(line));
  return records;
}

TEST(BenchCheats, HaveNoTimeAndTheRecordSaysWhy) {
  for (const Cheat& cheat : cheats()) {
    const ProcessResult result = bench(cheat.name, "--timing " + cheat.timing);
    EXPECT_EQ(result.code, 1) << cheat.name << ": " << result.text;
    const std::vector<json> records = records_of(result);
    ASSERT_EQ(records.size(), 1u) << cheat.name << ": " << result.text;
    EXPECT_EQ(records[0].at("status"), "failed") << cheat.name;
    EXPECT_FALSE(records[0].contains("ms_median")) << cheat.name;
    const auto message = records[0].value("message", "");
    const auto begins = [&](const std::string& kind) { return message.starts_with(kind + ": "); };
    EXPECT_TRUE(std::any_of(cheat.reasons.begin(), cheat.reasons.end(), begins)) << cheat.name << ": " << message;
  }
}

TEST(BenchCheats, HonestOneBesideThemHasItsTime) {
  const ProcessResult result = bench("honest_timed,always_wrong", "--timing burst --baseline always_wrong");
  EXPECT_EQ(result.code, 1) << result.text;
  const std::vector<json> records = records_of(result);
  ASSERT_EQ(records.size(), 2u) << result.text;
  EXPECT_EQ(records[0].at("status"), "ok");
  EXPECT_GT(records[0].at("ms_median"), 0);
  EXPECT_TRUE(records[0].at("ratio").is_null()) << "a baseline without a time is none";
  EXPECT_EQ(records[1].at("status"), "failed");
}

// Where a contract lets bits differ, each launch is to be right all the same.
TEST(BenchCheats, BitsMayDifferWhereTheContractSaysSoAndResultsMayNot) {
  json contract = json::parse(std::ifstream(find_shipped("contracts/default.json")));
  contract.at("demands").at("determinism") = false;
  contract.erase("$schema");
  const std::string file = testing::TempDir() + "bench_differing.json";
  std::ofstream(file) << contract;
  const std::string flags = "--timing sustained --contract " + file;
  const ProcessResult bits = bench("changes_bits", flags);
  EXPECT_EQ(bits.code, 0) << bits.text;
  const ProcessResult results = bench("changes_results", flags);
  EXPECT_EQ(results.code, 1) << results.text;
  EXPECT_NE(results.text.find("accuracy: "), std::string::npos) << results.text;
}

TEST(BenchCheats, DocumentHasTheSameTable) {
  std::stringstream text;
  text << std::ifstream(CHECKOP_SOURCE_DIR "/docs/adversary.md").rdbuf();
  for (const Cheat& cheat : cheats())
    EXPECT_NE(text.str().find(fmt::format("| `{}` |", cheat.name)), std::string::npos) << cheat.name;
}

}  // namespace
}  // namespace checkop::bench_cheats_test
