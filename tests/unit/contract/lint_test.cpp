// SPDX-License-Identifier: Apache-2.0
// Findings in contracts that load.
#include <gtest/gtest.h>

#include "contract/lint.hpp"
#include "support/contract_helper.hpp"

namespace checkop::contract_lint_test {
namespace {

using namespace contract_test;

using Lines = std::vector<std::string>;

Lines lines(const std::vector<std::string>& rules, const std::string& more) {
  Lines all;
  for (const Finding& finding : lint(parse(rules, more, *parse_date("2026-10-01"))))
    all.push_back(finding.path + ": " + finding.what);
  return all;
}

Lines of_overlays(const std::vector<std::string>& list, const std::vector<std::string>& rules = {rule("{}")}) {
  return lines(rules, overlays(list));
}

Lines of_known(std::string_view match, std::string_view expires = "never") {
  return lines(
      {rule("{}")},
      fmt::format(R"(, "known": [{{"match": {}, "expect": "fail", "reason": "r", "owner": "o", "expires": "{}"}}])",
                  match, expires));
}

std::string strict(std::string_view match, std::string_view set, std::string_view expires = "never") {
  return overlay(match, set, fmt::format(R"("expires": "{}")", expires));
}

const std::string kSm90 = R"({"arch": "sm90"})";
const std::string kFive = R"("bound_ratio": {"lambda": 5})";
const std::string kFour = R"("bound_ratio": {"lambda": 4})";

TEST(ContractLint, ShippedContractsAreClean) {
  for (const char* name : {"default.json", "rl_kernel.json", "framework.json"}) {
    const Contract contract = Contract::load(std::string(CHECKOP_SOURCE_DIR "/contracts/") + name, today());
    for (const Finding& finding : lint(contract)) ADD_FAILURE() << name << ": " << finding.path << ": " << finding.what;
  }
}

TEST(ContractLint, FindsWhatHasExpired) {
  EXPECT_EQ(of_overlays({strict(kSm90, kFive, "2026-09-30")}),
            Lines{"overlays[0]: expired on 2026-09-30; renew or remove it (owner: o)"});
  EXPECT_EQ(of_overlays({strict(kSm90, kFive, "2026-10-01")}), Lines{});
  EXPECT_EQ(of_known(R"({"op": "logp"})", "2026-09-30"),
            Lines{"known[0]: expired on 2026-09-30; renew or remove it (owner: o)"});
}

TEST(ContractLint, FindsNumbersThatChangeNothing) {
  EXPECT_EQ(of_overlays({strict(kSm90, R"("bound_ratio": {"lambda": 6, "limit": 0.5})")}),
            Lines{"overlays[0].set.bound_ratio.lambda: has no effect: it equals the value that it replaces"});
  // For one output the number differs.
  EXPECT_EQ(of_overlays({strict(kSm90, kFive)}, {rule("{}", 5), rule(R"({"op": "logp"})", 6)}), Lines{});
  // It reverts another overlay's number.
  EXPECT_EQ(of_overlays({strict(kSm90, kFive),
                         overlay(R"({"arch": "sm90", "op": "logp"})", R"("bound_ratio": {"lambda": 6})")}),
            Lines{});
}

TEST(ContractLint, FindsOverlaysThatMoreSpecificOnesShadow) {
  const std::string of_op = R"({"arch": "sm90", "op": "logp"})";
  EXPECT_EQ(of_overlays({strict(of_op, kFive), strict(R"({"arch": "sm90", "op": "logp", "pass": "forward"})", kFour),
                         strict(R"({"arch": "sm90", "op": "logp", "pass": "backward"})", kFour)}),
            Lines{"overlays[0]: has no effect: overlays[1], overlays[2] set the same numbers and are more specific"});
  // One pass remains to it.
  EXPECT_EQ(of_overlays({strict(of_op, kFive), strict(R"({"arch": "sm90", "op": "logp", "pass": "forward"})", kFour)}),
            Lines{});
  // One number remains to it.
  EXPECT_EQ(of_overlays({strict(R"({"candidate": "cuda-*"})", R"("bound_ratio": {"lambda": 5, "limit": 0.5})"),
                         strict(R"({"candidate": "cuda*", "op": "logp"})", kFour)},
                        {rule(R"({"op": "logp"})")}),
            Lines{});
}

TEST(ContractLint, AShadowMustCoverTheSubject) {
  const std::vector<std::string> rules{rule(R"({"op": "logp"})")};
  const auto under = [&](std::string_view candidate) {
    return of_overlays({strict(R"({"candidate": "cuda-*"})", kFive),
                        strict(fmt::format(R"({{"candidate": "{}", "op": "logp"}})", candidate), kFour)},
                       rules);
  };
  EXPECT_EQ(under("cuda*").size(), 1u);
  EXPECT_EQ(under("cuda-s*"), Lines{});
  EXPECT_EQ(of_overlays({strict(R"({"candidate": "cuda-*"})", kFive),
                         strict(R"({"candidate": "cuda*", "arch": "sm90"})", kFour)}),
            Lines{});
}

TEST(ContractLint, FindsRulesThatJudgeNothing) {
  EXPECT_EQ(lines({rule(R"({"op": "logp"})"), rule(R"({"output": "logp"})"), rule(R"({"output": "dlogits"})")}, ""),
            Lines{"rules[0]: judges nothing: rules[1], rules[2] take all its outputs and are more specific"});
  EXPECT_EQ(lines({rule(R"({"op": "logp"})"), rule(R"({"output": "logp"})")}, ""), Lines{});
}

TEST(ContractLint, FindsKnownFailuresThatNoCheckCanMatch) {
  const Lines nothing{"known[0]: matches no check: no operator has such a case"};
  EXPECT_EQ(of_known(R"({"op": "logp", "dtype": "int64"})"), nothing);
  EXPECT_EQ(of_known(R"({"op": "logp", "case": "matmul-*"})"), nothing);
  EXPECT_EQ(of_known(R"({"op": "logp", "dtype": "bf16", "case": "logp-fp32-*"})"), nothing);
  EXPECT_EQ(of_known(R"({"op": "logp", "dtype": "bf16", "case": "logp-bf16-*"})"), Lines{});
  EXPECT_EQ(of_known(R"({"candidate": "whatever", "case": "*x7"})"), Lines{});
}

}  // namespace
}  // namespace checkop::contract_lint_test
