// SPDX-License-Identifier: Apache-2.0
// The program for a user: exit codes, each with its one-sentence message.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "support/built.hpp"
#include "support/process.hpp"

namespace checkop::cli_test {
namespace {

const std::string kTiny = "--op logp --device cpu --dtype fp32 --batch 1 --seq 2 --vocab 17 ";

std::string plugin(const std::string& stem) { return fmt::format("--plugin {}/{}.so ", kPluginFolder, stem); }

TEST(Cli, PassExitsZero) {
  expect_exit(run_program(kTiny + "--candidate native --check-grad"), 0, "[  PASSED  ] 2 pass");
}

TEST(Cli, SeedsExampleCommandsRunAsTyped) {
  EXPECT_EQ(run_program("--op logp --candidate native --dtype fp32 --device cpu --batch 1 --seq 2 --vocab 17").code, 0);
  EXPECT_EQ(
      run_program("--op logp --candidate native --dtype fp32 --device cpu --batch 1 --seq 2 --vocab 17 --check-grad "
                  "--grad-mode random --json")
          .code,
      0);
  EXPECT_EQ(
      run_program("--op linear_logp --candidate native --dtype fp32 --device cpu --batch 1 --seq 2 --normalized-dim 16 "
                  "--vocab 17")
          .code,
      0);
}

TEST(Cli, NumericalFailureExitsOneWithARepeatLine) {
  const ProcessResult result = run_program(kTiny + plugin("mutants") + "--candidate mutant-zeros");
  expect_exit(result, 1, "repeat: check_operator --op logp --pass forward");
  // The printed repeat line gives the same verdict.
  const size_t at = result.text.find("repeat: check_operator ") + 23;
  expect_exit(run_program(result.text.substr(at, result.text.find('\n', at) - at)), 1, "[  FAILED  ] 1 fail");
}

TEST(Cli, ABatchWithoutRowsPassesAndSaysSo) {
  const ProcessResult result = run_program(
      "--op logp,lm_head --device cpu --candidate native --check-grad --batch 0 --seq 2 --vocab 17 --hidden 8");
  expect_exit(result, 0, "[  PASSED  ] 4 pass");
  EXPECT_NE(result.text.find("headroom logp empty"), std::string::npos) << result.text;
  EXPECT_NE(result.text.find("no rows: launch and memory only"), std::string::npos);
  EXPECT_NE(result.text.find("no rows: the launch, the memory and what sums over rows"), std::string::npos);
}

TEST(Cli, InvarianceByNameProvesItselfAndRunsItsPositiveControl) {
  const ProcessResult ran = run_program(
      "--op matmul --candidate native --device cpu --batch 1 --seq 4 --k-dim 64 --n-dim 16 --check invariance --json");
  EXPECT_EQ(ran.code, 0) << ran.text;
  const auto report = nlohmann::json::parse(ran.text);
  ASSERT_EQ(report["controls"].size(), 1u);
  EXPECT_TRUE(report["controls"][0]["caught"]);
  const auto& found = report["candidates"][0]["cases"][0];
  EXPECT_TRUE(found["bit_checks"][0]["sensitivity"]["proves"]);
  EXPECT_LT(found["bit_checks"][0]["sensitivity"]["unseen"], 1e-9);
}

TEST(Cli, SumsTooShortToShowAnOrderAreVacuous) {
  const ProcessResult ran = run_program(
      "--op matmul --candidate native --device cpu --dtype bf16 --batch 1 --seq 2 --k-dim 3 --n-dim 1 "
      "--check invariance");
  EXPECT_EQ(ran.code, 1) << ran.text;
  EXPECT_NE(ran.text.find("another order of summation changes"), std::string::npos) << ran.text;
}

TEST(Cli, RandomCasesAreRunUntilTheirTimeIsUp) {
  const ProcessResult ran =
      run_program("--op silu --candidate native --device cpu --random-cases 20000 --for 1 --check accuracy --json");
  EXPECT_EQ(ran.code, 0) << ran.text;
  const auto report = nlohmann::json::parse(ran.text);
  const auto& cases = report["candidates"][0]["cases"];
  EXPECT_EQ(report["planned"], cases.size());
  EXPECT_FALSE(cases.empty());
  EXPECT_LT(cases.size(), 20000u);
}

TEST(Cli, RandomCasesDiffer) {
  const ProcessResult listed = run_program("--op silu --candidate native --device cpu --random-cases 8 --list");
  EXPECT_EQ(listed.code, 0) << listed.text;
  std::set<std::string> names;
  std::istringstream lines(listed.text);
  for (std::string line; std::getline(lines, line);) names.insert(line.substr(0, line.find('#')));
  EXPECT_EQ(names.size(), 8u) << listed.text;
}

TEST(Cli, DataThatAnOperatorLacksAreCalledRandom) {
  const ProcessResult result =
      run_program("--op matmul,logp --device cpu --candidate native --input-mode extreme --list");
  expect_exit(result, 0, "logp/forward/native/logp-fp32-2x16x257~extreme");
  EXPECT_NE(result.text.find("matmul-fp32-2x16x4096x4096 "), std::string::npos) << result.text;
}

TEST(Cli, BadInputExitsTwoWithOneSentence) {
  const std::string folder = testing::TempDir();
  std::ofstream(folder + "nan.json")
      << R"({"accuracy": {"default": {"logprob": {"fp32": {"atol": "NaN", "rtol": 0}}}}, "batch_invariance": {"atol": 0, "rtol": 0}})";
  const std::pair<std::string, std::string> mistakes[] = {
      {"--op logp --device cpu --vocab 0", "--vocab: expected an integer >= 1, got 0"},
      {"--op logp --device cpu --batch -1", "--batch: expected an integer >= 1, got -1"},
      {"--op lgp", "did you mean 'logp'?"},
      {kTiny + "--contract missing.json", "missing.json: cannot be opened"},
      {kTiny + "--contract " + folder + "nan.json", "accuracy.default.logprob.fp32.atol"},
      {kTiny + "--arch-key sm91", "unknown architecture 'sm91'"},
      {kTiny + "--arch-key sm90", "--force-arch-key"},
      {kTiny + "--candidate natve", "did you mean 'native'?"},
      {"--op logp --device gpu", "unknown device 'gpu'"},
      {"--op logp --device cpu --dtype fp8", "fp8"},
      {kTiny + "--hidden 8", "no selected operator has it"},
      {"--op matmul --device cpu --ignored-every 4",
       "--ignored-every: no selected operator has an attribute ignore_index"},
      {"--op matmul --device cpu --ignored-run 4", "--ignored-run: no selected operator has an attribute ignore_index"},
      {kTiny + "--ignored-run 0", "--ignored-run: expected an integer >= 1, got 0"},
      {kTiny + "--ignored-every -2", "--ignored-every: expected an integer >= 0, got -2"},
      {kTiny + "--ignore-index 0.5", "--ignore-index: expected an integer, got 0.5"},
      {"--op silu --device cpu --input-mode extreme",
       "--input-mode: extreme is for operators with a softmax or products of codes"},
      {"--op rope --device cpu --head-dim 5", "--head-dim: head_dim must be even, got 5"},
      {"--op attention --device cpu --q-heads 3 --kv-heads 2",
       "--q-heads: 3 query heads are not a multiple of 2 key heads"},
      {"--op grpo_loss --device cpu --batch 3", "--samples-per-prompt: expected an integer >= 2 that divides"},
      {"--op grpo_loss --device cpu --with group_boundaries --group-bounds 9",
       "--group-bounds: 9 boundaries cannot cut"},
      {"--op grpo_loss --device cpu --batch 0",
       "--batch: expected an integer >= 1, got 0; grpo_loss reduces over the whole batch"},
      {kTiny + "--with bias", "no selected operator has an optional input 'bias'"},
      {kTiny + "--plugin missing.so", "missing.so"},
      {"--suite none --device cpu", "--suite"},
      {"--suite smoke --device cpu --vocab 5", "has no effect on cases that come from files"},
      {"--suite smoke --device cpu --preset qwen3-8b", "has no effect on cases that come from files"},
      {"--op logp,attention --device cpu --preset stress-v262k", "lacks fields that the sizes of attention need"},
      {"--op logp --device cpu --preset qwen3-8", "did you mean 'qwen3-8b'?"},
      {"--suite smoke --device cpu --op lgp", "did you mean 'logp'?"},
      {kTiny + "--token-value 3", "--input-mode constant"},
      {kTiny + "--save all", "--save-tensors"},
      {kTiny + "--gold-rows some", "--gold-rows"},
      {kTiny + "--gold-rows 0", "--gold-rows"},
      {kTiny + "--gold-rows 2,4", "--gold-rows"},
      {kTiny + "--seed -1", "--seed"},
      {kTiny + "--timeout-s 9300000000", "--timeout-s"},
      {kTiny + "--input-mode constant --constant-value 1e60", "--constant-value"},
      {"--replay x.safetensors --op logp", "has no effect with --replay"},
      {"--replay missing.safetensors", "missing.safetensors: cannot be opened"},
      {kTiny + "--json /nowhere/report.json --candidate native", "/nowhere/report.json"},
      {"show lgp", "did you mean 'logp'?"},
      {"--no-such-flag", "--no-such-flag"},
  };
  for (const auto& [arguments, part] : mistakes) {
    const ProcessResult result = run_program(arguments);
    expect_exit(result, 2, part);
    EXPECT_EQ(result.text.find("terminate"), std::string::npos) << result.text;
  }
}

TEST(Cli, NothingCheckedExitsThree) {
  expect_exit(run_program(kTiny + "--filter 'none/*'"), 3, "Nothing was checked");
  expect_exit(run_program("--op logp --device cpu --dtype fp64 --candidate native --batch 1 --seq 2 --vocab 17"), 3,
              "1 unsupported");
}

TEST(Cli, CrashAndTimeLimitExitFourAndTheRestIsReported) {
  const std::string report = testing::TempDir() + "crash.json";
  std::filesystem::remove(report);
  expect_exit(run_program("--op matmul --device cpu --batch 1 --seq 2 --k-dim 2 --n-dim 4 " + plugin("crashes") +
                          "--candidate segfaults,native --json " + report),
              4, "Segmentation fault");
  const auto json = nlohmann::json::parse(std::ifstream(report));
  EXPECT_EQ(json["exit_code"], 4);
  EXPECT_EQ(json["candidates"].size(), 2u);
  EXPECT_EQ(json["candidates"][1]["passed"], true);
  expect_exit(run_program("--op matmul --device cpu --batch 1 --seq 2 --k-dim 2 --n-dim 4 " + plugin("crashes") +
                          "--candidate sleeps --timeout-s 1"),
              4, "1 timeout");
}

TEST(Cli, MissingDeviceExitsFive) {
  const ProcessResult result =
      run_program("--op logp --candidate cuda --device cuda:9 --dtype bf16 --batch 1 --seq 1 --vocab 4096");
  expect_exit(result, 5, "--device cuda:9");
}

TEST(Cli, JsonGoesToStandardOutputAlone) {
  const ProcessResult result = run_program(kTiny + "--candidate native --json");
  const auto json = nlohmann::json::parse(result.text);
  EXPECT_EQ(json["passed"], true);
  EXPECT_EQ(json["candidates"][0]["cases"][0]["case_name"], "logp-fp32-1x2x17");
}

TEST(Cli, ListShowAndSelectionWork) {
  expect_exit(run_program("list"), 0, "linear_logp");
  expect_exit(run_program("list"), 0, "qwen3-8b        hidden 4096  inter 12288  q_heads 32  kv_heads 8  head_dim 128");
  expect_exit(run_program("show linear_logp"), 0, "lm_head_weight");
  expect_exit(run_program("show matmul"), 0, "k_dim = hidden, n_dim = q_heads*head_dim+2*kv_heads*head_dim");
  expect_exit(run_program("show attention"), 0, "size v_dim (default head_dim)");
  expect_exit(run_program(kTiny + "--candidate native --list"), 0, "logp/forward/native/logp-fp32-1x2x17  160 B\n");
  expect_exit(run_program("--op all --preset stress-v262k --device cpu --candidate native --list"), 0,
              "logp/forward/native/logp-fp32-2x16x262144  ");
  expect_exit(run_program("--suite nightly --device cpu --candidate native --list"), 0,
              "logp/backward/native/logp-bf16-1x14144x151936  8.0 GiB\n");
  const ProcessResult help = run_program("--help");
  expect_exit(help, 0, "Exit codes");
  expect_exit(help, 0, "tensor-parallel parts: where each rank's part begins");
  expect_exit(help, 0, "run only this run shard, counted from 0");
  expect_exit(help, 0, "none begins a check after its share");
  expect_exit(help, 0, "smoke, ci, nightly, large, captured, invariance, mutation");
  expect_exit(run_program("--version"), 0, ".");
}

TEST(Cli, SavedCasesAreJudgedAgain) {
  const std::string folder = testing::TempDir() + "replayed";
  std::filesystem::remove_all(folder);
  EXPECT_EQ(run_program(kTiny + plugin("mutants") + "--candidate native,mutant-zeros --save-tensors " + folder +
                        " --save all")
                .code,
            1);
  expect_exit(run_program(fmt::format("--replay {}/native-forward-logp-fp32-1x2x17.safetensors", folder)), 0, "1 pass");
  expect_exit(run_program(fmt::format("--replay {}/mutant-zeros-forward-logp-fp32-1x2x17.safetensors", folder)), 1,
              "1 fail");
}

TEST(Cli, OnlyIncorrectCasesAreSavedUnlessAllAreAskedFor) {
  const std::string folder = testing::TempDir() + "incorrect";
  std::filesystem::remove_all(folder);
  EXPECT_EQ(run_program(kTiny + plugin("mutants") + "--candidate native,mutant-zeros --save-tensors " + folder).code,
            1);
  EXPECT_TRUE(std::filesystem::exists(folder + "/mutant-zeros-forward-logp-fp32-1x2x17.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/native-forward-logp-fp32-1x2x17.safetensors"));
}

TEST(Cli, SeedsContractLoadsAndJudges) {
  expect_exit(run_program(kTiny + "--candidate native --check-grad --contract contracts/rl_kernel.json"), 0, "2 pass");
}

TEST(Cli, SuitesAreNarrowedByOperatorDtypeAndPass) {
  const ProcessResult result =
      run_program("--suite smoke --device cpu --candidate native --op matmul --dtype bf16 --pass forward --list");
  expect_exit(result, 0, "matmul/forward/native/matmul-bf16-");
  EXPECT_EQ(result.text.find("logp"), std::string::npos) << result.text;
  EXPECT_EQ(result.text.find("fp32"), std::string::npos) << result.text;
}

TEST(Cli, ZerosAloneProveNothing) {
  expect_exit(run_program("--op logp --device cpu --candidate native --batch 1 --seq 2 --vocab 1"), 1, "vacuous");
}

TEST(Cli, PassThatWasNamedAndNoCandidateHasExitsThree) {
  const std::string flags = "--op matmul --device cpu --batch 1 --seq 2 --k-dim 2 --n-dim 4 --check-grad ";
  expect_exit(run_program(flags + "--filter '*/honest/*' " + plugin("honest")), 3,
              "'honest' has no kernel for matmul/backward");
  expect_exit(run_program(flags + "--candidate honest,even_rows " + plugin("honest")), 3,
              "none of 'honest', 'even_rows' has a kernel for matmul/backward");
}

TEST(Cli, SuiteAsksCandidatesOnlyForWhatTheyHave) {
  const ProcessResult ran = run_program(
      "--suite smoke --device cpu --candidate native,honest --dtype fp32 --op matmul,silu " + plugin("honest"));
  expect_exit(ran, 0, "[  PASSED  ]");
  EXPECT_EQ(ran.text.find("unsupported"), std::string::npos) << ran.text;
  EXPECT_NE(ran.text.find("matmul/forward  honest"), std::string::npos) << ran.text;
  EXPECT_EQ(ran.text.find("silu/forward  honest"), std::string::npos) << ran.text;
}

TEST(Cli, SeedReseedsASuiteAndTheRepeatLineRepeatsTheCase) {
  const std::string suite = "--suite smoke --op silu --pass forward --dtype fp32 --device cpu ";
  const ProcessResult listed = run_program(suite + "--candidate native --seed 7 --list");
  expect_exit(listed, 0, "#7");
  const ProcessResult failed = run_program(suite + plugin("mutants") + "--candidate mutant-zeros --seed 7");
  expect_exit(failed, 1, " --seed 7 ");
  const size_t at = failed.text.find("repeat: check_operator ") + 23;
  expect_exit(run_program(failed.text.substr(at, failed.text.find('\n', at) - at)), 1, "seed=7");
}

TEST(Cli, TimeOfForIsSharedAmongCandidates) {
  const ProcessResult ran = run_program(
      "--op matmul --candidate native,honest,uses_workspace --device cpu --random-cases 20000 --for 3 --check accuracy "
      "--batch 1 --seq 4 --k-dim 8 --json " +
      plugin("honest"));
  const auto report = nlohmann::json::parse(ran.text);
  ASSERT_EQ(report["candidates"].size(), 3u) << ran.text.substr(0, 500);
  size_t made = 0;
  for (const auto& candidate : report["candidates"]) {
    EXPECT_GT(candidate["cases"].size(), 0u) << candidate["name"];
    EXPECT_LT(candidate["cases"].size(), 20000u) << candidate["name"];
    made += candidate["cases"].size();
  }
  EXPECT_EQ(report["planned"], made);
}

TEST(Cli, MutateSaysWhatItKnowsAsItGoes) {
  const std::string command =
      fmt::format("cd '{}' && '{}' mutate --op rope,silu --dtype fp32 2>&1", CHECKOP_SOURCE_DIR, kProgram);
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  std::FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text;
  double head = 0, first = 0,
         all = 0;  // seconds until the line of the contract, the first table and the rest are there
  char buffer[4096];
  for (ssize_t n; (n = read(fileno(pipe), buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
    all = seconds();
    if (head == 0 && text.find("(hash ") != std::string::npos) head = all;
    if (first == 0 && text.find("rope/backward\n") != std::string::npos) first = all;
  }
  EXPECT_EQ(WEXITSTATUS(pclose(pipe)), 0) << text;
  EXPECT_NE(text.find("silu/forward\n"), std::string::npos) << text;
  EXPECT_LT(head, 0.6 * all);
  EXPECT_LT(first, 0.9 * all);
}

TEST(Cli, ForcedArchKeyIsTaken) {
  expect_exit(run_program(kTiny + "--candidate native --arch-key sm90 --force-arch-key"), 0, "1 pass");
}

}  // namespace
}  // namespace checkop::cli_test
