// SPDX-License-Identifier: Apache-2.0
// Attacks on the judge, through the whole program: none succeeds, and candidates that use the same features honestly
// pass. docs/adversary.md has the same table.
#include <fcntl.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/sandbox.hpp"
#include "support/process.hpp"
#include "support/run_helper.hpp"

namespace checkop::attacks_test {
namespace {

using nlohmann::json;

struct Attack {
  std::string name;
  std::vector<std::string> outcomes;  ///< any one of them, for attacks that race with the judge
  bool shown = true;                  ///< succeeds where a plugin runs in the judge's own process, on every machine
};

const std::vector<Attack>& attacks() {
  static const std::vector<Attack> all{
      {"signals_parent", {"fail: accuracy"}},
      {"signals_group", {"fail: accuracy"}},
      {"signals_everyone", {"fail: accuracy"}},
      {"signals_by_descriptor", {"fail: accuracy"}},
      {"queues_signal", {"fail: accuracy"}},
      {"ptraces_parent", {"fail: accuracy"}, false},
      {"reads_parent_memory", {"fail: accuracy"}, false},
      {"opens_parent_memory", {"fail: accuracy"}, false},
      {"reads_parent_command", {"fail: accuracy"}},
      {"limits_parent", {"fail: accuracy"}, false},
      {"forks", {"fail: accuracy"}},
      {"becomes_daemon", {"fail: accuracy"}},
      {"leaves_group", {"fail: accuracy"}},
      {"starts_a_program", {"fail: accuracy"}},
      {"becomes_a_program", {"fail: accuracy"}},
      {"rewrites_file", {"fail: accuracy"}},
      {"reads_file", {"fail: accuracy"}},
      {"removes_file", {"fail: accuracy"}},
      {"rewrites_itself", {"fail: accuracy"}},
      {"remembers_on_disk", {"fail: accuracy"}},
      {"remembers_in_shared_memory", {"fail: accuracy"}},
      {"remembers_in_system_v", {"fail: accuracy"}},
      {"asks_the_network", {"fail: accuracy"}},
      {"asks_a_local_socket", {"fail: accuracy"}},
      {"traces_events", {"fail: accuracy"}, false},
      {"makes_input_writable", {"fail: accuracy"}},
      {"writes_input_by_proc_self_mem", {"fail: accuracy"}},
      {"raises_its_limit", {"fail: accuracy"}},
      {"writes_input", {"fail: input"}, false},
      {"forges_done", {"error: crash"}, false},
      {"writes_over_nan_alone", {"fail: unwritten"}, false},
      {"writes_after_done", {"error: crash", "fail: accuracy"}, false},
      {"writes_slack", {"fail: guard"}, false},
  };
  return all;
}

const std::vector<std::string>& honest() {
  static const std::vector<std::string> all{
      "honest_threads", "honest_memory",    "honest_temporary_file", "honest_signal", "honest_look_at_the_machine",
      "honest_library", "honest_exception", "honest_workspace"};
  return all;
}

/// The cases of each candidate, after a run beside a file that attacks are after.
std::map<std::string, json> run_all(const std::string& candidates, const std::string& flags, const std::string& file) {
  std::ofstream(file) << "intact";
  const std::string report = testing::TempDir() + "attacks.json";
  setenv("CHECKOP_ATTACKED", file.c_str(), 1);
  const ProcessResult run = run_program(
      fmt::format("--op matmul --batch 2 --seq 3 --k-dim 8 --n-dim 16 --device cpu --plugin {} --candidate {} {} "
                  "--json {}",
                  test_plugin("attacks"), candidates, flags, report));
  unsetenv("CHECKOP_ATTACKED");
  std::map<std::string, json> cases;
  const json read = json::parse(std::ifstream(report), nullptr, /*allow_exceptions=*/false);
  if (!read.is_object()) {
    ADD_FAILURE() << run.text;
    return cases;
  }
  EXPECT_TRUE(read.at("complete"));
  for (const json& candidate : read.at("candidates"))
    cases[candidate.at("backend").get<std::string>()] = candidate.at("cases").at(0);
  return cases;
}

std::string joined(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ",")); }

// A measure that this kernel lacks is no defence here: the test fails and says so, as doctor does.
TEST(Attacks, EveryMeasureHoldsHere) {
  for (const SandboxMeasure& measure : probe_sandbox())
    EXPECT_TRUE(measure.holds) << measure.what << ": " << measure.how;
}

TEST(Attacks, NoneSucceeds) {
  const std::string file = testing::TempDir() + "attacked.txt";
  std::vector<std::string> names;
  for (const Attack& attack : attacks()) names.push_back(attack.name);
  const auto cases = run_all(joined(names), "", file);
  for (const Attack& attack : attacks()) {
    ASSERT_TRUE(cases.contains(attack.name)) << attack.name;
    const json& c = cases.at(attack.name);
    const std::string outcome =
        fmt::format("{}: {}", c.at("verdict").get<std::string>(), c.at("kind").get<std::string>());
    EXPECT_EQ(std::ranges::count(attack.outcomes, outcome), 1)
        << attack.name << ": " << outcome << ": " << c.at("reason");
  }
  std::stringstream content;
  content << std::ifstream(file).rdbuf();
  EXPECT_EQ(content.str(), "intact");
}

// The steps are real: without a process of its own and without a sandbox, they are all possible.
TEST(Attacks, TheySucceedWhereNothingIsDefended) {
  const std::string file = testing::TempDir() + "undefended.txt";
  for (const Attack& attack : attacks()) {
    if (!attack.shown) continue;
    const auto cases = run_all(attack.name, "--no-isolate --check accuracy", file);
    ASSERT_TRUE(cases.contains(attack.name)) << attack.name;
    EXPECT_EQ(cases.at(attack.name).at("verdict"), "pass") << attack.name << ": " << cases.at(attack.name).at("reason");
  }
  std::filesystem::remove("/tmp/check_operator_attack");
  std::filesystem::remove("/dev/shm/check_operator_attack");
}

TEST(Attacks, HonestUseOfTheSameFeaturesPasses) {
  const auto cases = run_all(joined(honest()), "", testing::TempDir() + "honest.txt");
  for (const std::string& name : honest()) {
    ASSERT_TRUE(cases.contains(name)) << name;
    EXPECT_EQ(cases.at(name).at("verdict"), "pass") << name << ": " << cases.at(name).at("reason");
  }
}

// Here it finds its descriptor in the judge, and would not find it in the process of plugins.
TEST(Attacks, ProcessOfPluginsIsNotFollowedByPreloadedTools) {
  const int low = open("/dev/null", O_RDONLY), descriptor = fcntl(low, F_DUPFD, 100);
  close(low);
  const std::string number = std::to_string(descriptor);
  setenv("CHECKOP_TOOL_DESCRIPTOR", number.c_str(), 1);
  setenv("LD_PRELOAD", test_plugin("preloaded_tool").c_str(), 1);
  const ProcessResult followed =
      run_program("--op matmul --batch 1 --seq 2 --k-dim 4 --n-dim 4 --device cpu --candidate native");
  close(descriptor);
  const ProcessResult without_descriptor = run_program("list");
  unsetenv("LD_PRELOAD");
  unsetenv("CHECKOP_TOOL_DESCRIPTOR");
  EXPECT_EQ(followed.code, 0) << followed.text;
  EXPECT_EQ(without_descriptor.code, 255) << without_descriptor.text;
}

TEST(Attacks, DocumentHasTheSameTable) {
  std::stringstream text;
  text << std::ifstream(CHECKOP_SOURCE_DIR "/docs/adversary.md").rdbuf();
  for (const Attack& attack : attacks()) {
    const std::string row = fmt::format("| `{}` | {} |", attack.name, fmt::join(attack.outcomes, " or "));
    EXPECT_NE(text.str().find(row), std::string::npos) << row;
  }
  for (const std::string& name : honest())
    EXPECT_NE(text.str().find(fmt::format("`{}`", name)), std::string::npos) << name;
}

}  // namespace
}  // namespace checkop::attacks_test
