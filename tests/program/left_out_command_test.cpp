// SPDX-License-Identifier: Apache-2.0
// Kernels that multiply what is left out by 0, through the whole program: by default they fail, with the reason; where
// the contract asks for finite numbers only they pass.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/process.hpp"
#include "support/run_helper.hpp"

namespace checkop::left_out_command_test {
namespace {

using nlohmann::json;

constexpr const char* kStrict = "contracts/default.json";
constexpr const char* kFramework = "contracts/framework.json";

std::string attention(const std::string& candidate, const std::string& contract, const std::string& dtype = "fp32",
                      const std::string& passes = "forward,backward") {
  return fmt::format(
      "--op attention --pass {} --dtype {} --batch 2 --q-heads 2 --q-seq 4 --head-dim 16 --kv-heads 2 "
      "--kv-seq 33 --with key_padding_mask --causal 0 --device cpu --contract {} --plugin {} --plugin {} --candidate "
      "{}",
      passes, dtype, contract, test_plugin("mutants"), test_plugin("eager_attention"), candidate);
}

/// The cases of the report of a run with one candidate.
json cases_of(const std::string& arguments, int code) {
  const std::string file = fmt::format("{}left_out_{}.json", testing::TempDir(), getpid());
  const ProcessResult run = run_program(fmt::format("{} --json {}", arguments, file));
  EXPECT_EQ(run.code, code) << run.text;
  std::ifstream stream(file);
  return json::parse(stream).at("candidates").at(0).at("cases");
}

constexpr const char* kThatMultiplyByZero[] = {"mutant-masked_keys_multiplied", "eager-least", "eager-infinite"};

TEST(LeftOutCommand, WhatMultipliesByZeroFailsStrictlyAndSaysSo) {
  for (const char* candidate : kThatMultiplyByZero) {
    const json cases = cases_of(attention(candidate, kStrict), 1);
    ASSERT_EQ(cases.size(), 2u);
    for (const json& c : cases) {
      const std::string output = c.at("pass") == "forward" ? "o" : "dq", reason = c.at("reason");
      EXPECT_EQ(c.at("kind"), "nonfinite");
      EXPECT_EQ(c.at("left_out"), "nonfinite");
      EXPECT_EQ(reason.rfind("masked keys are multiplied by 0: NaN there reaches " + output + "; ", 0), 0u) << reason;
      EXPECT_TRUE(reason.ends_with("; passes with finite numbers there (contracts/framework.json grants it)"))
          << reason;
      EXPECT_EQ(c.at("outputs").at(0).at("leaks_left_out"), true);
    }
  }
}

// Rows without keys have an lse of -inf, so the case runs with finite numbers, too. They change nothing about o.
TEST(LeftOutCommand, ARoundingBesideInfinitiesIsNoLeak) {
  const json cases = cases_of(
      "--op attention --pass forward --dtype bf16 --batch 2 --q-heads 4 --q-seq 33 --head-dim 64 "
      "--kv-heads 2 --kv-seq 65 --with key_padding_mask+lse --candidate "
      "mutant-probabilities_rounded --plugin " +
          test_plugin("mutants"),
      1);
  ASSERT_EQ(cases.size(), 1u);
  const json& c = cases.at(0);
  const std::string reason = c.at("reason");
  EXPECT_EQ(c.at("kind"), "accuracy");
  EXPECT_TRUE(reason.ends_with("; passes under p_in_16_bit (contracts/framework.json grants it)")) << reason;
  EXPECT_EQ(c.at("outputs").at(0).at("leaks_left_out"), false);
}

TEST(LeftOutCommand, ItSaysWhichRecipesAreNeededToo) {
  const json cases = cases_of(attention("eager-least", kStrict, "fp16"), 1);
  for (const json& c : cases) {
    const std::string reason = c.at("reason");
    EXPECT_NE(reason.find("; passes with finite numbers there and under "), std::string::npos) << reason;
    EXPECT_NE(reason.find("(contracts/framework.json grants "), std::string::npos) << reason;
    EXPECT_GT(c.at("outputs").at(0).at("passes_under").size(), 0u);
  }
}

TEST(LeftOutCommand, WhatMultipliesByZeroPassesWhereFiniteNumbersAreAskedFor) {
  for (const char* candidate : kThatMultiplyByZero) {
    const bool is_mutant = std::string_view(candidate).starts_with("mutant");
    const json cases = cases_of(attention(candidate, kFramework, is_mutant ? "fp32" : "fp32,fp16,bf16"), 0);
    ASSERT_EQ(cases.size(), is_mutant ? 2u : 6u);
    for (const json& c : cases) {
      EXPECT_EQ(c.at("verdict"), "pass") << c.at("reason");
      EXPECT_EQ(c.at("left_out"), "finite");
      EXPECT_EQ(c.at("outputs").at(0).at("nonfinite"), 0);
    }
  }
  expect_exit(run_program(attention("eager-least", kFramework)), 0, "judged with finite numbers in masked keys");
}

TEST(LeftOutCommand, WhatReadsMaskedKeysFailsUnderBoth) {
  for (const char* candidate : {"mutant-padding_mask_ignored", "eager-weak"}) {
    for (const char* contract : {kStrict, kFramework}) {
      for (const json& c : cases_of(attention(candidate, contract), 1)) {
        const std::string reason = c.at("reason");
        EXPECT_EQ(c.at("verdict"), "fail") << candidate;
        EXPECT_EQ(c.at("kind"), contract == kStrict ? "nonfinite" : "accuracy") << reason;
        EXPECT_EQ(reason.find("multiplied by 0"), std::string::npos) << reason;
        EXPECT_EQ(c.at("outputs").at(0).at("leaks_left_out"), false);
      }
    }
  }
}

TEST(LeftOutCommand, ARightKernelIsJudgedByNanUnderBoth) {
  for (const char* contract : {kStrict, kFramework})
    for (const json& c : cases_of(attention("native", contract), 0)) EXPECT_EQ(c.at("left_out"), "nonfinite");
}

TEST(LeftOutCommand, AKernelThatRefusesNanPassesWhereFiniteNumbersAreAskedFor) {
  const std::string accuracy = " --check accuracy";  // other checks put NaN into other batch entries
  for (const json& c : cases_of(attention("eager-checked", kStrict) + accuracy, 1))
    EXPECT_EQ(c.at("reason"), "the candidate failed: k or v is not finite");
  for (const json& c : cases_of(attention("eager-checked", kFramework) + accuracy, 0))
    EXPECT_EQ(c.at("left_out"), "finite");
}

TEST(LeftOutCommand, OneRunIsJudgedByBothContracts) {
  const std::string flags = attention("eager-least", kStrict);
  const size_t contract = flags.find(" --contract "), rest = flags.find(" --plugin");
  const std::string without = flags.substr(0, contract) + flags.substr(rest);
  for (const auto& [a, b] : {std::pair{kStrict, kFramework}, {kFramework, kStrict}})
    expect_exit(run_program(fmt::format("contract diff {} {} {}", a, b, without)), 1,
                "2 checks judged by both: 2 verdicts change");
}

TEST(LeftOutCommand, ASavedCaseHoldsTheDataThatItWasJudgedBy) {
  const std::string folder = fmt::format("{}left_out_saved_{}", testing::TempDir(), getpid());
  for (const auto& [contract, code] : {std::pair{kStrict, 1}, {kFramework, 0}}) {
    std::filesystem::remove_all(folder);
    run_program(attention("eager-least", contract, "fp32", "forward") + " --save all --save-tensors " + folder);
    int64_t files = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      const ProcessResult replay =
          run_program(fmt::format("--replay {} --contract {}", file.path().string(), contract));
      expect_exit(replay, code,
                  code == 0 ? "judged with finite numbers in masked keys" : "not finite where the gold is");
      ++files;
    }
    EXPECT_EQ(files, 1) << contract;
  }
}

TEST(LeftOutCommand, TheRepeatLineGivesTheSameVerdict) {
  for (const char* contract : {kStrict, kFramework}) {
    for (const json& c : cases_of(attention("eager-weak", contract), 1)) {
      const std::string repeat = c.at("repeat");
      const json again = cases_of(repeat.substr(repeat.find(' ')), 1);
      ASSERT_EQ(again.size(), 1u);
      EXPECT_EQ(again.at(0).at("reason"), c.at("reason"));
      EXPECT_EQ(again.at(0).at("data_hash"), c.at("data_hash"));
    }
  }
}

TEST(LeftOutCommand, OwnDataAreTakenAsTheyAre) {
  const std::string folder = fmt::format("{}left_out_own_{}", testing::TempDir(), getpid());
  std::filesystem::remove_all(folder);
  run_program(attention("eager-least", kStrict, "fp32", "forward") + " --save all --save-tensors " + folder);
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string path = file.path().string();
    const json cases = cases_of(attention("eager-least", kFramework, "fp32", "forward") +
                                    fmt::format(" --input k={0}:input/k --input v={0}:input/v", path),
                                1);
    EXPECT_EQ(cases.at(0).at("left_out"), "nonfinite");
    EXPECT_EQ(cases.at(0).at("kind"), "nonfinite");
  }
}

}  // namespace
}  // namespace checkop::left_out_command_test
