// SPDX-License-Identifier: Apache-2.0
// Who grants recipes: rules, overlays, contracts that extend another, kernels' declarations, the user.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "contract/diff.hpp"
#include "support/contract_helper.hpp"

namespace checkop::contract_recipes_test {
namespace {

using contract_test::error_of;
using contract_test::judged;

std::string contract_text(const std::string& rule_keys, const std::string& more = "") {
  return fmt::format(R"({{"format": "check_operator/contract-2", "name": "n", "rules": [
      {{"match": {{"op": "rms_norm"}}, "gates": [{}], "why": "w"{}}}]{}}})",
                     contract_test::kGate, rule_keys, more);
}

std::string overlay(const std::string& keys) {
  return R"(, "overlays": [{)" + keys + R"(, "reason": "r", "owner": "o", "expires": "2030-01-01"}])";
}

std::vector<std::string> granted(const Contract& contract, std::string_view candidate = "",
                                 std::span<const std::string> declared = {}, DType dtype = DType::bf16,
                                 std::string_view pass = "forward", std::string_view output = "y") {
  const auto j = judged("rms_norm", pass, output, dtype);
  std::vector<std::string> names;
  for (const RecipeGrant& grant : contract.gates_for(j.c, *j.output, {"", candidate, declared}).recipes)
    names.push_back(grant.name + " by " + grant.path);
  return names;
}

using Names = std::vector<std::string>;
constexpr Date kToday = std::chrono::year(2026) / 1 / 1, kLater = std::chrono::year(2031) / 1 / 1;

TEST(ContractRecipes, ARuleGrantsThemToEveryCandidate) {
  const std::string text = contract_text(R"(, "recipes": ["normalised_row_in_16_bit", "weighted_gradient_in_16_bit"])");
  const Contract contract = Contract::parse(text, "c");
  EXPECT_EQ(granted(contract), Names{"normalised_row_in_16_bit by rules[0]"});
  EXPECT_EQ(granted(contract, "", {}, DType::f32), Names{});
  EXPECT_EQ(granted(contract, "", {}, DType::bf16, "backward", "dx"), Names{"weighted_gradient_in_16_bit by rules[0]"});
}

TEST(ContractRecipes, AnOverlayGrantsThemToACandidateUntilItExpires) {
  const std::string text = contract_text(
      "", overlay(R"("match": {"candidate": "hf*"}, "recipes": ["normalised_row_in_16_bit"], "loosen": true)"));
  EXPECT_EQ(granted(Contract::parse(text, "c", kToday), "hf-eager"), Names{"normalised_row_in_16_bit by overlays[0]"});
  EXPECT_EQ(granted(Contract::parse(text, "c", kToday), "cuda"), Names{});
  const Contract expired = Contract::parse(text, "c", kLater);
  EXPECT_EQ(granted(expired, "hf-eager"), Names{});
  const auto j = judged("rms_norm", "forward", "y", DType::bf16);
  EXPECT_EQ(expired.gates_for(j.c, *j.output, {"", "hf-eager"}).withheld,
            Names{"overlays[0] expired on 2030-01-01: it no longer grants normalised_row_in_16_bit"});
}

TEST(ContractRecipes, AnOverlaySaysThatItLoosens) {
  EXPECT_EQ(error_of([] {
              Contract::parse(
                  contract_text("", overlay(R"("match": {"candidate": "x"}, "recipes": ["normalised_row_in_16_bit"])")),
                  "c");
            }),
            "c: overlays[0].recipes: a recipe accepts what the rule rejects; say \"loosen\": true");
}

TEST(ContractRecipes, AKernelsDeclarationCountsWhereTheContractAllowsIt) {
  const Names declared{"normalised_row_in_16_bit"};
  EXPECT_EQ(granted(Contract::parse(contract_text(""), "c"), "k", declared), Names{});
  const Contract allows =
      Contract::parse(contract_text("", R"(, "declared_recipes": ["normalised_row_in_16_bit"])"), "c");
  EXPECT_EQ(granted(allows, "k", declared), Names{"normalised_row_in_16_bit by declared_recipes"});
  EXPECT_EQ(granted(allows, "k"), Names{});
}

TEST(ContractRecipes, ADiffSaysWhatCountsForKernelsThatDeclareIt) {
  const auto j = judged("rms_norm", "forward", "y", DType::bf16);
  const std::string names = R"("recipes": ["normalised_row_in_16_bit"])";
  const Contract strict = Contract::parse(contract_text(""), "c"),
                 grants = Contract::parse(contract_text(", " + names), "c");
  const Contract allows = Contract::parse(contract_text("", ", \"declared_" + names.substr(1)), "c");
  const auto changes = [&](const Contract& a, const Contract& b) {
    Names lines;
    for (const Change& change : diff_output(a, b, j.c, *j.output, {}))
      lines.push_back(fmt::format("{} {}", to_string(change.tendency), change.what));
    return lines;
  };
  EXPECT_EQ(changes(strict, allows), Names{"looser to do without normalised_row_in_16_bit, declared or not"});
  EXPECT_EQ(changes(allows, strict), Names{"tighter to do without normalised_row_in_16_bit, declared or not"});
  EXPECT_EQ(changes(allows, grants), Names{"looser to do without normalised_row_in_16_bit"});
  EXPECT_EQ(changes(allows, allows), Names{});
}

TEST(ContractRecipes, TheUserGrantsThemByName) {
  Contract contract = Contract::parse(contract_text(""), "c");
  contract.grant({"normalised_row_in_16_bit"});
  EXPECT_EQ(granted(contract), Names{"normalised_row_in_16_bit by --recipe"});
  EXPECT_EQ(error_of([&] { contract.grant({"normalised_row_in_16_bits"}); }),
            "--recipe: unknown recipe 'normalised_row_in_16_bits'; did you mean 'normalised_row_in_16_bit'?");
}

TEST(ContractRecipes, OnlyThoseThatSomeMatchedOutputHas) {
  const std::string error = error_of([] { Contract::parse(contract_text(R"(, "recipes": ["p_in_16_bit"])"), "c"); });
  EXPECT_EQ(error.rfind("c: rules[0].recipes[0]: unknown recipe 'p_in_16_bit'; known: normalised_row_in_16_bit", 0), 0u)
      << error;
}

std::string write(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

TEST(ContractRecipes, AContractExtendsAnotherInItsFolder) {
  write("recipes_base.json", contract_text(R"(, "recipes": ["normalised_row_in_16_bit"])"));
  const std::string head = R"({"format": "check_operator/contract-2", "name": "n", "extends": "recipes_base.json")";
  const std::string own =
      overlay(R"("match": {"op": "rms_norm"}, "recipes": ["weighted_gradient_in_16_bit"], "loosen": true)");
  const Contract contract = Contract::load(write("recipes_extends.json", head + own + "}"), kToday);
  EXPECT_EQ(granted(contract), Names{"normalised_row_in_16_bit by recipes_base.json: rules[0]"});
  EXPECT_EQ(granted(contract, "", {}, DType::bf16, "backward", "dx"),
            Names{"weighted_gradient_in_16_bit by overlays[0]"});
  const Contract without = Contract::load(write("recipes_without.json", head + "}"), kToday);
  EXPECT_NE(contract.hash(), without.hash());
  write("recipes_base.json", contract_text(""));
  EXPECT_NE(Contract::load(testing::TempDir() + "recipes_without.json", kToday).hash(), without.hash());
}

TEST(ContractRecipes, AnExtendingContractHasNoRulesOfItsOwnAndOneBase) {
  write("recipes_base2.json", contract_text(""));
  const std::string head = R"({"format": "check_operator/contract-2", "name": "n", "extends": "recipes_base2.json")";
  const std::string both = write("recipes_both.json", head + R"(, "rules": []})");
  EXPECT_EQ(error_of([&] { Contract::load(both); }),
            both +
                ": rules: the rules are those of the contract that this one extends; remove the key; overlays change "
                "numbers");
  const std::string extends = write("recipes_first.json", head + "}");
  const std::string twice = write("recipes_twice.json", R"({"format": "check_operator/contract-2", "name": "n",
      "extends": "recipes_first.json"})");
  EXPECT_EQ(error_of([&] { Contract::load(twice); }),
            twice +
                ": extends: expected a contract that extends no other, got \"recipes_first.json\"; name the one "
                "that it extends");
}

}  // namespace
}  // namespace checkop::contract_recipes_test
