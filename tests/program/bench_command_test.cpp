// SPDX-License-Identifier: Apache-2.0
// check_operator bench for a user: records, exit codes, refusals. No test checks how long anything takes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/json.hpp"
#include "cli/options.hpp"
#include "report/bench_record.hpp"
#include "support/built.hpp"
#include "support/gold_helper.hpp"
#include "support/process.hpp"

namespace checkop::bench_command_test {
namespace {

using nlohmann::json;

const std::string kMatmul = "bench --op matmul --device cpu --batch 1 --seq 2 --k-dim 3 --n-dim 4 ";

std::string plugin(const std::string& stem) { return fmt::format("--plugin {}/{}.so ", kPluginFolder, stem); }

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> records;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) records.push_back(json::parse(line));
  return records;
}

TEST(BenchCommand, EveryRankHasATimeAndTheSlowestIsTheCases) {
  const ProcessResult result = run_program(
      "bench --op tp_linear_logp --candidate native --device cpu --batch 1 --seq 16 --hidden 16 --vocab 129 "
      "--world-size 1,3 --json");
  EXPECT_EQ(result.code, 0);
  const std::vector<json> records = lines_of(result.text);
  ASSERT_EQ(records.size(), 4u) << result.text;
  for (const json& r : records) {
    const size_t ranks = r["dims"]["world_size"];
    if (ranks == 1) {
      EXPECT_FALSE(r.contains("ranks"));
      continue;
    }
    ASSERT_EQ(r["ranks"].size(), ranks);
    for (const json& rank : r["ranks"]) {
      EXPECT_FALSE(rank["device"].get<std::string>().empty());
      EXPECT_GT(rank["ms_median"], 0);
      EXPECT_LE(rank["ms_median"], r["ms_median"]);
      EXPECT_EQ(rank["workspace_mib"], 0);
    }
  }
}

TEST(BenchCommand, EveryRecordSaysWhatWasTimedAndHow) {
  const ProcessResult result =
      run_program(kMatmul + plugin("honest") + "--candidate native,honest --baseline native --json");
  EXPECT_EQ(result.code, 0);
  const std::vector<json> records = lines_of(result.text);
  ASSERT_EQ(records.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const json& r = records[i];
    EXPECT_EQ(r["op"], "matmul");
    EXPECT_EQ(r["pass"], "forward");
    EXPECT_EQ(r["status"], "ok");
    EXPECT_EQ(r["candidate"], i < 2 ? "native" : "honest");
    EXPECT_EQ(r["timing"], i % 2 == 0 ? "burst" : "sustained");
    EXPECT_EQ(r["repeats"], i % 2 == 0 ? 20 : 5);
    EXPECT_EQ(r["dtype"], "fp32");
    EXPECT_EQ(r["case"], "matmul-fp32-1x2x3x4");
    EXPECT_EQ(r["dims"], (json{{"batch", 1}, {"seq", 2}, {"k_dim", 3}, {"n_dim", 4}}));
    EXPECT_EQ(r["flops"], 48);
    EXPECT_EQ(r["bytes"], 4 * (6 + 12 + 8));
    EXPECT_DOUBLE_EQ(r["peak_mib"].get<double>(), 9.9182e-05);
    const double ms = r["ms_median"];
    EXPECT_GT(ms, 0);
    EXPECT_LE(r["ms_p20"], r["ms_median"]);
    EXPECT_GE(r["ms_p80"], r["ms_median"]);
    EXPECT_NEAR(r["gbps"].get<double>() * ms * 1e6 / 104, 1, 1e-4);
    EXPECT_NEAR(r["tflops"].get<double>() * ms * 1e9 / 48, 1, 1e-4);
    EXPECT_NEAR(r["of_copy"].get<double>() * r["copy_gbps"].get<double>() / r["gbps"].get<double>(), 1, 1e-4);
    EXPECT_TRUE(r["cublas_tflops"].is_null());
    EXPECT_EQ(r["run"], records[0]["run"]);
    EXPECT_EQ(r["run"].get<std::string>().size(), 16u);
    EXPECT_EQ(r["kernels_digest"].get<std::string>().size(), 64u);
    EXPECT_FALSE(r["device"].get<std::string>().empty());
    EXPECT_EQ(r["date"].get<std::string>().size(), std::string("2026-11-21T07:45:11Z").size());
  }
  EXPECT_NE(records[0]["kernels_digest"], records[2]["kernels_digest"]);
  EXPECT_TRUE(records[0]["ratio"].is_null());  // the baseline itself
  EXPECT_EQ(records[2]["ratio_to"], "native");
  EXPECT_GT(records[2]["ratio"], 0);
  EXPECT_TRUE(records[2]["distinct"].is_boolean());
}

TEST(BenchCommand, EachCaseIsARunOfItsOwn) {
  const ProcessResult result = run_program(
      "bench --op logp --device cpu --candidate native --batch 1 --seq 2 --vocab 5,17 --check-grad --timing burst "
      "--repeats 21 --json");
  EXPECT_EQ(result.code, 0) << result.text;
  const std::vector<json> records = lines_of(result.text);
  ASSERT_EQ(records.size(), 6u);
  std::set<std::string> runs, what;
  for (const json& r : records) {
    if (r["pass"] == "forward+backward") {
      EXPECT_EQ(runs.count(r["run"].get<std::string>()), 1u);  // the forward pass's
      continue;
    }
    runs.insert(r["run"].get<std::string>());
    what.insert(fmt::format("{} {}", r["pass"].get<std::string>(), r["dims"]["vocab"].get<int>()));
    EXPECT_EQ(r["repeats"], 21);
    EXPECT_TRUE(r["tflops"].is_null());  // no products
  }
  EXPECT_EQ(runs.size(), 4u);
  EXPECT_EQ(what, (std::set<std::string>{"forward 5", "forward 17", "backward 5", "backward 17"}));
}

TEST(BenchCommand, TextIsATableAndTheFileHoldsTheRecords) {
  const std::string file = testing::TempDir() + "bench.jsonl";
  std::filesystem::remove(file);
  const ProcessResult result = run_program(kMatmul + "--candidate native --timing sustained --json " + file);
  expect_exit(result, 0, "[  BENCH   ] matmul/forward  fp32  batch=1 seq=2 k_dim=3 n_dim=4");
  expect_exit(result, 0, "of copy");
  std::ifstream stream(file);
  const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  const std::vector<json> records = lines_of(text);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0]["timing"], "sustained");
}

TEST(BenchCommand, CrashIsAnErrorOfItsCandidateExitsFourAndTheRestIsTimed) {
  const ProcessResult result =
      run_program("bench --op matmul --device cpu --batch 1 --seq 2 --k-dim 3 --n-dim 4 --check-grad --timing burst " +
                  plugin("crashes") + "--candidate segfaults,native --json");
  EXPECT_EQ(result.code, 4) << result.text;
  const std::vector<json> records = lines_of(result.text);
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0]["status"], "crashed");
  EXPECT_EQ(records[0]["candidate"], "segfaults");
  EXPECT_NE(records[0]["message"].get<std::string>().find("Segmentation fault"), std::string::npos);
  EXPECT_FALSE(records[0].contains("ms_median"));
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(records[i]["candidate"], "native");
    EXPECT_EQ(records[i]["status"], "ok");
    EXPECT_EQ(records[i]["pass"], i == 1 ? "forward" : i == 2 ? "backward" : "forward+backward");
  }
}

TEST(BenchCommand, TimeLimitExitsFourRefusalThreeAndFailureOne) {
  const std::string burst = kMatmul + "--timing burst ";
  expect_exit(run_program(burst + plugin("crashes") + "--candidate sleeps --timeout-s 1"), 4, "timeout: no answer");
  expect_exit(run_program(burst + plugin("honest") + "--candidate unsupported,native"), 3, "k_dim must be a multiple");
  expect_exit(run_program(burst + plugin("failures") + "--candidate throws_exception,native"), 1,
              "failed: launch threw");
}

TEST(BenchCommand, ConstantInputsAreRefused) {
  expect_exit(run_program(kMatmul + "--candidate native --input-mode constant"), 2,
              "--input-mode: constant inputs run up to 13 % too fast");
  expect_exit(run_program(kMatmul + "--candidate native --grad-mode ones --check-grad"), 2,
              "--grad-mode: constant inputs run up to 13 % too fast");
  // Without an upstream gradient the flag does not make any input constant.
  expect_exit(run_program(kMatmul + "--candidate native --grad-mode ones --list"), 0, "matmul/forward/native");
}

TEST(BenchCommand, ConstantCasesOfFilesAreLeftOut) {
  const std::string file = testing::TempDir() + "constant.json";
  std::ofstream(file) << R"({"format": "check_operator/cases-1", "cases": [
      {"op": "silu", "dims": {"batch": 1, "seq": 2, "hidden": 8}, "dtype": ["fp32"], "input_mode": "constant"},
      {"op": "silu", "dims": {"batch": 1, "seq": 2, "hidden": 9}, "dtype": ["fp32"]}]})";
  const std::string command = "bench --device cpu --candidate native --pass forward --timing burst --cases " + file;
  const ProcessResult result = run_program(command);
  expect_exit(result, 0, "1 case with constant inputs left out");
  expect_exit(result, 0, "hidden=9");
  EXPECT_EQ(result.text.find("hidden=8"), std::string::npos) << result.text;
  expect_exit(run_program(command + " --filter '*~constant*'"), 3, "left out");
}

TEST(BenchCommand, RandomCasesHaveGivenSizesAndTheirRatesASummary) {
  const std::string file = testing::TempDir() + "bench_random.jsonl";
  std::filesystem::remove(file);
  const ProcessResult result =
      run_program("bench --op matmul --device cpu --k-dim 3 --n-dim 4 --seq 2 --timing burst --random-cases 3 " +
                  plugin("honest") + "--candidate native,honest --baseline native --json " + file);
  expect_exit(result, 0, "[  BENCH   ] matmul/forward  fp32  batch=1 seq=2 k_dim=3 n_dim=4");
  expect_exit(result, 0, "[  RATES   ] matmul/forward honest burst  3 cases: geometric mean ");
  EXPECT_EQ(lines_of(read_text_file(file, "the records")).size(), 6u);
  const ProcessResult listed = run_program(
      "bench --op matmul --device cpu --candidate native --preset qwen3-8b --random-cases 40 --seed 3 --list");
  expect_exit(listed, 0, "x12288x4096#");  // the down projection
  EXPECT_EQ(std::count(listed.text.begin(), listed.text.end(), '\n'), 40);
}

TEST(BenchCommand, BadInputExitsTwoWithOneSentence) {
  const std::pair<std::string, std::string> mistakes[] = {
      {kMatmul + "--candidate native --baseline cublas", "--baseline: 'cublas' is not among the candidates"},
      {kMatmul + "--repeats 19", "--repeats: expected 20 to 10000, got 19"},
      {kMatmul + "--timing fast", "--timing: unknown value 'fast'"},
      {kMatmul + "--candidate natve", "did you mean 'native'?"},
      {kMatmul + "--contract x.json", "x.json: cannot be opened"},
      {kMatmul + "--candidate native --json /nowhere/b.jsonl", "/nowhere/b.jsonl"},
      {"--op matmul --baseline native", "--baseline"},
  };
  for (const auto& [arguments, part] : mistakes) expect_exit(run_program(arguments), 2, part);
}

// --- records ---------------------------------------------------------------------------------------------------------

BenchRecord record(const std::string& candidate, Summary ms) {
  BenchRecord r;
  r.c = gold_case("matmul", "forward", DType::bf16, {{"batch", 1}, {"seq", 2}, {"k_dim", 3}, {"n_dim", 4}});
  r.candidate = candidate;
  r.status = RunStatus::ok;
  r.timing = "burst";
  r.ms = ms;
  r.repeats = 20;
  r.cost = {4e9, 2e6};
  r.copy_gbps = 4;
  r.cublas_tflops = 8;
  return r;
}

std::string printed(const std::vector<BenchRecord>& records, decltype(print_bench)* print = print_bench) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  print(stream, records);
  std::fclose(stream);
  const std::string result(text, size);
  std::free(text);
  return result;
}

TEST(BenchRecord, TrainingStepIsTheSumOfItsPasses) {
  const auto timed = [&](const char* candidate, const char* pass, Summary ms, const char* baseline) {
    BenchRecord r = record(candidate, ms);
    r.c = gold_case("matmul", pass, DType::bf16, {{"batch", 1}, {"seq", 2}, {"k_dim", 3}, {"n_dim", 4}});
    r.baseline = baseline;
    return r;
  };
  BenchRecord crashed = timed("c", "backward", {1, 1, 1}, "");
  crashed.status = RunStatus::crashed;
  const std::vector<BenchRecord> steps =
      training_steps({timed("a", "forward", {2, 1, 3}, ""), timed("b", "forward", {1, 1, 1}, "a"),
                      timed("c", "forward", {1, 1, 1}, "a"), timed("a", "backward", {4, 3, 6}, ""),
                      timed("b", "backward", {3, 3, 3}, "a"), crashed});
  ASSERT_EQ(steps.size(), 2u);  // no time of c's backward pass
  const json a = json::parse(to_json_line(steps[0])), b = json::parse(to_json_line(steps[1]));
  EXPECT_EQ(a["pass"], "forward+backward");
  EXPECT_EQ(a["ms_median"], 6);
  EXPECT_EQ(a["ms_p20"], 4);
  EXPECT_EQ(a["ms_p80"], 9);
  EXPECT_EQ(a["flops"], 8e9);
  EXPECT_TRUE(a["ratio"].is_null());
  EXPECT_EQ(b["candidate"], "b");
  EXPECT_EQ(b["ms_median"], 4);
  EXPECT_EQ(b["ratio"], 1.5);
  EXPECT_EQ(b["distinct"], false);  // they differ by 2, and a spreads over 5
  EXPECT_NE(printed(steps).find("[  BENCH   ] matmul/forward+backward  bf16 "), std::string::npos);
}

TEST(BenchRecord, RatesFollowFromCostAndMedian) {
  const json line = json::parse(to_json_line(record("a", {2, 1, 3})));
  EXPECT_EQ(line["gbps"], 1.0);  // 2 MB in 2 ms
  EXPECT_EQ(line["of_copy"], 0.25);
  EXPECT_EQ(line["tflops"], 2.0);  // 4 GFLOP in 2 ms
  EXPECT_EQ(line["of_cublas"], 0.25);
}

TEST(BenchRecord, DifferenceBelowTheSpreadIsSaid) {
  const std::string part = "burst: a and b differ by less than the spread from p20 to p80: neither is faster";
  EXPECT_NE(printed({record("a", {1.00, 0.9, 1.1}), record("b", {1.05, 1.04, 1.06})}).find(part), std::string::npos);
  EXPECT_EQ(printed({record("a", {1.00, 0.99, 1.01}), record("b", {1.05, 1.04, 1.06})}).find(part), std::string::npos);
  BenchRecord sustained = record("b", {1.05, 1.04, 1.06});
  sustained.timing = "sustained";
  EXPECT_EQ(printed({record("a", {1.00, 0.9, 1.1}), sustained}).find("neither"), std::string::npos);
}

TEST(BenchRecord, OverruledTimesAreSaid) {
  BenchRecord overruled = record("a", {1, 1, 1});
  EXPECT_FALSE(json::parse(to_json_line(overruled)).contains("overruled"));
  EXPECT_EQ(printed({overruled}).find("judge"), std::string::npos);
  overruled.overruled = 7;
  EXPECT_EQ(json::parse(to_json_line(overruled))["overruled"], 7);
  EXPECT_NE(printed({overruled})
                .find("burst: 7 of 20 times of a are the judge's: its clock excludes what events in the candidate's "
                      "process say"),
            std::string::npos);
}

TEST(BenchRecord, DistributionIsOfRatiosToTheBaseline) {
  std::vector<BenchRecord> records;
  for (const double ratio : {4.0, 1.0, 0.5, 2.0}) {
    records.push_back(record("cublas", {1, 1, 1}));  // the baseline itself
    BenchRecord& ours = records.emplace_back(record("ours", {1, 1, 1}));
    ours.baseline = "cublas", ours.ratio = ratio;
  }
  EXPECT_EQ(printed(records, print_distribution),
            "[  RATES   ] matmul/forward ours burst  4 cases: geometric mean 1.41, 5 % quantile 0.575 times as fast as "
            "cublas; the worst:\n"
            "             0.5  matmul-bf16-1x2x3x4\n"
            "             1  matmul-bf16-1x2x3x4\n"
            "             2  matmul-bf16-1x2x3x4\n"
            "             4  matmul-bf16-1x2x3x4\n");
}

TEST(BenchRecord, DistributionWithoutABaselineIsOfTheCopyRate) {
  BenchRecord failed = record("ours", {1, 1, 1});
  failed.status = RunStatus::crashed;
  EXPECT_EQ(printed({record("ours", {2, 1, 3}), failed}, print_distribution),
            "[  RATES   ] matmul/forward ours burst  1 cases: geometric mean 0.25, 5 % quantile 0.25 of copy; the "
            "worst:\n"
            "             0.25  matmul-bf16-1x2x3x4\n");
}

}  // namespace
}  // namespace checkop::bench_command_test
