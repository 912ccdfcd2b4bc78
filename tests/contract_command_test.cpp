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

}  // namespace
}  // namespace checkop
