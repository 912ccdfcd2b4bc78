// SPDX-License-Identifier: Apache-2.0
// Attacks on the judge, through the whole program: none succeeds, and candidates that use the same features honestly
// pass. docs/adversary.md has the same table.
#include <fcntl.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/file.h>
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
#include "support/attacks.hpp"
#include "support/process.hpp"
#include "support/run_helper.hpp"
#include "tensor/safetensors.hpp"

namespace checkop::attacks_test {
namespace {

const std::vector<Attack>& attacks() {
  static const std::vector<Attack> all = [] {
    std::vector<Attack> attacks = system_attacks();
    attacks.insert(
        attacks.end(),
        {{"makes_input_writable", {"fail: accuracy"}, "`mprotect` of an input", "the memory is sealed"},
         {"writes_input_by_proc_self_mem",
          {"fail: accuracy"},
          "an input through `/proc/self/mem`",
          "the memory is sealed"},
         {"writes_input", {"fail: input"}, "stores to an input", "the mapping is read-only", false},
         {"writes_over_nan_alone",
          {"fail: unwritten"},
          "computes only where the output holds NaN",
          "the poison of the second launch is no NaN",
          false},
         {"writes_after_done",
          {"error: crash", "fail: accuracy"},
          "a thread writes on after the call",
          "private copies are judged; the memory goes",
          false},
         {"writes_over_known_poison",
          {"fail: invariance"},
          "computes only over the poison of its first two launches",
          "poison has another value in each launch",
          false},
         {"reads_past_input", {"fail: nonfinite"}, "uses what lies behind an input", "guard bands are NaN", false},
         {"writes_far_past_output",
          {"error: crash"},
          "writes 16 MiB behind its output",
          "pages around buffers can't be touched",
          false},
         {"writes_slack", {"fail: guard"}, "writes in front of its output", "guard bands, read by the owner", false}});
    return attacks;
  }();
  return all;
}

const std::vector<Attack>& exec_attacks() {
  static const std::vector<Attack> all{
      {"exec_rewrites_file",
       {"fail: accuracy"},
       "a command rewrites a report",
       "Landlock: it writes to its own folder"},
      {"exec_truncates_file", {"fail: accuracy"}, "empties a report", "Landlock"},
      {"exec_removes_file", {"fail: accuracy"}, "removes a report", "Landlock"},
      {"exec_replaces_file", {"fail: accuracy"}, "moves a file of its own to the report's place", "Landlock"},
      {"exec_remembers_on_disk", {"fail: accuracy"}, "leaves answers in `/tmp`", "Landlock"},
      {"exec_remembers_in_shared_memory", {"fail: accuracy"}, "leaves answers in `/dev/shm`", "Landlock"},
      {"exec_signals_parent", {"fail: accuracy"}, "`kill` of the judge", "seccomp"},
      {"exec_signals_group", {"fail: accuracy"}, "`kill` of its process group, which the judge is in", "seccomp"},
      {"exec_signals_everyone", {"fail: accuracy"}, "`kill` of all processes", "seccomp"},
      {"exec_signals_by_folder", {"fail: accuracy"}, "a signal by the judge's folder in `/proc`", "seccomp"},
      {"exec_limits_parent", {"fail: accuracy"}, "`prlimit` of the judge", "seccomp"},
      {"exec_schedules_parent", {"fail: accuracy"}, "`sched_setscheduler` of the judge", "seccomp: no effect"},
      {"exec_opens_parent_memory", {"fail: accuracy"}, "`/proc/PARENT/mem`", "Landlock", false},
      {"exec_reads_parent_memory", {"fail: accuracy"}, "`process_vm_readv`", "seccomp", false},
      {"exec_reads_parent_command", {"fail: accuracy"}, "the seed in `/proc/PARENT/cmdline`", "Landlock"},
      {"exec_asks_the_network", {"fail: accuracy"}, "a TCP socket", "seccomp"},
      {"exec_asks_a_local_socket", {"fail: accuracy"}, "a local socket, behind which others work for it", "seccomp"},
      {"exec_becomes_daemon",
       {"fail: accuracy"},
       "a process in a session of its own, which rewrites a report after the end",
       "seccomp: it stays in the group, which ends as a whole"},
      {"exec_makes_namespaces",
       {"fail: accuracy"},
       "`unshare`: to be root among processes of its own",
       "seccomp",
       false},
      {"exec_clones_into_namespaces", {"fail: accuracy"}, "`clone` into such namespaces", "seccomp", false},
      {"exec_links_its_output",
       {"fail: candidate"},
       "a link in the place of its output, to what the judge may read",
       "links are not followed",
       false},
  };
  return all;
}

const std::vector<std::string>& honest() {
  static const std::vector<std::string> all{
      "honest_threads", "honest_memory",    "honest_temporary_file", "honest_signal", "honest_look_at_the_machine",
      "honest_library", "honest_exception", "honest_workspace"};
  return all;
}

std::map<std::string, json> run_all(const std::string& candidates, const std::string& flags, const std::string& file) {
  std::ofstream(file) << "intact";
  return run_beside(file, fmt::format("--device cpu {} --plugin {} --candidate {} {}", kCase, test_plugin("attacks"),
                                      candidates, flags));
}

/// Runs attacks of tests/plugins/exec/attacks.py as commands.
std::map<std::string, json> run_commands(const std::vector<std::string>& names, const std::string& flags,
                                         const std::string& file) {
  std::string commands;
  for (const std::string& name : names)
    commands += fmt::format(" --exec '{} tests/plugins/exec/attacks.py {}'", CHECKOP_PYTHON, name);
  return run_beside(file, fmt::format("--device cpu {} --candidate {} --exec-name {}{}", flags, fmt::join(names, ","),
                                      fmt::join(names, ","), commands));
}

// Where the Linux kernel lacks a measure, the attacks that it stops would succeed: the test says so, as doctor does.
TEST(Attacks, EveryMeasureHoldsHere) {
  for (const auto processes : {SandboxRules::Processes::none, SandboxRules::Processes::in_group}) {
    for (const SandboxMeasure& measure : probe_sandbox(processes))
      EXPECT_TRUE(measure.holds) << measure.what << ": " << measure.how;
  }
}

TEST(Attacks, NoneSucceeds) {
  const std::string file = testing::TempDir() + "attacked.txt";
  expect_outcomes(attacks(), run_all(joined(names_of(attacks())), "", file));
  EXPECT_EQ(content_of(file), "intact");
}

TEST(Attacks, SecretSeedMakesDataThatNobodyKnows) {
  const std::string file = testing::TempDir() + "seeded.txt";
  const auto verdict = [&](const std::string& flags) {
    auto cases = run_all("knows_the_seed", "--check accuracy " + flags, file);
    return cases["knows_the_seed"].value("verdict", "none");
  };
  EXPECT_EQ(verdict(""), "pass");
  EXPECT_EQ(verdict("--secret-seed"), "fail");
}

TEST(Attacks, NoneOfACommandSucceeds) {
  const std::string file = testing::TempDir() + "attacked_by_command.txt";
  std::ofstream(file) << "intact";
  expect_outcomes(exec_attacks(), run_commands(names_of(exec_attacks()), kCase, file));
  EXPECT_EQ(content_of(file), "intact");
}

TEST(Attacks, OfCommandsSucceedWhereNothingIsDefended) {
  const std::string file = testing::TempDir() + "undefended_from_command.txt";
  for (const std::string& name : names_of(exec_attacks(), /*shown_alone=*/true)) {
    std::ofstream(file) << "intact";
    expect_passes({name}, run_commands({name}, std::string(kCase) + " --no-isolate --check accuracy", file));
  }
  std::filesystem::remove("/tmp/check_operator_attack");
  std::filesystem::remove("/dev/shm/check_operator_attack");
}

TEST(Attacks, HonestCommandsPass) {
  const std::vector<std::string> names{"exec_honest_files", "exec_honest_processes"};
  expect_passes(names, run_commands(names, kCase, testing::TempDir() + "honest_command.txt"));
}

// The process that the command started holds a lock on the file as long as it lives.
TEST(Attacks, WhatACommandStartedEndsWithTheRun) {
  const std::string file = testing::TempDir() + "locked.txt";
  std::ofstream(file) << "intact";
  expect_passes({"exec_leaves_a_process"}, run_commands({"exec_leaves_a_process"}, kCase, file));
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(flock(descriptor, LOCK_EX | LOCK_NB), 0);
  close(descriptor);
}

// A command may read all files of the user but the gold.
TEST(Attacks, GoldOfTheUserIsNotReadByACommand) {
  const std::string inputs = testing::TempDir() + "attack_inputs.safetensors";
  const std::string gold = testing::TempDir() + "attack_gold.safetensors";
  const std::vector<float> a{1, 2, 3, 4}, b{5, 6, 7, 8};
  const std::vector<double> c{19, 22, 43, 50};
  {
    SafetensorsWriter file(inputs, {{"a", DType::f32, {1, 2, 2}}, {"b", DType::f32, {2, 2}}}, {});
    file.write("a", 0, a.data(), a.size() * sizeof(float));
    file.write("b", 0, b.data(), b.size() * sizeof(float));
  }
  {
    SafetensorsWriter file(gold, {{"c", DType::f64, {1, 2, 2}}, {"magnitude/c", DType::f64, {1, 2, 2}}}, {});
    for (const char* name : {"c", "magnitude/c"}) file.write(name, 0, c.data(), c.size() * sizeof(double));
  }
  const std::string flags =
      fmt::format("--op matmul --pass forward --check accuracy --inputs {} --gold {} ", inputs, gold);
  const auto verdict = [&](const std::string& file, const std::string& more) {
    auto cases = run_commands({"exec_reads_gold"}, flags + more, file);
    return cases["exec_reads_gold"].value("verdict", "none");
  };
  EXPECT_EQ(verdict(gold, ""), "fail");
  EXPECT_EQ(verdict(inputs, ""), "pass") << "which may be read";
  EXPECT_EQ(verdict(gold, "--no-isolate"), "pass");
}

// Shows that the attacks work: without a process of its own and without a sandbox, they succeed.
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
  expect_passes(honest(), run_all(joined(honest()), "", testing::TempDir() + "honest.txt"));
}

// The preloaded tool finds its descriptor in the judge. In the process of plugins it would not, and would end it.
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

// If this fails, paste the tables that it prints into the document.
TEST(Attacks, DocumentHasTheTablesOfTheseTests) {
  const std::string text = content_of(CHECKOP_SOURCE_DIR "/docs/adversary.md");
  for (const auto* each : {&attacks(), &exec_attacks(), &gpu_attacks()})
    EXPECT_NE(text.find(table_of(*each)), std::string::npos) << table_of(*each);
  for (const auto* names : {&honest(), &gpu_honest()})
    for (const std::string& name : *names) EXPECT_NE(text.find(fmt::format("`{}`", name)), std::string::npos) << name;
}

}  // namespace
}  // namespace checkop::attacks_test
