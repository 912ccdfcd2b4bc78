// SPDX-License-Identifier: Apache-2.0
// Run shards: their merged reports equal the report of the undivided run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "report/merge.hpp"
#include "support/built.hpp"
#include "support/process.hpp"
#include "support/report_merge_helper.hpp"

namespace checkop::report_merge_test {
namespace {

struct Divided {
  int whole_code = -1, merged_code = -1;
  std::vector<int> codes;  ///< exit codes of the shards
  json whole, merged;
  std::vector<json> shards;
  std::string text;  ///< output of the merge
};

std::string shard_file(int index) { return report_path(fmt::format("{}.json", index)); }

std::string shard_files(int total) {
  std::string files;
  for (int i = 0; i < total; ++i) files += " " + shard_file(i);
  return files;
}

/// Runs `flags` as a whole and in `total` shards, and merges the shards' reports.
Divided divide(const std::string& flags, int total = 3) {
  Divided run;
  const std::string whole = report_path("whole.json"), merged = report_path("merged.json");
  run.whole_code = run_program(fmt::format("{} --device cpu --json {}", flags, whole)).code;
  run.whole = load_report(whole);
  for (int i = 0; i < total; ++i) {
    run.codes.push_back(run_program(fmt::format("{} --device cpu --shard-index {} --total-shards {} --json {}", flags,
                                                i, total, shard_file(i)))
                            .code);
    run.shards.push_back(load_report(shard_file(i)));
  }
  const ProcessResult result = run_program(fmt::format("report merge{} --json {}", shard_files(total), merged));
  run.merged_code = result.code;
  run.text = result.text;
  run.merged = load_report(merged);
  return run;
}

void expect_same(const Divided& run, int code) {
  EXPECT_EQ(run.whole_code, code);
  EXPECT_EQ(run.merged_code, code) << run.text;
  EXPECT_EQ(run.merged["exit_code"], code);
  EXPECT_EQ(lasting_part(run.merged), lasting_part(run.whole))
      << json::diff(lasting_part(run.whole), lasting_part(run.merged)).dump(1);
}

int64_t checks_in(const json& report) {
  int64_t n = 0;
  for (const json& candidate : report["candidates"]) n += std::ssize(candidate["cases"]);
  return n;
}

constexpr const char* kTwoOperators =
    "--op silu,logp --dtype fp32,bf16 --check-grad --batch 1 --seq 2,8 --vocab 17 --hidden 33";

// --- the merged report equals that of the whole run

TEST(ReportMerge, PassesAreThoseOfTheWholeRun) {
  const Divided run = divide("--suite smoke --op silu,logp --candidate native");
  expect_same(run, 0);
  EXPECT_GT(checks_in(run.whole), 200);
  for (const json& shard : run.shards) EXPECT_GE(checks_in(shard), checks_in(run.whole) / 3);
  EXPECT_TRUE(run.text.starts_with(fmt::format("[==========] 3 shards: {} checks passed\n", checks_in(run.whole))))
      << run.text;
}

TEST(ReportMerge, FailuresOfSeveralCandidatesAreThoseOfTheWholeRun) {
  const Divided run = divide(fmt::format(
      "{} --candidate mutant-zeros,native,mutant-unwritten_row --plugin {}/mutants.so", kTwoOperators, kPluginFolder));
  expect_same(run, 1);
  EXPECT_GT(verdicts_of_report(run.merged)["fail"], 10);
  EXPECT_GT(verdicts_of_report(run.merged)["pass"], 10);
  EXPECT_NE(run.text.find("\n             repeat: check_operator --op"), std::string::npos) << run.text;
}

TEST(ReportMerge, CrashesAreThoseOfTheWholeRun) {
  const Divided run = divide(fmt::format(
      "--op matmul --batch 1 --seq 2,3,4 --k-dim 2 --n-dim 4 --candidate honest,segfaults --plugin {}/crashes.so",
      kPluginFolder));
  expect_same(run, 4);
  EXPECT_EQ(verdicts_of_report(run.merged), (Counts{{"error", 3}, {"pass", 3}}));
}

TEST(ReportMerge, SkippedAndUnsupportedChecksAreThoseOfTheWholeRun) {
  const std::string skipped =
      "--op silu --candidate native --batch 1 --seq 4,40000 --hidden 4096 --threads 1 --memory-limit 512M";
  const Divided some = divide(skipped, 2);
  expect_same(some, 0);
  EXPECT_EQ(verdicts_of_report(some.merged), (Counts{{"pass", 1}, {"skipped", 1}}));
  EXPECT_EQ(some.codes, (std::vector{0, 0})) << "that all of a shard was skipped is for the whole run to judge";
  const Divided unsupported = divide("--op silu --candidate native --batch 1 --seq 4,8 --hidden 16 --dtype fp64,fp32");
  expect_same(unsupported, 3);
  EXPECT_EQ(verdicts_of_report(unsupported.merged), (Counts{{"pass", 2}, {"unsupported", 2}}));
}

TEST(ReportMerge, SkippedChecksAreCountedOverAllShards) {
  const Divided run = divide(
      "--op silu --candidate native --batch 1 --seq 4,40000,40001 --hidden 4096 --threads 1 --memory-limit 512M "
      "--max-skip 1",
      3);
  expect_same(run, 1);
  EXPECT_EQ(run.codes, (std::vector{0, 0, 0})) << "no shard skips more than one";
  EXPECT_NE(run.text.find("--max-skip allows 1 to be skipped"), std::string::npos) << run.text;
}

TEST(ReportMerge, ShuffledChecksStandInTheOrderOfTheWholeRun) {
  const Divided run = divide(fmt::format("{} --candidate native,mutant-zeros --plugin {}/mutants.so --shuffle 7",
                                         kTwoOperators, kPluginFolder));
  expect_same(run, 1);
  EXPECT_EQ(run.merged["volatile"]["timings"].size(), static_cast<size_t>(checks_in(run.whole)));
  for (size_t i = 0; i < run.whole["volatile"]["timings"].size(); ++i) {
    for (const char* key : {"candidate", "pass", "case_name"}) {
      EXPECT_EQ(run.merged["volatile"]["timings"][i][key], run.whole["volatile"]["timings"][i][key]) << i;
    }
  }
}

TEST(ReportMerge, WhatNoCaseOfARunTellsIsVacuousAndNotWhatNoCaseOfAShardTells) {
  const std::string flags = "--candidate native --pass forward --dtype fp32 --cases ";
  const Divided alone = divide(flags + cases_of_equal_rows(false), 2);
  expect_same(alone, 1);
  EXPECT_EQ(verdicts_of_report(alone.merged), (Counts{{"vacuous", 2}}));
  EXPECT_EQ(alone.codes, (std::vector{0, 0}));
  const Divided with_another = divide(flags + cases_of_equal_rows(true), 3);
  expect_same(with_another, 0);
  EXPECT_EQ(verdicts_of_report(with_another.merged), (Counts{{"pass", 3}}));
  EXPECT_EQ(with_another.codes, (std::vector{0, 0, 0}));
}

TEST(ReportMerge, OneProofAndOneControlServeAllShards) {
  const std::string products = "--op matmul --candidate native --batch 1 --check invariance,determinism ";
  // One of the cases gets additional rows
  const Divided shown = divide(products + "--seq 2,3 --k-dim 3 --n-dim 16", 2);
  expect_same(shown, 0);
  ASSERT_EQ(shown.merged["controls"].size(), 1u);
  EXPECT_EQ(shown.merged["controls"][0]["caught"], true);
  const Divided unseen = divide(products + "--dtype bf16 --seq 2,3 --k-dim 3 --n-dim 1", 2);
  expect_same(unseen, 1);
  EXPECT_EQ(verdicts_of_report(unseen.merged), (Counts{{"vacuous", 2}}));
  EXPECT_EQ(unseen.codes, (std::vector{0, 0}));
}

TEST(ReportMerge, WhatIsDemandedOfOneOperatorIsLookedAtInShardsWithoutIt) {
  json contract = load_report(std::string(CHECKOP_SOURCE_DIR) + "/contracts/default.json");
  contract["demands"]["operators"]["matmul"]["determinism"]["runs"] = 7;
  const Divided run = divide(
      "--op silu,matmul --candidate native --batch 1 --seq 3 --hidden 16 --k-dim 8 --n-dim 8 "
      "--check determinism --contract " +
          write_text("contract.json", contract.dump()),
      2);
  expect_same(run, 0);
  for (const json& shard : run.shards) EXPECT_EQ(checks_in(shard), 1);
}

TEST(ReportMerge, ShardsWithoutChecksAreNoErrorAndSaySo) {
  const std::string flags = "--op silu --candidate native --batch 1 --seq 2,8 --hidden 33";
  const Divided run = divide(flags, 4);
  expect_same(run, 0);
  EXPECT_EQ(run.codes, (std::vector{0, 0, 0, 0}));
  EXPECT_EQ(checks_in(run.shards[3]), 0);
  const std::string forms = fmt::format("--junit {0}.xml --markdown {0}.md", report_path("empty"));
  const ProcessResult empty =
      run_program(fmt::format("{} --device cpu --shard-index 3 --total-shards 4 --github {}", flags, forms));
  expect_exit(empty, 0, "This is shard 3 of 4, 0 of 2 checks; 'check_operator report merge'");
  EXPECT_EQ(empty.text.find("::error"), std::string::npos) << empty.text;
  EXPECT_NE(text_of_file(report_path("empty.xml")).find("tests=\"0\" failures=\"0\" errors=\"0\""), std::string::npos);
  EXPECT_NE(text_of_file(report_path("empty.md")).find("this run shard has no checks; shard 3 of 4"),
            std::string::npos);
}

TEST(ReportMerge, NothingInAnyShardIsNothingChecked) {
  const Divided run = divide("--op silu --candidate native --filter 'none*'", 2);
  expect_same(run, 3);
  EXPECT_EQ(run.codes, (std::vector{3, 3}));
  EXPECT_NE(run.text.find("nothing was checked"), std::string::npos) << run.text;
}

}  // namespace
}  // namespace checkop::report_merge_test
