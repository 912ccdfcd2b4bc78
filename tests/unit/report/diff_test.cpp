// SPDX-License-Identifier: Apache-2.0
// Regressions between reports: what counts as worse, and the command that compares them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "report/diff.hpp"
#include "support/built.hpp"
#include "support/process.hpp"

namespace checkop::report_diff_test {
namespace {

ReadCase check(const std::string& name, Verdict verdict, double headroom = 10,
               const std::string& metric = "bound_ratio") {
  ReadCase c;
  c.op = "logp", c.pass = "forward", c.candidate = "mine", c.name = name, c.verdict = verdict;
  c.outputs.push_back({"logp", 4, 0, {{metric, 1 / headroom, 1, headroom}}});
  return c;
}

ReadReport report(std::vector<ReadCase> cases) {
  ReadReport report;
  report.complete = true;
  report.cases = std::move(cases);
  return report;
}

constexpr double kExact = HUGE_VAL;

TEST(ReportDiff, TheSameIsNotWorse) {
  const ReadReport same = report({check("a", Verdict::pass), check("b", Verdict::fail)});
  const ReportDiff diff = diff_reports(same, same, 1.5);
  EXPECT_FALSE(diff.regressed(false));
  EXPECT_EQ(diff.in_both, 2);
  EXPECT_EQ(diff.unmended.size(), 1u);
}

TEST(ReportDiff, ANewFailureIsWorseAndAMendedOneIsNot) {
  const ReadReport before = report({check("a", Verdict::pass), check("b", Verdict::fail)});
  const ReadReport after = report({check("a", Verdict::timeout), check("b", Verdict::pass)});
  const ReportDiff diff = diff_reports(before, after, 1.5);
  EXPECT_TRUE(diff.regressed(true));
  ASSERT_EQ(diff.broken.size(), 1u);
  EXPECT_EQ(diff.broken[0].after->name, "a");
  ASSERT_EQ(diff.mended.size(), 1u);
  EXPECT_EQ(diff.mended[0].after->name, "b");
}

TEST(ReportDiff, AnAddedCheckThatFailsIsWorse) {
  const ReportDiff fails = diff_reports(report({}), report({check("a", Verdict::fail)}), 1.5);
  EXPECT_TRUE(fails.regressed(false));
  const ReportDiff passes = diff_reports(report({}), report({check("a", Verdict::pass)}), 1.5);
  EXPECT_FALSE(passes.regressed(false));
  EXPECT_EQ(passes.added, 1);
}

TEST(ReportDiff, ACheckThatIsGoneOrSkippedIsWorseUnlessAllowed) {
  const ReadReport before = report({check("a", Verdict::pass), check("b", Verdict::pass), check("c", Verdict::fail)});
  const ReportDiff diff = diff_reports(before, report({check("a", Verdict::skipped)}), 1.5);
  EXPECT_EQ(diff.gone.size(), 2u);
  EXPECT_TRUE(diff.regressed(false));
  EXPECT_FALSE(diff.regressed(true));
}

TEST(ReportDiff, HeadroomIsLostBeyondTheFactorAlone) {
  const auto losses = [](double before, double after, const std::string& metric = "bound_ratio") {
    return diff_reports(report({check("a", Verdict::pass, before, metric)}),
                        report({check("a", Verdict::pass, after, metric)}), 1.5)
        .losses.size();
  };
  EXPECT_EQ(losses(15, 10), 0u);
  EXPECT_EQ(losses(15, 9.99), 1u);
  EXPECT_EQ(losses(10, 100), 0u);
  EXPECT_EQ(losses(kExact, 1000), 1u);
  EXPECT_EQ(losses(kExact, kExact), 0u);
  EXPECT_EQ(losses(10, kExact), 0u);
  EXPECT_EQ(losses(10, std::nan("")), 1u);
  EXPECT_EQ(losses(15, 2, "bias_t"), 0u) << "a statistic, not a size";
}

TEST(ReportDiff, ALostHeadroomIsWorse) {
  const ReportDiff diff =
      diff_reports(report({check("a", Verdict::pass, 40)}), report({check("a", Verdict::pass, 15)}), 1.5);
  EXPECT_TRUE(diff.regressed(true));
  const std::string text = to_text(diff, 1.5, true);
  EXPECT_NE(text.find("logp bound_ratio: headroom 15x, was 40x"), std::string::npos) << text;
  EXPECT_NE(text.find("worse: 0 new failures, 1 headroom lost beyond 1.5x"), std::string::npos) << text;
}

TEST(ReportDiff, EqualNamesAreToldApartByTheirPlace) {
  const ReadReport before = report({check("a", Verdict::pass), check("a", Verdict::fail)});
  const ReadReport after = report({check("a", Verdict::pass), check("a", Verdict::pass)});
  const ReportDiff diff = diff_reports(before, after, 1.5);
  EXPECT_EQ(diff.in_both, 2);
  EXPECT_EQ(diff.mended.size(), 1u);
}

TEST(ReportDiff, ALaterRunThatDidNotEndIsWorse) {
  ReadReport after = report({check("a", Verdict::pass)});
  after.complete = false;
  EXPECT_TRUE(diff_reports(report({check("a", Verdict::pass)}), after, 1.5).regressed(true));
}

TEST(ReportDiff, NotesWhatMakesReportsHardToCompare) {
  ReadReport before = report({check("a", Verdict::pass)}), after = before;
  before.contract_hash = "1", before.device = "one", after.contract_hash = "2", after.device = "two";
  after.cases[0].data_hash = "other";
  const ReportDiff diff = diff_reports(before, after, 1.5);
  EXPECT_EQ(diff.notes.size(), 3u);
  EXPECT_FALSE(diff.regressed(false));
}

class ReportCommand : public testing::Test {
 protected:
  static std::string path(const std::string& name) { return testing::TempDir() + "report_command_" + name; }
  static void run(const std::string& name, const std::string& flags) {
    run_program(
        fmt::format("--op logp --device cpu --dtype fp32 --batch 1 --seq 2 --vocab 17 --check-grad --plugin "
                    "{}/mutants.so --json {} {}",
                    kPluginFolder, path(name), flags));
  }
};

TEST_F(ReportCommand, DiffsReports) {
  run("good.json", "--candidate native");
  run("bad.json", "--candidate native,mutant-zeros");
  run("less.json", "--candidate native --filter '*/forward/*'");
  run("other.json", "--candidate native --seed 9");
  expect_exit(run_program("report diff " + path("good.json") + " " + path("good.json")), 0,
              "not worse: 0 new failures");
  expect_exit(run_program("report diff " + path("good.json") + " " + path("bad.json")), 1, "worse: 2 new failures");
  expect_exit(run_program("report diff " + path("bad.json") + " " + path("good.json")), 0, "not worse");
  expect_exit(run_program("report diff " + path("good.json") + " " + path("less.json")), 1,
              "[   GONE   ] logp/backward");
  expect_exit(run_program("report diff --allow-gone " + path("good.json") + " " + path("less.json")), 0, "not worse");
  expect_exit(run_program("report diff --allow-gone " + path("good.json") + " " + path("other.json")), 3,
              "nothing to compare");
  run_program("report diff " + path("good.json") + " " + path("bad.json") + " --markdown " + path("diff.md"));
  std::string first;
  std::getline(std::ifstream(path("diff.md")), first);
  EXPECT_TRUE(first.starts_with("## check_operator: worse: 2 new failures")) << first;
}

TEST_F(ReportCommand, MakesTheFormsThatTheRunItselfMakes) {
  const auto content = [](const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
  };
  std::string of_run;
  for (const char* form : {"junit", "markdown", "html"}) of_run += fmt::format("--{0} {1} ", form, path(form));
  run("both.json", of_run + "--candidate native,mutant-zeros");
  for (const char* form : {"junit", "markdown", "html"}) {
    const ProcessResult result =
        run_program(fmt::format("report {} --{} {}", path("both.json"), form, path(std::string(form) + "2")));
    expect_exit(result, 0, "2 of 4 checks did not pass: 2 fail");
    EXPECT_EQ(content(path(form)), content(path(std::string(form) + "2"))) << form;
    EXPECT_GT(content(path(form)).size(), 1000u);
  }
}

TEST_F(ReportCommand, WhatIsNoReportIsTheUsersMistake) {
  run("good.json", "--candidate native");
  std::ofstream(path("text.json")) << "{\"format\": \"check_operator/mutation-1\"}";
  auto json = nlohmann::json::parse(std::ifstream(path("good.json")));
  json["candidates"][0]["cases"][0]["verdict"] = "pas";
  std::ofstream(path("wrong.json")) << json;
  expect_exit(run_program("report"), 2, "no report is named");
  expect_exit(run_program("report missing.json"), 2, "missing.json: cannot be opened");
  expect_exit(run_program("report contracts/default.json"), 2, "contracts/default.json: format");
  expect_exit(run_program("report " + path("text.json")), 2, "check_operator/report-1");
  expect_exit(run_program("report " + path("wrong.json")), 2, "did you mean 'pass'?");
  expect_exit(run_program("report diff " + path("good.json")), 2, "argument 'after' is missing");
  expect_exit(run_program(fmt::format("report diff --factor 0.5 {0} {0}", path("good.json"))), 2, "--factor");
}

TEST_F(ReportCommand, ReadsReportsThatEarlierVersionsWrote) {
  for (const char* name : {"logp", "matmul"}) {
    expect_exit(run_program(fmt::format("report tests/data/reports/{}.json --html {} --junit {}", name,
                                        path("h200.html"), path("h200.xml"))),
                0, "NVIDIA H200; contract contracts/default.json");
  }
}

}  // namespace
}  // namespace checkop::report_diff_test
