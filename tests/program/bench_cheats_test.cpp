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
#include "support/attacks.hpp"
#include "support/process.hpp"
#include "support/run_helper.hpp"

namespace checkop::bench_cheats_test {
namespace {

using attacks_test::Attack;
using attacks_test::content_of;
using attacks_test::table_of;
using nlohmann::json;

/// How a cheat ends with one kind of timing.
struct Ending {
  std::vector<std::string> reasons;  ///< any one of them begins the message
  std::string timing = "burst,sustained";
};

struct Cheat {
  std::string name, does, found_by;  ///< in the document's table
  std::vector<Ending> endings;
};

const std::vector<Cheat>& cheats() {
  static const std::vector<Cheat> all{
      {"always_wrong", "does nothing of use", "the gold", {{{"accuracy"}}}},
      {"computes_first",
       "computes in the first launches only",
       "outputs are poisoned",
       {{{"accuracy", "nonfinite"}, "burst"}}},
      {"remembers_by_address",
       "gives the first answer of an address again",
       "other data come to the same address, also amid launches back to back",
       {{{"accuracy"}, "burst"}, {{"determinism"}, "sustained"}}},
      {"finds_its_answer",
       "leaves alone what looks like its last answer",
       "data change amid launches back to back, with outputs left as they are",
       {{{"determinism"}, "sustained"}}},
      {"looks_at_one_element",
       "takes data for known by one element",
       "data sets that it does not know",
       {{{"accuracy"}, "burst"}}},
      {"works_in_a_thread",
       "returns, and works later",
       "its process is stopped when the call has returned; one element is poisoned after the flush",
       {{{"accuracy", "nonfinite", "guard", "determinism"}, "burst"},
        {{"accuracy", "nonfinite", "guard", "determinism"}, "sustained"}}},
      {"wrong_when_timed",
       "is right in the first dozen launches",
       "every burst launch and every round is compared",
       {{{"accuracy"}, "burst"}, {{"determinism"}, "sustained"}}},
      {"bench_writes_input", "writes to an input", "inputs are mapped for reading only", {{{"input"}}}},
      {"bench_writes_slack", "writes in front of its output", "guard bands", {{{"guard"}}}},
      {"changes_bits",
       "changes a last bit from launch to launch",
       "digests; a contract may allow it",
       {{{"determinism"}}}},
      {"changes_results",
       "is wrong in some launches",
       "digests, and the gold where bits may differ",
       {{{"accuracy", "determinism"}}}},
  };
  return all;
}

/// Attacks of the plugin bench_attacks. Those that get a time do honest work, and try to hide it from the clock.
const std::vector<Attack>& attacks() {
  static const std::vector<Attack> all{
      {"stops_the_clock",
       {"the time of its work"},
       "rewrites `clock_gettime` in its process",
       "the clock is in another process"},
      {"reaches_the_judge",
       {"failed: accuracy"},
       "looks for the judge's program in its process, writes to the judge's memory by `/proc/PARENT/mem` and "
       "`process_vm_writev`",
       "its process is another program; Landlock, seccomp"},
      {"reaches_a_rival",
       {"failed: accuracy"},
       "looks for another candidate in its process, whose answers lie there",
       "each candidate has a process and memory of its own"},
      {"forges_done",
       {"crashed"},
       "writes `done` to its connection to the judge, before it is asked",
       "a process that says what nobody asked for is ended"},
      {"computes_ahead",
       {"the time of its work"},
       "a thread computes while the judge prepares the launch",
       "its process is stopped meanwhile"},
      {"replays_by_content",
       {"the time of its work"},
       "gives an answer again where it finds all data the same",
       "most burst launches have data that no launch before had"},
      {"lives_on_a_neighbour",
       {"the time of its work"},
       "another candidate of its plugin computes for it in its own time",
       "each candidate has a process and memory of its own"},
  };
  return all;
}

ProcessResult bench(const std::string& candidates, const std::string& flags,
                    const std::string& plugin = "bench_cheats") {
  return run_program(
      fmt::format("bench --op matmul --batch 1 --seq 3 --k-dim 8 --n-dim 16 --device cpu --plugin {} "
                  "--candidate {} {} --json",
                  test_plugin(plugin), candidates, flags));
}

std::vector<json> records_of(const ProcessResult& result) {
  std::vector<json> records;
  std::istringstream lines(result.text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("{")) records.push_back(json::parse(line));
  return records;
}

/// Expects that the record has no time, and begins its message with one of these kinds.
void expect_failure(const json& record, const std::vector<std::string>& kinds) {
  const auto name = record.at("candidate").get<std::string>(), message = record.value("message", "");
  EXPECT_EQ(record.at("status"), "failed") << name;
  EXPECT_FALSE(record.contains("ms_median")) << name;
  const auto begins = [&](const std::string& kind) { return message.starts_with(kind + ": "); };
  EXPECT_TRUE(std::any_of(kinds.begin(), kinds.end(), begins)) << name << ": " << message;
}

TEST(BenchCheats, HaveNoTimeAndTheRecordSaysWhy) {
  for (const Cheat& cheat : cheats()) {
    for (const Ending& ending : cheat.endings) {
      const ProcessResult result = bench(cheat.name, "--timing " + ending.timing);
      EXPECT_EQ(result.code, 1) << cheat.name << ": " << result.text;
      const std::vector<json> records = records_of(result);
      ASSERT_EQ(records.size(), 1u) << cheat.name << ": " << result.text;
      expect_failure(records[0], ending.reasons);
    }
  }
}

/// The work of those that are timed is a chain of 1.5 million products, each of which waits for the one before: four
/// cycles for each product, at 6 GHz.
constexpr double kLeastMs = 1;

TEST(BenchCheats, NoneOfTheAttacksHasATimeThatItsWorkDoesNotTake) {
  for (const Attack& attack : attacks()) {
    const std::string& outcome = attack.outcomes.front();
    const bool is_timed = outcome == "the time of its work", has_crashed = outcome == "crashed";
    const std::string others = "native,honest_slow,works_for_a_neighbour,";
    const ProcessResult result = bench(others + attack.name, "--timing burst", "bench_attacks");
    const std::vector<json> records = records_of(result);
    EXPECT_EQ(result.code, is_timed ? 0 : has_crashed ? 4 : 1) << attack.name << ": " << result.text;
    ASSERT_EQ(records.size(), 4u) << attack.name << ": " << result.text;
    EXPECT_EQ(records[0].at("status"), "ok") << attack.name << ": " << result.text;
    for (size_t i = 1; i < 3; ++i)
      EXPECT_GT(records[i].value("ms_median", 0.0), kLeastMs) << attack.name << ": " << result.text;
    const json& record = records[3];
    if (is_timed) {  // on a busy machine, too
      EXPECT_GT(record.value("ms_median", 0.0), kLeastMs) << attack.name << ": " << result.text;
    } else if (has_crashed) {
      EXPECT_EQ(record.at("status"), "crashed") << attack.name << ": " << result.text;
      EXPECT_FALSE(record.contains("ms_median")) << attack.name << ": " << result.text;
    } else {
      expect_failure(record, {outcome.substr(std::string("failed: ").size())});
    }
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

// Where a contract lets bits differ, every launch must still be right.
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

// If this fails, paste the tables that it prints into the document.
TEST(BenchCheats, DocumentHasTheTablesOfTheseTests) {
  const std::string text = content_of(CHECKOP_SOURCE_DIR "/docs/adversary.md");
  std::string table = "| cheat | what it does | what finds it |\n|---|---|---|\n";
  for (const Cheat& cheat : cheats())
    table += fmt::format("| `{}` | {} | {} |\n", cheat.name, cheat.does, cheat.found_by);
  for (const std::string& each : {table + "\n", table_of(attacks()), table_of(attacks_test::gpu_bench_attacks())})
    EXPECT_NE(text.find(each), std::string::npos) << each;
}

}  // namespace
}  // namespace checkop::bench_cheats_test
