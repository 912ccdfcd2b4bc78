// SPDX-License-Identifier: Apache-2.0
// Which checks of a run belong to a shard. report/merge_test.cpp tests that the shards' reports add up to the run's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "session/check_order.hpp"
#include "support/built.hpp"
#include "support/process.hpp"

namespace checkop::check_order_test {
namespace {

TEST(DividedRun, CandidatesOfACaseStayTogetherAndEveryCheckHasOneShard) {
  const std::string flags = fmt::format(
      "--op silu,logp --dtype fp32,bf16 --check-grad --batch 1 --seq 2,8 --vocab 17 --hidden 33 --candidate "
      "native,mutant-zeros --plugin {}/mutants.so --device cpu --list",
      kPluginFolder);
  const auto listed = [](const std::string& text) {
    std::set<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) EXPECT_TRUE(lines.insert(line).second) << line;
    return lines;
  };
  const std::set<std::string> whole = listed(run_program(flags).text);
  ASSERT_EQ(whole.size(), 32u);
  std::set<std::string> all;
  for (int i = 0; i < 3; ++i) {
    std::set<std::string> part =
        listed(run_program(fmt::format("{} --shard-index {} --total-shards 3", flags, i)).text);
    EXPECT_TRUE(part.size() == 10 || part.size() == 12) << part.size();
    for (const std::string& line : part) {
      std::string other = line;
      const bool native = line.find("/native/") != std::string::npos;
      const std::string own = native ? "/native/" : "/mutant-zeros/";
      other.replace(other.find(own), own.size(), native ? "/mutant-zeros/" : "/native/");
      EXPECT_TRUE(part.contains(other)) << line;
    }
    for (const std::string& line : part) EXPECT_TRUE(all.insert(line).second) << line;
  }
  EXPECT_EQ(all, whole);
}

TEST(DividedRun, NoShardGetsAllOfTheLargestSize) {
  for (int i = 0; i < 2; ++i) {
    const ProcessResult list = run_program(
        fmt::format("--op silu --candidate native --device cpu --dtype fp32,bf16 --check-grad --batch 1 --seq 1,4096 "
                    "--hidden 4096 --list --shard-index {} --total-shards 2",
                    i));
    size_t large = 0, at = 0;
    while ((at = list.text.find("-1x4096x4096", at)) != std::string::npos) ++large, ++at;
    EXPECT_EQ(large, 2u) << list.text;
  }
}

TEST(DividedRun, BadNumbersAreTheUsersMistake) {
  const std::string flags = "--op silu --candidate native --device cpu --list ";
  expect_exit(run_program(flags + "--shard-index 0"), 2, "--shard-index: has no effect without --total-shards");
  expect_exit(run_program(flags + "--total-shards 2"), 2, "--total-shards: has no effect without --shard-index");
  expect_exit(run_program(flags + "--shard-index 2 --total-shards 2"), 2, "--shard-index: expected 0 to 1, got 2");
  expect_exit(run_program(flags + "--shard-index -1 --total-shards 2"), 2, "--shard-index: expected 0 to 1, got -1");
  expect_exit(run_program(flags + "--shard-index 0 --total-shards 0"), 2, "--total-shards: expected 1 or more, got 0");
  expect_exit(run_program(flags + "--shard-index x --total-shards 2"), 2, "--shard-index");
  expect_exit(run_program("--replay x --shard-index 0 --total-shards 2"), 2, "has no effect with --replay");
}

}  // namespace
}  // namespace checkop::check_order_test
