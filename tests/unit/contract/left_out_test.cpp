// SPDX-License-Identifier: Apache-2.0
// left_out: who may ask for finite numbers in place of NaN, and until when.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "contract/diff.hpp"
#include "contract/lint.hpp"
#include "support/contract_helper.hpp"

namespace checkop::contract_left_out_test {
namespace {

using namespace contract_test;

using Lines = std::vector<std::string>;

const std::string kGates = fmt::format(R"("gates": [{}], "why": "w")", kGate);
const std::string kPlain = fmt::format(R"({{"match": {{}}, {}}})", kGates);

std::string rule_saying(std::string_view match, std::string_view content) {
  return fmt::format(R"({{"match": {}, "left_out": "{}", {}}})", match, content, kGates);
}

std::string overlay_saying(std::string_view match, std::string_view content,
                           std::string_view more = R"("loosen": true, "expires": "never")") {
  return fmt::format(R"({{"match": {}, "left_out": "{}", "reason": "r", "owner": "o", {}}})", match, content, more);
}

constexpr std::string_view kTightens = R"("expires": "never")";
constexpr std::string_view kUntil2030 = R"("loosen": true, "expires": "2030-01-01")";
constexpr Date kToday = std::chrono::year(2026) / 1 / 1, kLater = std::chrono::year(2031) / 1 / 1;

/// "finite by overlays[0]"
std::string demand(const Contract& contract, std::string_view op = "logp", std::string_view candidate = "") {
  const LeftOutDemand found =
      gates(contract, judged(op, "forward", op == "attention" ? "o" : "logp"), "", candidate).left_out;
  return fmt::format("{} by {}", to_string(found.content), found.path.empty() ? "default" : found.path);
}

TEST(ContractLeftOut, IsNonfiniteUnlessARuleSaysOtherwise) {
  EXPECT_EQ(demand(parse({kPlain})), "nonfinite by default");
  const Contract contract = parse({kPlain, rule_saying(R"({"op": "logp"})", "finite")});
  EXPECT_EQ(demand(contract), "finite by rules[1]");
  EXPECT_EQ(demand(contract, "attention"), "nonfinite by default");
}

TEST(ContractLeftOut, TheShippedContractsAreStrictAndOfFrameworks) {
  const std::string folder = CHECKOP_SOURCE_DIR "/contracts/";
  for (const char* op : {"logp", "attention", "linear_logp"}) {
    EXPECT_EQ(demand(Contract::load(folder + "default.json"), op), "nonfinite by default");
    EXPECT_EQ(demand(Contract::load(folder + "framework.json"), op).substr(0, 6), "finite") << op;
  }
}

TEST(ContractLeftOut, TheMostSpecificOverlayCounts) {
  const Contract contract = parse({kPlain}, overlays({overlay_saying(R"({"candidate": "hf-eager"})", "finite"),
                                                      overlay_saying(R"({"candidate": "hf*"})", "nonfinite", kTightens),
                                                      overlay_saying(R"({"op": "logp"})", "finite")}));
  EXPECT_EQ(demand(contract), "finite by overlays[2]");
  EXPECT_EQ(demand(contract, "attention"), "nonfinite by default");
  EXPECT_EQ(demand(contract, "logp", "hf-flash"), "nonfinite by overlays[1]");
  EXPECT_EQ(demand(contract, "logp", "hf-eager"), "finite by overlays[0]");
}

TEST(ContractLeftOut, AnExpiredOverlayTightensOnly) {
  const std::string loosens = overlays({overlay_saying(R"({"op": "logp"})", "finite", kUntil2030)});
  EXPECT_EQ(demand(parse({kPlain}, loosens, kToday)), "finite by overlays[0]");
  const Contract expired = parse({kPlain}, loosens, kLater);
  EXPECT_EQ(demand(expired), "nonfinite by default");
  EXPECT_EQ(gates(expired, judged("logp", "forward", "logp")).withheld,
            Lines{"overlays[0] expired on 2030-01-01: left_out stays nonfinite, not finite"});
  const std::string tightens =
      overlays({overlay_saying(R"({"op": "logp", "candidate": "x"})", "nonfinite", R"("expires": "2030-01-01")")});
  EXPECT_EQ(demand(parse({rule_saying("{}", "finite")}, tightens, kLater), "logp", "x"), "nonfinite by overlays[0]");
}

TEST(ContractLeftOut, MistakesAreRefused) {
  EXPECT_EQ(rules_error({kPlain}, overlays({overlay_saying(R"({"op": "logp"})", "finite", kTightens)})),
            "c.json: overlays[0].left_out: finite accepts what nonfinite rejects; say \"loosen\": true");
  EXPECT_EQ(rules_error({rule_saying("{}", "NaN")}),
            "c.json: rules[0].left_out: unknown content 'NaN'; known: nonfinite, finite");
  EXPECT_EQ(rules_error({rule_saying(R"({"op": "matmul"})", "finite")}),
            "c.json: rules[0].left_out: expected no such key, got \"finite\"; the operators that this matches leave "
            "nothing out");
  EXPECT_EQ(rules_error({rule_saying("{}", "finite")}, overlays({overlay_saying(R"({"op": "logp"})", "nonfinite")})),
            "c.json: overlays[0]: \"loosen\" is true and no number becomes looser; leave it out");
  const std::string tie =
      rules_error({kPlain}, overlays({overlay_saying(R"({"candidate": "a*"})", "finite"),
                                      overlay_saying(R"({"candidate": "*a"})", "nonfinite", kTightens)}));
  EXPECT_EQ(
      tie,
      "c.json: overlays[0] and overlays[1] both set left_out of logp/forward logp fp32 (case fp64) and are equally "
      "specific; remove one or let one name more keys");
}

TEST(ContractLeftOut, LintFindsWhatChangesNothing) {
  const auto findings = [](const std::string& rule_text, const std::vector<std::string>& list) {
    Lines all;
    for (const Finding& finding : lint(parse({rule_text}, overlays(list), kToday)))
      all.push_back(finding.path + ": " + finding.what);
    return all;
  };
  const Lines idle{"overlays[0].left_out: has no effect: it equals the value that it replaces"};
  const std::string on_logp = R"({"op": "logp"})";
  EXPECT_EQ(findings(kPlain, {overlay_saying(on_logp, "finite")}), Lines{});
  EXPECT_EQ(findings(kPlain, {overlay_saying(on_logp, "nonfinite", kTightens)}), idle);
  EXPECT_EQ(findings(rule_saying("{}", "finite"), {overlay_saying(on_logp, "finite")}), idle);
  EXPECT_EQ(findings(kPlain, {overlay_saying(R"({"op": "logp", "candidate": "x"})", "nonfinite", kTightens),
                              overlay_saying(on_logp, "finite")}),
            Lines{});
}

TEST(ContractLeftOut, DiffSaysWhichWayItGoes) {
  const Contract strict = parse({kPlain}), loose = parse({rule_saying("{}", "finite")});
  const auto changes = [](const Contract& a, const Contract& b, std::string_view op, std::string_view output) {
    const Judged j = judged(op, "forward", output);
    Lines all;
    for (const Change& change : diff_output(a, b, j.c, *j.output, {}))
      all.push_back(fmt::format("{} {}: {} -> {}", to_string(change.tendency), change.what, change.a, change.b));
    return all;
  };
  EXPECT_EQ(changes(strict, loose, "logp", "logp"),
            Lines{"looser to be right with NaN in ignored rows: asked -> not asked"});
  EXPECT_EQ(changes(loose, strict, "attention", "o"),
            Lines{"tighter to be right with NaN in masked keys: not asked -> asked"});
  EXPECT_EQ(changes(strict, loose, "matmul", "c"), Lines{});
}

}  // namespace
}  // namespace checkop::contract_left_out_test
