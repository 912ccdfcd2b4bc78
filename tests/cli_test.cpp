// SPDX-License-Identifier: Apache-2.0
// The program as a user meets it: exit codes and the one sentence that goes with each.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace checkop {
namespace {

struct Result {
  int code;
  std::string text;  ///< stdout and stderr
};

Result run(const std::string& arguments) {
  const std::string command = fmt::format("cd '{}' && '{}' {} 2>&1", CHECKOP_SOURCE_DIR, CHECKOP_EXECUTABLE, arguments);
  std::FILE* pipe = popen(command.c_str(), "r");
  Result result{-1, ""};
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) result.text.append(buffer, n);
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

const std::string kTiny = "--op logp --device cpu --dtype fp32 --batch 1 --seq 2 --vocab 17 ";

std::string plugin(const std::string& stem) { return fmt::format("--plugin {}/{}.so ", CHECKOP_TEST_PLUGIN_DIR, stem); }

void expect(const Result& result, int code, const std::string& part) {
  EXPECT_EQ(result.code, code) << result.text;
  EXPECT_NE(result.text.find(part), std::string::npos) << "no '" << part << "' in: " << result.text;
}

TEST(Cli, PassExitsZero) { expect(run(kTiny + "--candidate native --check-grad"), 0, "[  PASSED  ] 2 pass"); }

TEST(Cli, SeedsExampleCommandsRunAsTyped) {
  EXPECT_EQ(run("--op logp --candidate native --dtype fp32 --device cpu --batch 1 --seq 2 --vocab 17").code, 0);
  EXPECT_EQ(run("--op logp --candidate native --dtype fp32 --device cpu --batch 1 --seq 2 --vocab 17 --check-grad "
                "--grad-mode random --json")
                .code,
            0);
  EXPECT_EQ(run("--op linear_logp --candidate native --dtype fp32 --device cpu --batch 1 --seq 2 --normalized-dim 16 "
                "--vocab 17")
                .code,
            0);
}

TEST(Cli, NumericalFailureExitsOneWithARepeatLine) {
  const Result result = run(kTiny + plugin("mutants") + "--candidate mutant-zeros");
  expect(result, 1, "repeat: check_operator --op logp --pass forward");
  // The repeat line, as printed, gives the same verdict.
  const size_t at = result.text.find("repeat: check_operator ") + 23;
  expect(run(result.text.substr(at, result.text.find('\n', at) - at)), 1, "[  FAILED  ] 1 fail");
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
      {kTiny + "--with bias", "no selected operator has an optional input 'bias'"},
      {kTiny + "--plugin missing.so", "missing.so"},
      {kTiny + "--suite none", "--suite"},
      {kTiny + "--replay missing.safetensors", "missing.safetensors: cannot be opened"},
      {kTiny + "--json /nowhere/report.json --candidate native", "/nowhere/report.json"},
      {"show lgp", "did you mean 'logp'?"},
      {"--no-such-flag", "--no-such-flag"},
  };
  for (const auto& [arguments, part] : mistakes) {
    const Result result = run(arguments);
    expect(result, 2, part);
    EXPECT_EQ(result.text.find("terminate"), std::string::npos) << result.text;
  }
}

TEST(Cli, NothingCheckedExitsThree) {
  expect(run(kTiny + "--filter 'none/*'"), 3, "Nothing was checked");
  expect(run("--op logp --device cpu --dtype fp64 --candidate native --batch 1 --seq 2 --vocab 17"), 3,
         "1 unsupported");
}

TEST(Cli, CrashAndTimeLimitExitFourAndTheRestIsReported) {
  const std::string report = testing::TempDir() + "crash.json";
  std::filesystem::remove(report);
  expect(run("--op matmul --device cpu --batch 1 --seq 2 --k-dim 2 --n-dim 4 " + plugin("crashes") +
             "--candidate segfaults,native --json " + report),
         4, "Segmentation fault");
  const auto json = nlohmann::json::parse(std::ifstream(report));
  EXPECT_EQ(json["exit_code"], 4);
  EXPECT_EQ(json["candidates"].size(), 2u);
  EXPECT_EQ(json["candidates"][1]["passed"], true);
  expect(run("--op matmul --device cpu --batch 1 --seq 2 --k-dim 2 --n-dim 4 " + plugin("crashes") +
             "--candidate sleeps --timeout-s 1"),
         4, "1 timeout");
}

TEST(Cli, MissingDeviceExitsFive) {
  const Result result = run("--op logp --candidate cuda --device cuda:9 --dtype bf16 --batch 1 --seq 1 --vocab 4096");
  expect(result, 5, "--device cuda:9");
}

TEST(Cli, JsonGoesToStandardOutputAlone) {
  const Result result = run(kTiny + "--candidate native --json");
  const auto json = nlohmann::json::parse(result.text);
  EXPECT_EQ(json["passed"], true);
  EXPECT_EQ(json["candidates"][0]["cases"][0]["case_name"], "logp-fp32-1x2x17");
}

TEST(Cli, ListShowAndSelectionWork) {
  expect(run("list"), 0, "linear_logp");
  expect(run("show linear_logp"), 0, "lm_head_weight");
  expect(run(kTiny + "--candidate native --list"), 0, "logp/forward/native/logp-fp32-1x2x17");
  expect(run("--help"), 0, "Exit codes");
  expect(run("--version"), 0, ".");
}

TEST(Cli, SavedCasesAreJudgedAgain) {
  const std::string folder = testing::TempDir() + "replayed";
  std::filesystem::remove_all(folder);
  EXPECT_EQ(
      run(kTiny + plugin("mutants") + "--candidate native,mutant-zeros --save-tensors " + folder + " --save all").code,
      1);
  expect(run(fmt::format("--replay {}/native-forward-logp-fp32-1x2x17.safetensors", folder)), 0, "1 pass");
  expect(run(fmt::format("--replay {}/mutant-zeros-forward-logp-fp32-1x2x17.safetensors", folder)), 1, "1 fail");
}

TEST(Cli, OnlyIncorrectCasesAreSavedUnlessAllAreAskedFor) {
  const std::string folder = testing::TempDir() + "incorrect";
  std::filesystem::remove_all(folder);
  EXPECT_EQ(run(kTiny + plugin("mutants") + "--candidate native,mutant-zeros --save-tensors " + folder).code, 1);
  EXPECT_TRUE(std::filesystem::exists(folder + "/mutant-zeros-forward-logp-fp32-1x2x17.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/native-forward-logp-fp32-1x2x17.safetensors"));
}

TEST(Cli, SeedsContractLoadsAndJudges) {
  expect(run(kTiny + "--candidate native --check-grad --contract contracts/rl_kernel.json"), 0, "2 pass");
}

TEST(Cli, ForcedArchKeyIsTaken) {
  expect(run(kTiny + "--candidate native --arch-key sm90 --force-arch-key"), 0, "1 pass");
}

}  // namespace
}  // namespace checkop
