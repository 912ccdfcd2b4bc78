// SPDX-License-Identifier: Apache-2.0
// Case files: what they may say, and that every mistake names file and path.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "contract_helper.hpp"
#include "error.hpp"
#include "sweep.hpp"

namespace checkop {
namespace {

using contract_test::error_of;

std::string write(const std::string& cases) {
  const std::string path = testing::TempDir() + "cases_under_test.json";
  std::ofstream(path) << R"({"format": "check_operator/cases-1", "cases": )" << cases << "}";
  return path;
}

std::string error_in(const std::string& cases) {
  return error_of([&] { load_cases(write(cases), ""); });
}

TEST(CaseFile, EntriesExpandLikeFlags) {
  const auto cases = load_cases(
      write(
          R"([{"op": "linear_logp", "pass": "forward", "dtype": ["fp32", "bf16"], "dims": {"vocab": [5, 9], "seq": "1:4:x2", "hidden": 8},
     "with": ["none", "bias"], "input_mode": "peaked", "seed": 7}])"),
      "");
  EXPECT_EQ(cases.size(), 2u * 2u * 3u * 2u);
  EXPECT_EQ(case_name(cases.front()), "linear_logp-fp32-2x1x8x5~peaked#7");
  EXPECT_EQ(cases.front().seed, 7u);
}

TEST(CaseFile, AllOperatorsAndListsOfThemWork) {
  EXPECT_EQ(load_cases(write(R"([{"op": "all", "pass": "forward", "dtype": "fp32"}])"), "").size(), operators().size());
  EXPECT_EQ(load_cases(write(R"([{"op": ["logp", "matmul"], "pass": "forward", "dtype": "fp32"}])"), "").size(), 2u);
}

TEST(CaseFile, SuitesSelect) {
  const std::string path = write(
      R"([{"op": "logp", "pass": "forward", "dtype": "fp32", "suites": ["smoke"]}, {"op": "logp", "pass": "forward", "dtype": "bf16", "suites": ["ci"]},
                             {"op": "logp", "pass": "forward", "dtype": "fp16"}])");
  EXPECT_EQ(load_cases(path, "").size(), 3u);
  EXPECT_EQ(load_cases(path, "smoke").size(), 1u);
}

TEST(CaseFile, MistakesNameFileAndPath) {
  const std::pair<const char*, const char*> mistakes[] = {
      {R"([{"op": "lgp"}])", "cases[0].op: unknown operator 'lgp'"},
      {R"([{}])", "cases[0]"},
      {R"([{"op": "linear_logp", "with": ["bais"]}])", "no selected operator has an optional input 'bais'"},
      {R"([{"op": "logp", "dims": {"vocab": -4}}])", "cases[0].dims.vocab: expected an integer"},
      {R"([{"op": "logp", "ignored_every": -1}])", "cases[0].ignored_every: expected an integer"},
      {R"([{"op": "logp", "dims": {"vocb": 4}}])", "vocb"},
      {R"([{"op": "logp", "dims": {"vocab": "4:1"}}])", "cases[0].dims.vocab"},
      {R"([{"op": "logp"}, {"op": "logp", "dtype": "int8"}])", "cases[1].dtype"},
      {R"([{"op": "logp", "size": 4}])", "size"},
      {R"([{"op": "logp", "input_mode": "zeros"}])", "cases[0].input_mode"},
      {R"([{"op": "logp", "seed": -1}])", "cases[0].seed"},
      {R"({"op": "logp"})", "cases: expected an array"},
      {R"([{"op": "logp", "dims": {"vocab": []}}])", "cases[0].dims.vocab"},
  };
  for (const auto& [text, part] : mistakes) {
    const std::string message = error_in(text);
    EXPECT_NE(message.find("cases_under_test.json"), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(CaseFile, MissingFilesAndEmptyFoldersAreErrors) {
  EXPECT_NE(error_of([] { load_cases("missing.json", ""); }).find("missing.json: cannot be opened"), std::string::npos);
  const std::string folder = testing::TempDir() + "no_cases_here";
  std::filesystem::create_directories(folder);
  EXPECT_NE(error_of([&] { load_cases(folder, ""); }).find("holds no *.json"), std::string::npos);
}

TEST(CaseFile, RowsMayBeNoneAndIgnored) {
  const auto cases = load_cases(
      write(R"([{"op": "logp", "pass": "forward", "dtype": "fp32", "dims": {"batch": [0, 2]}, "ignored_every": 3}])"),
      "");
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(case_name(cases[0]), "logp-fp32-0x16x257~ignored3");
  EXPECT_EQ(error_in(R"([{"op": "logp", "dims": {"vocab": 0}}])").find("--vocab: expected an integer >= 1, got 0"), 0u);
}

/// Whether a shipped case of the pass in the smoke suite is one that `wanted` describes.
template <class Wanted>
bool smoke_has(const Operator& op, const Pass& pass, Wanted wanted) {
  static const std::vector<Case> cases = load_cases(CHECKOP_SOURCE_DIR "/cases", "smoke");
  return std::any_of(cases.begin(), cases.end(),
                     [&](const Case& c) { return c.op == &op && c.pass == &pass && wanted(c); });
}

TEST(CaseFile, TheSmokeSuiteHasEveryOperatorsEdges) {
  for (const Operator* op : operators()) {
    for (const Pass& pass : op->passes) {
      const std::string name = std::string(op->name) + "/" + std::string(pass.name);
      const auto all_rows = [](const Case& c) {
        int64_t rows = c.dims.at("batch");
        if (c.dims.contains("seq") && c.op->name != "rope") rows *= c.dims.at("seq");
        return rows;
      };
      EXPECT_EQ(smoke_has(*op, pass, [&](const Case& c) { return all_rows(c) == 0; }), !op->row_dims.empty()) << name;
      EXPECT_TRUE(smoke_has(*op, pass, [&](const Case& c) { return all_rows(c) > 65536; })) << name;
      EXPECT_TRUE(smoke_has(*op, pass, [](const Case& c) { return c.input_mode == InputMode::integer; }) ||
                  op->name == "linear_logp")
          << name;
      for (const TensorSpec& spec : pass.inputs) {
        if (!spec.optional) continue;
        for (const bool with : {false, true}) {
          EXPECT_TRUE(smoke_has(*op, pass, [&](const Case& c) { return c.optionals.contains(spec.name) == with; }))
              << name << " " << spec.name << " " << with;
        }
      }
      if (!op->passes.front().inputs.empty() && find_pass(*op, "forward")->inputs[0].fill == Fill::logits) {
        EXPECT_TRUE(smoke_has(*op, pass, [](const Case& c) { return c.input_mode == InputMode::extreme; })) << name;
        for (const int64_t vocab : {1, 31, 32, 33, 127, 128, 129, 4097}) {
          EXPECT_TRUE(smoke_has(*op, pass, [&](const Case& c) { return c.dims.at("vocab") == vocab; })) << name;
        }
      }
    }
  }
}

TEST(CaseFile, ShippedFilesLoadAndCoverEveryOperatorInTheSmokeSuite) {
  std::set<const Operator*> seen;
  for (const Case& c : load_cases(CHECKOP_SOURCE_DIR "/cases", "smoke")) seen.insert(c.op);
  EXPECT_EQ(seen.size(), operators().size());
}

}  // namespace
}  // namespace checkop
