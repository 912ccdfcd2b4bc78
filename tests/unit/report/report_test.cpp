// SPDX-License-Identifier: Apache-2.0
// The JSON and text reports. report_schema_test.sh checks whole reports against their schema.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "report/report.hpp"
#include "support/contract_helper.hpp"
#include "support/gold_helper.hpp"

namespace checkop::report_test {
namespace {

/// One passing and one failing record of logp's backward pass.
Report sample() {
  Report report;
  report.suite_name = "test";
  report.complete = true;
  for (const bool passes : {true, false}) {
    CaseRecord record;
    record.c = gold_case("logp", "backward", DType::bf16, {{"batch", 1}, {"seq", 2}, {"vocab", 3}});
    record.candidate = "mine";
    record.device.kind = "cpu";
    record.repeat = "check_operator --op logp";
    record.run.status = RunStatus::ok;
    record.run.outputs.resize(1);
    record.demands.resize(1);
    Comparison comparison;
    comparison.count = comparison.expected = 6;
    comparison.out_of_bound = passes ? 0 : 1;
    comparison.nonfinite = comparison.out_of_bound;
    comparison.worst = ElementReport{
        5, passes ? 1 : std::nan(""), 1, passes ? 0 : INFINITY, 0.5, passes ? 0 : INFINITY, "bound_ratio"};
    comparison.first = comparison.first_nonfinite = comparison.worst;
    comparison.max_abs = comparison.worst->error;
    GateResult gate;
    gate.limit = 1;
    gate.achieved = comparison.worst->ratio;
    gate.headroom = passes ? INFINITY : 0;
    comparison.gates = {gate};
    record.comparisons = {comparison};
    record.judgment = judge(record.c, record.run, record.comparisons, record.demands, record.checks, true);
    report.records.push_back(std::move(record));
  }
  return report;
}

std::string text_of(const Report& report) {
  char* buffer = nullptr;
  size_t size = 0;
  std::FILE* file = open_memstream(&buffer, &size);
  print_header(file, report, DeviceInfo{}, report.records.size(), 1);
  for (const CaseRecord& record : report.records) print_record(file, record);
  print_summary(file, report);
  std::fclose(file);
  std::string text(buffer, size);
  std::free(buffer);
  return text;
}

TEST(ReportJson, CountsCandidatesAndOutputs) {
  const auto json = nlohmann::json::parse(to_json(sample()));
  EXPECT_EQ(json["total_candidates"], 1);
  EXPECT_EQ(json["passed_candidates"], 0);
  EXPECT_EQ(json["exit_code"], 1);
  EXPECT_EQ(json["passed"], false);
  const auto& candidate = json["candidates"][0];
  EXPECT_EQ(candidate["candidate_name"], "mine-logp");
  EXPECT_EQ(candidate["total_outputs"], 2);
  EXPECT_EQ(candidate["passed_outputs"], 1);
  EXPECT_EQ(candidate["pass_rate"], 0.5);
  EXPECT_EQ(candidate["cases"][0]["outputs"][0]["message"], "gradient:logits");
}

TEST(ReportJson, NonfiniteNumbersAreStrings) {
  const std::string text = to_json(sample());
  const auto json = nlohmann::json::parse(text);  // bare NaN would not parse
  const auto& output = json["candidates"][0]["cases"][1]["outputs"][0];
  EXPECT_EQ(output["worst"]["got"], "NaN");
  EXPECT_EQ(output["max_abs_error"], "Infinity");
  EXPECT_EQ(output["worst"]["coordinates"], (std::vector<int>{0, 1, 2}));
}

TEST(ReportJson, UnfinishedRunDidNotPass) {
  Report report = sample();
  report.records.pop_back();
  EXPECT_EQ(nlohmann::json::parse(to_json(report))["passed"], true);
  report.complete = false;
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["passed"], false);
  EXPECT_EQ(json["exit_code"], 4);
}

TEST(ReportJson, RunOfZeroGoldsIsVacuous) {
  Report report = sample();
  report.records.pop_back();
  report.records[0].comparisons[0].gold_is_zero = true;
  mark_vacuous(report);
  EXPECT_EQ(report.records[0].judgment.verdict, Verdict::vacuous);
  report = sample();
  report.records[0].comparisons[0].gold_is_zero = true;  // the other record still proves something
  mark_vacuous(report);
  EXPECT_EQ(report.records[0].judgment.verdict, Verdict::pass);
}

TEST(ReportJson, EmptyRunDidNotPass) {
  Report empty;
  empty.complete = true;
  const auto json = nlohmann::json::parse(to_json(empty));
  EXPECT_EQ(json["passed"], false);
  EXPECT_EQ(json["exit_code"], 3);
}

TEST(ReportJson, BytesThatAreNotUtf8DoNotLoseTheReport) {
  Report report = sample();
  report.records[0].run.message = "bad \xff byte";
  EXPECT_TRUE(nlohmann::json::accept(to_json(report)));
}

TEST(ReportJson, TimesStandApart) {
  Report a = sample(), b = sample();
  b.wall_ms = 5, b.host = "other", b.started = "later", b.records[0].times.total_ms = 7;
  auto x = nlohmann::json::parse(to_json(a)), y = nlohmann::json::parse(to_json(b));
  EXPECT_NE(x, y);
  x.erase("volatile"), y.erase("volatile");
  EXPECT_EQ(x, y);
}

TEST(ReportText, FailuresCarryTheReasonAndTheRepeatLine) {
  const std::string text = text_of(sample());
  EXPECT_NE(text.find("[       OK ] logp/backward  mine  bf16  batch=1 seq=2 vocab=3 seed=123  headroom dlogits exact"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("dlogits[0,1,2] = nan, gold 1"), std::string::npos) << text;
  size_t lines = 0;
  for (size_t at = 0; (at = text.find("repeat: ", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, 1u);
}

TEST(ReportText, NothingCheckedIsSaid) {
  Report empty;
  empty.complete = true;
  EXPECT_NE(text_of(empty).find("Nothing was checked"), std::string::npos);
}

TEST(ReportText, AStoppedRunSaysSo) {
  Report report = sample();
  report.complete = false;
  report.planned = 7;
  report.stopped = "SIGTERM";
  const std::string text = text_of(report);
  EXPECT_NE(text.find("2 of 7 checks ran"), std::string::npos) << text;
  EXPECT_NE(text.find("SIGTERM stopped the run before its end (exit code 4)"), std::string::npos);
}

}  // namespace
}  // namespace checkop::report_test
