// SPDX-License-Identifier: Apache-2.0
// Contracts as a user of the program meets them: what a run says of them, and the subcommands of `contract`.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "contract_helper.hpp"
#include "process.hpp"

namespace checkop {
namespace {

using namespace contract_test;

const std::string kTiny = "--op logp --candidate native --device cpu --batch 1 --seq 2 --vocab 17 ";

/// Writes a contract for one test and gives its path.
std::string written(const std::string& text) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  static int count = 0;
  const std::string path = fmt::format("{}{}-{}.json", testing::TempDir(), test->name(), count++);
  std::ofstream(path) << text;
  return path;
}

TEST(ContractCommand, ARunSaysWhatHasExpired) {
  const std::string list = overlays({overlay(R"({"arch": "sm90"})", R"("bound_ratio": {"lambda": 7})",
                                             R"("expires": "2020-01-31", "loosen": true)")});
  const std::string path = written(document({rule("{}")}, list));
  const std::string warning = path + ": overlays[0] of o expired on 2020-01-31: what it loosens no longer holds (r)";
  expect_exit(run_program(kTiny + "--contract " + path), 0, "[ WARNING  ] " + warning);
  expect_exit(run_program(kTiny + "--json --contract " + path), 0, "check_operator: " + warning);
  const std::string report = written("");
  expect_exit(run_program(kTiny + "--contract " + path + " --json " + report), 0, warning);
  std::ifstream file(report);
  EXPECT_EQ(nlohmann::json::parse(file)["warnings"], nlohmann::json::array({warning}));
}

std::string with_known(std::string_view match, std::string_view more = "") {
  return written(document({rule("{}")}, fmt::format(R"(, "known": [{{"match": {}, "expect": "fail", "reason": "why not",
    "owner": "me", "issue": "#12", "expires": "9999-12-31"{}}}])",
                                                    match, more)));
}

const std::string kZeros = fmt::format(
    "--op logp --device cpu --batch 1 --seq 2 --vocab 17 --plugin {}/mutants.so --candidate native,mutant-zeros ",
    CHECKOP_TEST_PLUGIN_DIR);

TEST(ContractCommand, AnExpectedFailureDoesNotFailTheRunAndIsShown) {
  const std::string path = with_known(R"({"op": "logp", "candidate": "mutant-zeros"})");
  const std::string report = written("");
  const ProcessResult run = run_program(kZeros + "--contract " + path + " --json " + report);
  expect_exit(run, 0, "known[0] expects a failure until 9999-12-31: why not (#12; me)");
  EXPECT_NE(run.text.find("[    XFAIL ] 1 xfail"), std::string::npos) << run.text;
  std::ifstream file(report);
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["passed"], true);
  EXPECT_EQ(json["passed_candidates"], 2);
  const auto& zeros = json["candidates"][1]["cases"][0];
  EXPECT_EQ(zeros["verdict"], "xfail");
  EXPECT_EQ(zeros["passed"], false);
  EXPECT_EQ(zeros["known"]["reason"], "why not");
  EXPECT_EQ(json["candidates"][0]["cases"][0]["known"], nullptr);
}

TEST(ContractCommand, AnUnexpectedPassFailsTheRun) {
  const std::string path = with_known(R"({"op": "logp", "candidate": "native"})");
  expect_exit(run_program(kTiny + "--contract " + path), 1, "passes, although known[0] expects a failure; remove it");
}

TEST(ContractCommand, AFailureOfAnotherKindIsNotExpected) {
  const std::string path = with_known(R"({"op": "logp", "candidate": "mutant-*"})", R"(, "kinds": ["determinism"])");
  expect_exit(run_program(kZeros + "--contract " + path), 1, "[  FAILED  ] 1 fail");
}

}  // namespace
}  // namespace checkop
