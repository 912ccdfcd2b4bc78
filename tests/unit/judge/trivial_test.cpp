// SPDX-License-Identifier: Apache-2.0
// Trivial answers: which ones are wrong, and which ones a contract would accept.
#include <gtest/gtest.h>

#include "case/inputs.hpp"
#include "judge/gold.hpp"
#include "report/report.hpp"
#include "support/compare_helper.hpp"
#include "support/gold_helper.hpp"
#include "support/judge_helper.hpp"

namespace checkop::trivial_test {
namespace {

using namespace compare_test;

/// `got`: the gold, if it is empty.
std::vector<Trivial> would_pass(DType dtype, int64_t rows, std::vector<double> gold, const Gate& gate,
                                std::vector<double> got = {}) {
  Matrix m(rows, static_cast<int64_t>(gold.size()) / rows);
  m.got = got.empty() ? gold : std::move(got);
  m.gold = std::move(gold);
  m.magnitude = m.rounding = 0;
  return compare(dtype, m, {gate}).would_pass;
}

using Answers = std::vector<Trivial>;

TEST(Trivial, EachIsFoundByTheDataThatCannotTellIt) {
  const Gate loose = tolerance(0.1, 0);
  EXPECT_EQ(would_pass(DType::f32, 2, {1, 2, 3, 4}, loose), Answers{});
  EXPECT_EQ(would_pass(DType::f32, 2, {5, 0.05, 7, 0.01}, loose), Answers{Trivial::largest_alone});
  EXPECT_EQ(would_pass(DType::f32, 2, {1, 2, 1.05, 2}, loose), Answers{Trivial::next_row});
  EXPECT_EQ(would_pass(DType::f32, 2, {5, 5.15, 5.05, 5.1}, loose), (Answers{Trivial::constant, Trivial::next_row}));
  EXPECT_EQ(would_pass(DType::f32, 2, {0.01, 0.02, 0.03, 0.04}, loose),
            (Answers{Trivial::zeros, Trivial::constant, Trivial::next_row, Trivial::largest_alone}));
}

TEST(Trivial, WhatIsRightIsNotHeldAgainstTheContract) {
  const Gate loose = tolerance(0.1, 0);
  EXPECT_EQ(would_pass(DType::f32, 2, {3, 4, 3, 4}, loose), Answers{}) << "rows are equal";
  EXPECT_EQ(would_pass(DType::f32, 2, {5, 5, 5, 5}, loose), Answers{}) << "a constant is right";
  EXPECT_EQ(would_pass(DType::f32, 2, {0, 0, 0, 0}, loose), Answers{}) << "zeros are right";
  EXPECT_EQ(would_pass(DType::f32, 1, {5}, loose), Answers{}) << "one element is its own mean";
  EXPECT_EQ(would_pass(DType::f32, 2, {-0.0, 0, 0, -0.0}, tolerance(0, 0)), Answers{}) << "0 has no sign that counts";
}

TEST(Trivial, TheNextRowOfZerosIsZeroWhateverTheCandidateHasThere) {
  EXPECT_EQ(would_pass(DType::f32, 2, {0, 0, 0, 0}, tolerance(0.1, 0), {0.01, 0.02, 0.03, 0.04}), Answers{});
}

TEST(Trivial, BitsAndUlpsTellRowsApart) {
  Gate bits = gate(Metric::bits), ulps = gate(Metric::ulp, 2);
  EXPECT_EQ(would_pass(DType::i64, 2, {1, 2, 3, 4}, bits), Answers{});
  const double next = std::exp2(-7);  // bf16 numbers from 1 on
  EXPECT_EQ(would_pass(DType::bf16, 2, {1, 1 + 8 * next, 1, 1 + 9 * next}, ulps), Answers{Trivial::next_row});
  EXPECT_EQ(would_pass(DType::bf16, 2, {1, 1 + 4 * next, 1, 1 + 4 * next}, ulps), Answers{Trivial::constant});
  EXPECT_EQ(would_pass(DType::bf16, 2, {1, 1 + 5 * next, 1, 1 + 5 * next}, ulps), Answers{});
}

TEST(Trivial, NoConstantIsBothFiniteAndNot) {
  EXPECT_EQ(would_pass(DType::f32, 2, {1, INFINITY, 1, INFINITY}, tolerance(0.1, 0)), Answers{});
}

Case silu(InputMode mode) {
  Case c = gold_case("silu", "forward", DType::f32, {{"batch", 1}, {"seq", 3}, {"hidden", 5}});
  c.input_mode = mode;
  return c;
}

const char* const kRule = R"({"format": "check_operator/contract-2", "name": "of this test", "rules": [
  {"match": {"op": "silu"}, "gates": [{"metric": "atol_rtol", "atol": 100, "rtol": 0}%s],
   "why": "a tolerance of this test, which any small number meets"}]})";

Contract contract_with(const std::string& gates) {
  std::string text = kRule;
  return Contract::parse(text.replace(text.find("%s"), 2, gates), "test.json");
}

// Even if every single element passes, a gate of the whole output may fail.
TEST(Trivial, GatesOfTheWholeOutputCount) {
  const Case c = silu(InputMode::random);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const std::vector<Tensor> outputs = rounded_gold(c, inputs);
  EXPECT_EQ(judge_outputs(c, inputs, outputs, contract_with(""), {}, 1)[0].would_pass.size(), 4U);
  const Contract strict = contract_with(R"(, {"metric": "rel_l2", "limit": 0.01})");
  EXPECT_EQ(judge_outputs(c, inputs, outputs, strict, {}, 1)[0].would_pass, Answers{});
  const Contract loose = contract_with(R"(, {"metric": "rel_l2", "limit": 1})");
  const Comparison comparison = judge_outputs(c, inputs, outputs, loose, {}, 1)[0];
  EXPECT_NE(std::find(comparison.would_pass.begin(), comparison.would_pass.end(), Trivial::zeros),
            comparison.would_pass.end());
  EXPECT_EQ(std::find(comparison.would_pass.begin(), comparison.would_pass.end(), Trivial::next_row),
            comparison.would_pass.end());
}

CaseRecord record_of(const Case& c) {
  CaseRecord record;
  record.c = c;
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  record.comparisons = judge_outputs(c, inputs, rounded_gold(c, inputs), default_contract(), {}, 1);
  record.judgment = {Verdict::pass, "", ""};
  return record;
}

TEST(Trivial, ARunOfConstantInputsAloneTellsNothingOfRows) {
  Report report;
  report.records.push_back(record_of(silu(InputMode::constant)));
  EXPECT_TRUE(report.records[0].comparisons[0].rows_are_equal);
  mark_vacuous(report);
  EXPECT_EQ(report.records[0].judgment.verdict, Verdict::vacuous);
  EXPECT_NE(report.records[0].judgment.reason.find("y: all rows"), std::string::npos);
  report.records[0].judgment = {Verdict::pass, "", ""};
  report.records.push_back(record_of(silu(InputMode::random)));
  mark_vacuous(report);
  EXPECT_EQ(report.records[0].judgment.verdict, Verdict::pass);
}

}  // namespace
}  // namespace checkop::trivial_test
