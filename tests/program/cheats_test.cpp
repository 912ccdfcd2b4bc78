// SPDX-License-Identifier: Apache-2.0
// Candidates that cheat, through the whole program: none gets an undeserved pass, and later checks run as if the cheat
// had not run.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>

#include "support/process.hpp"
#include "support/run_helper.hpp"

namespace checkop::cheats_test {
namespace {

using nlohmann::json;

/// For cheats that never end; the others may take as long as a busy machine needs.
constexpr const char* kShort = "--batch 2 --seq 3 --timeout-s 2";

/// Flags with candidates, sizes, limits and the plugin; `sizes` may give several cases.
std::string flags(const std::string& candidates, const std::string& sizes) {
  return fmt::format("--op matmul --k-dim 8 --n-dim 16 {} --candidate {} --device cpu --plugin {} --memory-limit 700M",
                     sizes, candidates, test_plugin("cheats"));
}

struct Reported {
  ProcessResult process;
  json report;

  /// The cases of one candidate.
  json cases(const std::string& candidate) const {
    for (const json& each : report.at("candidates"))
      if (each.at("backend") == candidate) return each.at("cases");
    return json::array();
  }
};

Reported run_with_report(const std::string& arguments) {
  const std::string file = testing::TempDir() + "cheats.json";
  Reported run{run_program(fmt::format("{} --json {}", arguments, file)), {}};
  std::ifstream stream(file);
  run.report = json::parse(stream, nullptr, /*allow_exceptions=*/false);
  return run;
}

struct Expected {
  std::string verdict, kind, reason;
  int code;
};

/// Runs the cheat on two cases, then an honest candidate of the same plugin and one of another plugin on the same
/// cases.
void expect_caught(const std::string& cheat, const Expected& expected,
                   const std::string& sizes = "--batch 2 --seq 3,8") {
  const Reported run = run_with_report(flags(cheat + ",honest,native", sizes));
  ASSERT_TRUE(run.report.is_object()) << run.process.text;
  EXPECT_EQ(run.process.code, expected.code) << run.process.text;
  EXPECT_EQ(run.report.at("exit_code"), expected.code);
  EXPECT_TRUE(run.report.at("complete"));
  const json cases = run.cases(cheat), honest = run.cases("honest"), native = run.cases("native");
  ASSERT_GT(cases.size(), 0u);
  EXPECT_EQ(honest.size(), cases.size());
  EXPECT_EQ(native.size(), cases.size());
  for (const json& each : cases) {
    EXPECT_EQ(each.at("verdict"), expected.verdict) << each.at("reason");
    EXPECT_EQ(each.at("kind"), expected.kind) << each.at("reason");
    EXPECT_NE(each.at("reason").get<std::string>().find(expected.reason), std::string::npos) << each.at("reason");
  }
  for (const json& after : {honest, native})
    for (const json& each : after) EXPECT_EQ(each.at("verdict"), "pass") << each.at("reason");
}

TEST(Cheats, LastResultIsNotTakenForThisOne) {
  expect_caught("returns_last_result",
                {"fail", "determinism", "two runs on the same data, the second in another process, disagree", 1});
}

TEST(Cheats, LastResultIsNotTakenEvenOfTheOnlyRowOfTheOnlyCase) {
  expect_caught("returns_last_result", {"fail", "determinism", "the second in another process, disagree", 1},
                "--batch 1 --seq 1");
}

TEST(Cheats, RememberedAnswersDoNotMakeBitsRepeat) {
  expect_caught("remembers_answers", {"fail", "determinism", "the second in another process, disagree", 1},
                "--batch 1 --seq 1");
}

TEST(Cheats, RememberedRowsDoNotMakeTheirBitsThoseOfTheBatch) {
  expect_caught("remembers_rows",
                {"fail", "invariance", "the last row alone, in a process that has not seen the batch", 1});
}

TEST(Cheats, NanInInputsIsSeenAndReachesNoOtherRun) {
  expect_caught("poisons_inputs", {"fail", "input", "changed an input: a: ", 1});
}

// The previous case is still being judged, by its original inputs.
TEST(Cheats, CaseThatWaitsForItsJudgmentIsNotChanged) {
  const Reported run = run_with_report(
      fmt::format("--op matmul --batch 2 --seq 3 --k-dim 4,5,6 --n-dim 16 --candidate zeros_the_case_before "
                  "--device cpu --plugin {}",
                  test_plugin("cheats")));
  EXPECT_EQ(run.process.code, 1) << run.process.text;
  const json cases = run.cases("zeros_the_case_before");
  ASSERT_EQ(cases.size(), 3u);
  for (const json& c : cases) {
    EXPECT_EQ(c.at("verdict"), "fail") << c.at("reason");
    // Its inputs are zeros only on a system without file seals.
    EXPECT_TRUE(c.at("kind") == "accuracy" || c.at("kind") == "input") << c.at("kind");
  }
}

TEST(Cheats, WorkThatGoesOnAfterTheCallIsNotWaitedFor) {
  expect_caught("returns_early", {"fail", "unwritten", "were never written", 1});
}

TEST(Cheats, ExitWithSuccessIsNoSuccess) {
  expect_caught("exits_with_success", {"error", "crash", "exited with code 0 before it answered", 4});
}

// The worker can't answer, and can't say why: what it throws then must not run this program's destructors in the child.
TEST(Cheats, ClosedDescriptorsLoseNoOtherCheck) {
  for (const char* standard_error : {"/dev/null", "/dev/full", "&-"}) {
    const std::string report = testing::TempDir() + "closed.json";
    std::filesystem::remove(report);
    const int status = std::system(
        fmt::format("cd '{}' && '{}' --op matmul --batch 2 --seq 3 --k-dim 4,5 --n-dim 16 --device cpu --plugin {} "
                    "--candidate closes_descriptors,native --json {} >/dev/null 2>{}",
                    CHECKOP_SOURCE_DIR, kProgram, test_plugin("crashes"), report, standard_error)
            .c_str());
    EXPECT_EQ(WEXITSTATUS(status), 4) << standard_error;
    ASSERT_TRUE(std::filesystem::exists(report)) << standard_error;
    const json read = json::parse(std::ifstream(report));
    EXPECT_TRUE(read.at("complete"));
    std::map<std::string, int> verdicts;
    for (const json& candidate : read.at("candidates")) {
      for (const json& c : candidate.at("cases")) {
        ++verdicts[fmt::format("{} {} {}", candidate.at("backend").get<std::string>(),
                               c.at("verdict").get<std::string>(), c.at("reason").get<std::string>())];
      }
    }
    EXPECT_EQ(verdicts,
              (std::map<std::string, int>{{"closes_descriptors error exited with code 1 before it answered", 2},
                                          {"native pass ", 2}}));
  }
}

TEST(Cheats, SignalsThatAreIgnoredDoNotKeepItAlive) {
  expect_caught("ignores_signals", {"timeout", "timeout", "no answer within 2 s; killed", 4}, kShort);
}

TEST(Cheats, SleepEndsWithItsTime) {
  expect_caught("sleeps_too_long", {"timeout", "timeout", "no answer within 2 s; killed", 4}, kShort);
}

TEST(Cheats, WriteBehindTheOutputsIsSeen) {
  expect_caught("writes_past_outputs", {"fail", "guard", "behind its end", 1});
}

TEST(Cheats, WriteFarBehindTheOutputsIsACrash) {
  expect_caught("writes_far_past_outputs", {"error", "crash", "Segmentation fault", 4});
}

TEST(Cheats, WhatWasFreedHoldsNoAnswerAndTakesNone) {
  expect_caught("reads_freed_outputs", {"error", "crash", "Segmentation fault", 4});
  expect_caught("writes_to_freed_outputs", {"error", "crash", "Segmentation fault", 4});
}

TEST(Cheats, WorkspaceThatCannotBeHadIsNoWayToBeSkipped) {
  expect_caught("vast_workspace",
                {"error", "memory", "could not be prepared: allocate workspace (32.0 TiB): the machine has not", 4},
                "--batch 2 --seq 3");
}

#if !defined(CHECKOP_SANITIZED)  // a sanitizer's allocator ends the process in its own way
TEST(Cheats, LeakEndsAtTheLimitAndNotWithTheMachine) {
  expect_caught("leaks_until_memory_ends",
                {"error", "memory", "launch ran out of memory: std::bad_alloc; it may have 700.0 MiB", 4},
                "--batch 2 --seq 3");
}

TEST(Cheats, LeakThatDoesNotLookIsACrashThatTellsOfMemory) {
  expect_caught("leaks_without_looking", {"error", "crash", "of the 700.0 MiB that it may have", 4},
                "--batch 2 --seq 3");
}

TEST(Cheats, LeakOverManyCasesEndsAtTheSameLimit) {
  const Reported run = run_with_report(flags("leaks_a_little", "--batch 1 --seq 1:24 --check accuracy"));
  EXPECT_EQ(run.process.code, 1) << run.process.text;
  std::string verdicts;
  for (const json& each : run.cases("leaks_a_little")) verdicts += each.at("verdict").get<std::string>() + " ";
  // The first check runs alone, then two processes take turns. The fourth check of each fails, and the next one has a
  // fresh process.
  std::string expected;
  std::array<int, 2> ran{};
  for (int check = 0; check < 24; ++check) {
    int& of_process = ran[check == 0 || check % 2 == 1 ? 0 : 1];
    const bool fails = ++of_process == 4;
    if (fails) of_process = 0;
    expected += fails ? "fail " : "pass ";
  }
  EXPECT_EQ(verdicts, expected);
}
#endif

TEST(Cheats, HonestCandidatePassesTheSameTreatment) {
  const Reported run = run_with_report(flags("honest", "--batch 1,2 --seq 1,3,8"));
  EXPECT_EQ(run.process.code, 0) << run.process.text;
  EXPECT_EQ(run.cases("honest").size(), 6u);
}

// --- crashes ---------------------------------------------------------------------------------------------------------

TEST(Crashes, ThousandCasesOfWhichEveryTenthCrashesLoseNoResult) {
  const Reported run = run_with_report(
      fmt::format("--op matmul --k-dim 1:1000 --n-dim 4 --batch 1 --seq 2 --candidate crashes_every_tenth --device cpu "
                  "--plugin {}",
                  test_plugin("crashes")));
  EXPECT_EQ(run.process.code, 4);
  EXPECT_TRUE(run.report.at("complete"));
  const json cases = run.cases("crashes_every_tenth");
  ASSERT_EQ(cases.size(), 1000u);
  for (const json& each : cases) {
    const int64_t terms = each.at("dims").at("k_dim").get<int64_t>();
    EXPECT_EQ(each.at("verdict"), terms % 10 == 0 ? "error" : "pass") << terms << ": " << each.at("reason");
    if (terms % 10 == 0) {
      EXPECT_EQ(each.at("reason"), "killed by signal 11 (Segmentation fault)") << terms;
    }
  }
}

// --- the order of checks ---------------------------------------------------------------------------------------------

/// (candidate, case, verdict, kind) of every check, and the order in which they ran.
std::pair<std::multiset<std::tuple<std::string, std::string, std::string, std::string>>, std::string> verdicts_in(
    const json& report) {
  std::multiset<std::tuple<std::string, std::string, std::string, std::string>> verdicts;
  for (const json& candidate : report.at("candidates"))
    for (const json& c : candidate.at("cases"))
      verdicts.emplace(candidate.at("backend"), c.at("case_name"), c.at("verdict"), c.at("kind"));
  std::string order;
  for (const json& each : report.at("volatile").at("timings"))
    order += each.at("candidate").get<std::string>() + " " + each.at("case_name").get<std::string>() + "\n";
  return {verdicts, order};
}

TEST(Shuffle, AnotherOrderGivesTheSameVerdicts) {
  const std::string arguments =
      flags("native,writes_past_outputs,exits_with_success,honest", "--batch 1,2 --seq 1,3,5,8");
  const auto [plain, listed] = verdicts_in(run_with_report(arguments).report);
  EXPECT_EQ(plain.size(), 32u);
  const auto [seven, order_of_seven] = verdicts_in(run_with_report(arguments + " --shuffle 7").report);
  const auto [again, order_again] = verdicts_in(run_with_report(arguments + " --shuffle 7").report);
  const auto [eight, order_of_eight] = verdicts_in(run_with_report(arguments + " --shuffle 8").report);
  EXPECT_EQ(seven, plain);
  EXPECT_EQ(eight, plain);
  EXPECT_EQ(order_again, order_of_seven);
  EXPECT_NE(order_of_seven, listed);
  EXPECT_NE(order_of_eight, order_of_seven);
}

}  // namespace
}  // namespace checkop::cheats_test
