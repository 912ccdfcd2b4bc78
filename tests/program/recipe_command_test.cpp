// SPDX-License-Identifier: Apache-2.0
// Kernels that round an intermediate value: what a declaration counts for, and what check_operator recipe finds out.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/process.hpp"
#include "support/run_helper.hpp"

namespace checkop::recipe_command_test {
namespace {

using nlohmann::json;

const std::string kRow = "normalised_row_in_16_bit";
const std::string kCase = "--op rms_norm --batch 2 --seq 4 --hidden 512 --device cpu ";

std::string mutants(const std::string& candidates) {
  return fmt::format("--plugin '{}' --candidate {} ", test_plugin("mutants"), candidates);
}

/// A contract like the default one that allows kernels to declare `recipe`.
std::string allowing(const std::string& recipe) {
  const std::string path = testing::TempDir() + "allows_" + recipe + ".json";
  const std::string base = std::filesystem::relative(CHECKOP_SOURCE_DIR "/contracts/default.json", testing::TempDir());
  std::ofstream(path) << fmt::format(
      R"({{"format": "check_operator/contract-2", "name": "n", "extends": "{}", "declared_recipes": ["{}"]}})", base,
      recipe);
  return "--contract " + path + " ";
}

TEST(DeclaredRecipes, CountWhereTheContractAllowsThem) {
  const std::string run = kCase + "--dtype bf16 " + mutants("recipe-" + kRow);
  const ProcessResult allowed = run_program(run + allowing(kRow));
  expect_exit(allowed, 0, "y judged under normalised_row_in_16_bit, granted by declared_recipes");
  EXPECT_EQ(allowed.text.find("does not allow"), std::string::npos) << allowed.text;
  expect_exit(run_program(run), 1,
              "declares normalised_row_in_16_bit, which the contract's declared_recipes does not allow");
  expect_exit(run_program(run + allowing("weighted_gradient_in_16_bit")), 1, "does not allow");
}

TEST(DeclaredRecipes, CountForTheKernelThatDeclaresThemAlone) {
  // This one rounds the row, too, and says nothing.
  const std::string script = testing::TempDir() + "rounds_silently.py";
  std::ofstream(script) << fmt::format(R"(
import sys
sys.path.insert(0, "{}/python")
import numpy as np
from check_operator.serving import serve

def rms_norm(x, weight, eps):
    wide = x.astype(np.float32)
    row = wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + np.float32(eps))
    return (row.astype(x.dtype).astype(np.float32) * weight).astype(x.dtype)

recipes = {{"rms_norm/forward": ["{}"]}} if sys.argv[1:] == ["tells"] else None
serve({{"rms_norm/forward": rms_norm}}, recipes=recipes)
)",
                                       CHECKOP_SOURCE_DIR, kRow);
  const auto run = [&](const std::string& more) {
    return run_program(fmt::format("{} --dtype fp16 {} --candidate exec --exec '{} {} {}'", kCase, allowing(kRow),
                                   CHECKOP_PYTHON, script, more));
  };
  expect_exit(run(""), 1, "passes under normalised_row_in_16_bit");
  expect_exit(run("tells"), 0, "granted by declared_recipes");
}

TEST(DeclaredRecipes, AreInTheReportWithWhatGrantsThem) {
  const auto report = [](const std::string& contract) {
    const std::string flags = kCase + "--dtype bf16 --json " + mutants("recipe-" + kRow) + contract;
    return json::parse(run_program(flags).text)["candidates"][0]["cases"][0];
  };
  const json allowed = report(allowing(kRow)), strict = report("");
  EXPECT_EQ(allowed["declared_recipes"], json({kRow}));
  EXPECT_EQ(allowed["outputs"][0]["granted_recipes"], json({{{"name", kRow}, {"by", "declared_recipes"}}}));
  EXPECT_EQ(allowed["outputs"][0]["recipes"], json({kRow}));
  EXPECT_EQ(strict["declared_recipes"], json({kRow}));
  EXPECT_EQ(strict["outputs"][0]["granted_recipes"], json::array());
  EXPECT_EQ(report("--recipe " + kRow)["outputs"][0]["granted_recipes"], json({{{"name", kRow}, {"by", "--recipe"}}}));
}

TEST(DeclaredRecipes, AreSavedWithACase) {
  const std::string folder = testing::TempDir() + "declared";
  std::filesystem::remove_all(folder);
  const std::string contract = allowing(kRow);
  EXPECT_EQ(run_program(kCase + "--dtype bf16 " + mutants("recipe-" + kRow) + "--save all --save-tensors " + folder +
                        " " + contract)
                .code,
            0);
  const std::string replay =
      fmt::format("--replay {0}/recipe-{1}-forward-rms_norm-bf16-2x4x512.safetensors ", folder, kRow);
  expect_exit(run_program(replay + contract), 0, "granted by declared_recipes");
  expect_exit(run_program(replay), 1, "does not allow");
}

TEST(RecipeCommand, SaysWhatAKernelDoesByPassOutputAndDtype) {
  const ProcessResult result = run_program("recipe " + kCase + mutants("recipe-" + kRow));
  expect_exit(result, 0,
              "rms_norm  recipe-normalised_row_in_16_bit  declares normalised_row_in_16_bit\n"
              "                     fp32   fp16                      bf16\n"
              "  forward   y        plain  normalised_row_in_16_bit  normalised_row_in_16_bit\n"
              "  backward  dx       plain  plain                     plain\n"
              "  backward  dweight  plain  normalised_row_in_16_bit  normalised_row_in_16_bit\n"
              "judged without grants by contracts/default.json (");
}

TEST(RecipeCommand, GrantsOfTheContractDoNotChangeTheAnswer) {
  const std::string flags = "recipe --pass forward --dtype bf16 " + kCase + mutants("recipe-" + kRow);
  expect_exit(run_program(flags + "--contract contracts/framework.json"), 0, "y  normalised_row_in_16_bit\n");
}

TEST(RecipeCommand, AFaultHasNoRecipe) {
  const ProcessResult result =
      run_program("recipe --pass forward --dtype bf16 " + kCase + mutants("native,mutant-zeros"));
  expect_exit(result, 1,
              "rms_norm  native\n"
              "               bf16\n"
              "  forward   y  plain\n"
              "rms_norm  mutant-zeros\n"
              "               bf16\n"
              "  forward   y  none\n"
              "none: rms_norm/forward y of mutant-zeros: rms_norm-bf16-2x4x512: y[");
  expect_exit(result, 1, "\n  repeat: check_operator --op rms_norm --pass forward --dtype bf16");
}

TEST(RecipeCommand, WritesTheTableAsJson) {
  const ProcessResult result = run_program("recipe --json --dtype bf16 " + kCase + mutants("recipe-" + kRow));
  const json table = json::parse(result.text);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(table["format"], "check_operator/recipes-1");
  ASSERT_EQ(table["rows"].size(), 3u);
  EXPECT_EQ(table["rows"][0]["output"], "y");
  EXPECT_EQ(table["rows"][0]["declared_recipes"], json({kRow}));
  EXPECT_EQ(table["rows"][0]["dtypes"]["bf16"]["answer"], "recipes");
  EXPECT_EQ(table["rows"][0]["dtypes"]["bf16"]["recipes"], json({kRow}));
  EXPECT_EQ(table["rows"][0]["dtypes"]["bf16"]["judged"], 1);
  EXPECT_EQ(table["rows"][1]["dtypes"]["bf16"]["answer"], "plain");
}

TEST(RecipeCommand, ACrashExitsFourAndADeclinedDtypeHasNoAnswer) {
  const std::string flags = "recipe --op matmul --pass forward --batch 2 --seq 3 --k-dim 8 --n-dim 8 --device cpu ";
  expect_exit(
      run_program(flags + fmt::format("--plugin {} --candidate segfaults --dtype fp32", test_plugin("crashes"))), 4,
      "  forward   c  error\n");
  expect_exit(run_program(flags + "--candidate native --dtype fp64"), 3, "  forward   c  unsupported\n");
}

TEST(RecipeCommand, TakesTheSmokeSuiteWhereNothingIsSaid) {
  const ProcessResult result = run_program("recipe --json --op silu --candidate native --device cpu");
  EXPECT_EQ(result.code, 0) << result.text;
  const json table = json::parse(result.text);
  ASSERT_EQ(table["rows"].size(), 2u);
  EXPECT_GT(table["rows"][0]["dtypes"]["bf16"]["judged"], 1);
}

TEST(RecipeCommand, BadInputExitsTwo) {
  expect_exit(run_program("recipe --op silu --recipe p_in_16_bit"), 2, "unknown flag '--recipe'");
  expect_exit(run_program("recipe --op silu --device cpu --candidate native --json /nowhere/x"), 2, "/nowhere/x");
}

}  // namespace
}  // namespace checkop::recipe_command_test
