// SPDX-License-Identifier: Apache-2.0
// Differences between two contracts.
#include <gtest/gtest.h>

#include "contract/diff.hpp"
#include "support/contract_helper.hpp"
#include "support/gold_helper.hpp"

namespace checkop::contract_diff_test {
namespace {

using namespace contract_test;

using Lines = std::vector<std::string>;

Lines lines(const std::vector<Change>& changes) {
  Lines all;
  for (const Change& change : changes)
    all.push_back(fmt::format("{} {}: {} -> {}", to_string(change.tendency), change.what, change.a, change.b));
  return all;
}

Lines of_logp(const Contract& a, const Contract& b, const Subject& subject = {}) {
  const Judged logp = judged("logp", "forward", "logp");
  return lines(diff_output(a, b, logp.c, *logp.output, subject));
}

Contract with_gates(std::string_view gates, std::string_view more = "") {
  return parse({fmt::format(R"({{"match": {{}}, "gates": [{}], "why": "w"{}}})", gates, more)});
}

TEST(ContractDiff, EqualContractsDifferInNothing) {
  EXPECT_EQ(of_logp(parse({rule("{}")}), parse({rule("{}")})), Lines{});
  // A different rule with the same numbers makes no difference.
  EXPECT_EQ(of_logp(parse({rule("{}")}), parse({rule(R"({"op": "matmul"})", 9), rule(R"({"op": "logp"})")})), Lines{});
}

TEST(ContractDiff, NumbersSayWhichWayTheyGo) {
  const auto bound = [](double lambda, int chain, int step) {
    return with_gates(fmt::format(
        R"({{"metric": "bound_ratio", "limit": 1, "lambda": {}, "max_chain": {}, "step": {}}})", lambda, chain, step));
  };
  EXPECT_EQ(of_logp(bound(6, 1024, 8), bound(5, 0, 16)),
            (Lines{"tighter bound_ratio lambda: 6 -> 5", "looser bound_ratio max_chain: 1024 -> 0",
                   "tighter bound_ratio step: 8 -> 16"}));
  const auto blocks = [](int rows) {
    return with_gates(
        fmt::format(R"({}, {{"metric": "block_rel_l2", "limit": 1, "rows": {}, "columns": 8}})", kGate, rows));
  };
  EXPECT_EQ(of_logp(blocks(1), blocks(2)), Lines{"other block_rel_l2 rows: 1 -> 2"});
}

TEST(ContractDiff, GatesRulesAndPoliciesThatOnlyOneHas) {
  EXPECT_EQ(of_logp(with_gates(kGate), with_gates(R"({"metric": "bits"})")),
            (Lines{"looser gate bound_ratio: asked -> not asked", "tighter gate bits: not asked -> asked"}));
  EXPECT_EQ(of_logp(with_gates(kGate), with_gates(kGate, R"(, "nonfinite": "match")")),
            Lines{"looser finite where the gold is not finite: asked -> not asked"});
  EXPECT_EQ(of_logp(parse({rule("{}")}), parse({rule(R"({"op": "matmul"})")})),
            Lines{"looser a rule: asked -> not asked"});
}

TEST(ContractDiff, Demands) {
  EXPECT_EQ(of_logp(parse({rule("{}")}, R"(, "demands": {"determinism": false})"),
                    parse({rule("{}")}, R"(, "demands": {"batch_invariance": false})")),
            (Lines{"tighter determinism: not asked -> asked", "looser batch invariance: asked -> not asked"}));
}

TEST(ContractDiff, OverlaysCountForTheirSubjects) {
  const Contract plain = parse({rule("{}")});
  const Contract overlaid =
      parse({rule("{}")}, overlays({overlay(R"({"arch": "sm90"})", R"("bound_ratio": {"lambda": 7})"),
                                    overlay(R"({"candidate": "cuda-?m*"})", R"("bound_ratio": {"limit": 2})")}));
  EXPECT_EQ(of_logp(plain, overlaid), Lines{});
  EXPECT_EQ(of_logp(plain, overlaid, {"sm90", ""}), Lines{"looser bound_ratio lambda: 6 -> 7"});
  EXPECT_EQ(archs_named(plain, overlaid), (Lines{"", "sm90"}));
  EXPECT_EQ(candidates_named(plain, overlaid), (Lines{"", "cuda-xm"}));
  EXPECT_EQ(of_logp(plain, overlaid, {"", "cuda-xm"}), Lines{"looser bound_ratio limit: 1 -> 2"});
}

TEST(ContractDiff, SampledRowsAndExpectedFailures) {
  const auto sampling = [](int rows) {
    return parse({rule("{}")}, fmt::format(R"(, "gold": {{"sample_above": 10, "rows": {}, "why": "w"}})", rows));
  };
  const Case c = gold_case("logp", "forward", DType::f32, {{"batch", 1}, {"seq", 2}, {"vocab", 7}});
  EXPECT_EQ(lines(diff_case(sampling(4), sampling(8), c, {}, 14)), Lines{"tighter rows of the gold: 4 -> 8"});
  EXPECT_EQ(lines(diff_case(sampling(4), parse({rule("{}")}), c, {}, 14)), Lines{"tighter rows of the gold: 4 -> all"});
  EXPECT_EQ(lines(diff_case(parse({rule("{}")}), sampling(8), c, {}, 14)), Lines{"looser rows of the gold: all -> 8"});
  EXPECT_EQ(lines(diff_case(sampling(4), sampling(8), c, {}, 10)), Lines{});
  const Contract known = parse({rule("{}")}, R"(, "known": [{"match": {"op": "logp"}, "expect": "fail",
    "kinds": ["accuracy"], "reason": "r", "owner": "o", "expires": "never"}])");
  EXPECT_EQ(lines(diff_case(parse({rule("{}")}), known, c, {}, 14)),
            Lines{"looser expected failure: none -> accuracy: r"});
  EXPECT_EQ(lines(diff_case(known, parse({rule("{}")}), c, {}, 14)),
            Lines{"tighter expected failure: accuracy: r -> none"});
}

}  // namespace
}  // namespace checkop::contract_diff_test
