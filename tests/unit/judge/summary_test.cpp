// SPDX-License-Identifier: Apache-2.0
// Gates of whole outputs: errors that no gate of single elements catches, and results that must not fail them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.hpp"
#include "judge/summary.hpp"
#include "support/compare_helper.hpp"

namespace checkop::summary_test {
namespace {

using namespace compare_test;

constexpr double kInf = std::numeric_limits<double>::infinity();

double normal(uint64_t index) { return Stream::derive(7, "test", "values").normal(index); }

/// Standard normals as the gold, rounded once: the output of an ideal candidate.
Matrix ideal(int64_t rows, int64_t columns, double scale = 1) {
  Matrix m(rows, columns);
  for (size_t i = 0; i < m.gold.size(); ++i) m.got[i] = m.gold[i] = scale * normal(i);
  m.magnitude = m.rounding = 0;
  return m;
}

double rounded(DType dtype, double x) {
  Tensor t("x", dtype, {1});
  t.set(0, x);
  return t.at(0);
}

/// x rounded toward zero to a number of `dtype`.
double truncated(DType dtype, double x) {
  const double nearest = rounded(dtype, x);
  return std::abs(nearest) > std::abs(x) ? nearest - std::copysign(2 * half_ulp(dtype, x), x) : nearest;
}

// --- norms -----------------------------------------------------------------------------------------------------------

TEST(Summary, RelL2IsOfTheWholeOutput) {
  Matrix m(2, 2);
  m.gold = {3, 0, 0, 4};
  m.got = {3, 0, 1, 4};
  const Comparison c = compare(DType::f32, m, {tolerance(10, 0), gate(Metric::rel_l2, 0.2)});
  EXPECT_DOUBLE_EQ(c.gates[1].achieved, 0.2);
  EXPECT_TRUE(c.passed());
  EXPECT_FALSE(compare(DType::f32, m, {tolerance(10, 0), gate(Metric::rel_l2, 0.199)}).passed());
}

TEST(Summary, ANormNeverHidesANonfiniteElement) {
  Matrix m = ideal(4, 4);
  m.got[5] = std::numeric_limits<double>::quiet_NaN();
  for (const Metric metric : {Metric::rel_l2, Metric::vs_baseline}) {
    const Comparison c = compare(DType::f32, m, {tolerance(1e30, 0), gate(metric, 1e30)});
    EXPECT_EQ(c.gates[1].achieved, kInf);
    EXPECT_FALSE(c.gates[1].holds);
  }
}

TEST(Summary, OneWrongBlockShowsInItsOwnNormOnly) {
  Matrix m = ideal(100, 130);
  for (int64_t r = 64; r < 100; ++r)
    for (int64_t c = 128; c < 130; ++c) m.got[static_cast<size_t>(r * 130 + c)] *= 1.5;
  Gate blocks = gate(Metric::block_rel_l2, 0.1);
  blocks.rows = blocks.columns = 64;
  const Comparison c = compare(DType::f32, m, {tolerance(10, 0), gate(Metric::rel_l2, 0.1), blocks});
  EXPECT_TRUE(c.gates[1].holds) << c.gates[1].achieved;
  EXPECT_FALSE(c.gates[2].holds);
  EXPECT_NEAR(c.gates[2].achieved, 0.5, 1e-6);
  EXPECT_EQ(c.gates[2].out_of_bound, 1);
  EXPECT_EQ(c.out_of_bound, 0);
  EXPECT_FALSE(c.passed());
}

TEST(Summary, BlocksOfSampledRowsHoldThoseRows) {
  BlockSums blocks(64, 64, {200, 64}, {false, {3, 70, 199}});
  RowSums bad;
  bad.add(1, 0.5);
  for (const int64_t row : {199, 3, 70}) blocks.add(row, std::vector<RowSums>{bad});
  EXPECT_EQ(blocks.worst(0.4).out_of_bound, 3);
  EXPECT_EQ(blocks.worst(0.6).out_of_bound, 0);
  EXPECT_EQ(blocks.worst(0.6).value, 0.5);
}

TEST(Summary, ABlockOfZerosMustBeMetExactly) {
  Matrix m(2, 2);
  m.gold = {0, 1, 0, 1};
  m.got = {1e-30, 1, 0, 1};
  Gate blocks = gate(Metric::block_rel_l2, 0.1);
  blocks.rows = 2, blocks.columns = 1;
  EXPECT_EQ(compare(DType::f32, m, {tolerance(1, 0), blocks}).gates[1].achieved, kInf);
}

// --- the baseline ----------------------------------------------------------------------------------------------------

TEST(Summary, AnIdealCandidateIsItsOwnBaseline) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    EXPECT_EQ(compare(dtype, ideal(8, 64), {tolerance(1, 0), gate(Metric::vs_baseline)}).gates[1].achieved, 1);
}

TEST(Summary, TruncationIsTwiceTheBaseline) {
  Matrix m = ideal(64, 64);
  for (double& x : m.got) x = truncated(DType::bf16, x);
  const Comparison c = compare(DType::bf16, m, {tolerance(1, 0), gate(Metric::vs_baseline, 1.5)});
  EXPECT_NEAR(c.gates[1].achieved, 2, 0.05);  // uniform on [0, 2h) against [-h, h): 4/3 h^2 against 1/3 h^2
  EXPECT_FALSE(c.gates[1].holds);
}

TEST(Summary, AnErrorWhereTheGoldCanBeStoredIsInfinitelyWorse) {
  Matrix m(1, 2);
  m.gold = m.got = {1, 2};
  EXPECT_EQ(compare(DType::bf16, m, {tolerance(1, 0), gate(Metric::vs_baseline)}).gates[1].achieved, 0);
  m.got[0] = 1.0078125;
  EXPECT_EQ(compare(DType::bf16, m, {tolerance(1, 0), gate(Metric::vs_baseline)}).gates[1].achieved, kInf);
}

// --- the reference ---

TEST(Summary, TheErrorIsHeldAgainstThatOfTheReference) {
  Matrix m(1, 4);
  m.gold = m.got = m.reference = {1, 2, 4, 8};  // all of them stored exactly
  EXPECT_EQ(compare(DType::f32, m, {tolerance(10, 0), gate(Metric::vs_reference, 2)}).gates[1].achieved, 0);
  m.got[1] = 2.5;
  EXPECT_EQ(compare(DType::f32, m, {tolerance(10, 0), gate(Metric::vs_reference, 2)}).gates[1].achieved, kInf);
  m.reference = {1.25, 2, 4, 8};  // another element may err as much
  const GateResult twice = compare(DType::f32, m, {tolerance(10, 0), gate(Metric::vs_reference, 2)}).gates[1];
  EXPECT_DOUBLE_EQ(twice.achieved, 2);
  EXPECT_TRUE(twice.holds);
  m.got[2] = 4.5;  // the largest error is the same, their root mean square is not
  const GateResult more = compare(DType::f32, m, {tolerance(10, 0), gate(Metric::vs_reference, 2)}).gates[1];
  EXPECT_DOUBLE_EQ(more.achieved, 2 * std::sqrt(2));
  EXPECT_FALSE(more.holds);
}

TEST(Summary, OneRoundingComesOnTopOfAnExactReference) {
  Matrix m = ideal(8, 64);
  m.reference = m.gold;
  EXPECT_NEAR(compare(DType::bf16, m, {tolerance(1, 0), gate(Metric::vs_reference, 2)}).gates[1].achieved, 2, 1e-12);
  for (double& x : m.got) x = truncated(DType::bf16, x);
  EXPECT_FALSE(compare(DType::bf16, m, {tolerance(1, 0), gate(Metric::vs_reference, 2)}).passed());
}

// --- policies of other projects ---

TEST(Summary, CosineIsTheSquaredErrorOverBothSquares) {
  Matrix m(2, 2);
  m.gold = {1, 2, 3, 4};
  m.got = {1, 2, 3, 5};
  const Comparison c = compare(DType::f32, m, {tolerance(10, 0), gate(Metric::cosine, 1e-2)});
  double product = 0, squares = 0;
  for (size_t i = 0; i < 4; ++i)
    product += m.got[i] * m.gold[i], squares += m.got[i] * m.got[i] + m.gold[i] * m.gold[i];
  EXPECT_NEAR(c.gates[1].achieved, 1 - 2 * product / squares, 1e-15);
  EXPECT_FALSE(c.gates[1].holds);
  m.got = m.gold;
  EXPECT_EQ(compare(DType::f32, m, {tolerance(10, 0), gate(Metric::cosine, 0)}).gates[1].achieved, 0);
}

TEST(Summary, TheLargestErrorIsHeldAgainstThatOfStoring) {
  Matrix m(1, 2);
  m.gold = m.got = {1, 2};  // stored exactly; 1.3 and 2.3 - 0.3 are not
  m.got[1] += std::exp2(-6);
  const GateResult one = compare(DType::bf16, m, {tolerance(10, 0), gate(Metric::max_vs_baseline, 2)}).gates[1];
  EXPECT_GT(one.achieved, 0.1);
  m.got[1] = 3;
  const GateResult far = compare(DType::bf16, m, {tolerance(10, 0), gate(Metric::max_vs_baseline, 2)}).gates[1];
  EXPECT_DOUBLE_EQ(far.achieved, one.achieved * 64);
  EXPECT_FALSE(far.holds);
}

TEST(Summary, EitherToleranceIsEnough) {
  Matrix m(1, 2);
  m.gold = {0, 100};
  m.got = {0.009, 100.9};
  Gate either = tolerance(1e-2, 1e-2);
  either.either = 1;
  EXPECT_TRUE(compare(DType::f32, m, {either}).passed());
  m.got = {0, 101.005};  // within the sum of both, 1.01
  EXPECT_FALSE(compare(DType::f32, m, {either}).passed());
  EXPECT_TRUE(compare(DType::f32, m, {tolerance(1e-2, 1e-2)}).passed());
}

// --- errors over their bounds ---------------------------------------------------------------------------------------

// If all of 1000 elements err by 0.9 of the bound, each one passes. If only one of 1000 does, that is what a right
// candidate gives.
TEST(Summary, ErrorsThatAreAllNearTheirBoundsAreFound) {
  Matrix m(10, 100);
  const double gold = 1, bound = element_bound(bound_gate(), DType::f32, 1, gold, m.magnitude, m.rounding);
  for (size_t i = 0; i < m.got.size(); ++i) m.gold[i] = gold, m.got[i] = static_cast<float>(gold + 0.9 * bound);
  const double ratio = (m.got[0] - gold) / bound;
  const auto rms = [&] { return compare(DType::f32, m, {bound_gate(), gate(Metric::bound_rms, 0.5)}).gates; };
  EXPECT_TRUE(rms()[0].holds);
  EXPECT_NEAR(rms()[1].achieved, ratio, 1e-12);
  EXPECT_FALSE(rms()[1].holds);
  for (size_t i = 1; i < m.got.size(); ++i) m.got[i] = gold;
  EXPECT_NEAR(rms()[1].achieved, ratio / std::sqrt(1000), 1e-12);
  EXPECT_TRUE(rms()[1].holds);
}

// With an element out of bound each element takes the slow path; the figure must not depend on it, nor on the gate's
// limit.
TEST(Summary, TheRmsIsThatOfAllElementsHoweverTheyAreCompared) {
  Matrix m(10, 100);
  const double bound = element_bound(bound_gate(), DType::f32, 1, 1, m.magnitude, m.rounding);
  for (size_t i = 0; i < m.got.size(); ++i)
    m.gold[i] = 1, m.got[i] = static_cast<float>(1 + 0.3 * bound * static_cast<double>(i % 3));
  const auto rms = [&](double limit) {
    return compare(DType::f32, m, {bound_gate(limit), gate(Metric::bound_rms, 0.5)}).gates[1].achieved;
  };
  const double ordinary = rms(1);
  EXPECT_GT(ordinary, 0.3);
  EXPECT_NEAR(rms(0.1), ordinary, 1e-12);
  EXPECT_NEAR(rms(10), ordinary, 1e-12);
  m.got[5] = NAN;
  EXPECT_EQ(rms(1), kInf);
}

// --- errors to one side ----------------------------------------------------------------------------------------------

GateResult bias_of(DType dtype, const Matrix& m, double limit_of_bound, double one_sided = 0, double bias_ulps = 0) {
  Gate bound = bound_gate(limit_of_bound), bias = gate(Metric::bias_t, 7);
  bound.bias_ulps = bias_ulps;
  bias.one_sided = one_sided;
  return compare(dtype, m, {bound, bias}).gates[1];
}

TEST(Bias, TruncationThatEveryElementWiseBoundPassesIsFound) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Matrix m = ideal(100, 16);
    for (double& x : m.got) x = truncated(dtype, x);
    const Comparison c = compare(dtype, m, {bound_gate(2.5), gate(Metric::bias_t, 7)});
    EXPECT_EQ(c.out_of_bound, 0);
    EXPECT_GT(c.gates[1].achieved, 9) << info(dtype).name;
    EXPECT_FALSE(c.passed());
    for (size_t i = 0; i < m.got.size(); ++i)  // and away from zero
      m.got[i] += std::copysign(2 * half_ulp(dtype, m.gold[i]), m.gold[i]);
    EXPECT_GT(compare(dtype, m, {bound_gate(2.5), gate(Metric::bias_t, 7)}).gates[1].achieved, 9);
  }
}

TEST(Bias, RoundingToNearestDoesNotLean) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    EXPECT_EQ(bias_of(dtype, ideal(100, 16), 2.5).achieved, 0);
}

TEST(Bias, UnbiasedDoubleRoundingDoesNotLean) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Matrix m = ideal(100, 64);
    for (size_t i = 0; i < m.got.size(); ++i)
      m.got[i] = rounded(DType::bf16, m.gold[i] + half_ulp(DType::bf16, m.gold[i]) * normal(100000 * (seed + 1) + i));
    const Comparison c = compare(DType::bf16, m, {bound_gate(20), gate(Metric::bias_t, 7)});
    EXPECT_TRUE(c.passed()) << c.gates[1].achieved;
    EXPECT_LT(c.gates[1].achieved, 4);
  }
}

TEST(Bias, SumsThatRoundToNearestDoNotLeanAndTruncatedOnesDo) {
  // Errors of a few ulp of fp32, within the bound of a sum; if truncated, their mean is a tenth of the bound off.
  constexpr double kUnit = 0x1p-24;
  Matrix right = ideal(200, 64);
  right.magnitude = 4;
  Matrix truncating = right;
  for (size_t i = 0; i < right.got.size(); ++i) {
    const double error = kUnit * 4 * normal(500000 + i), y = right.gold[i];
    right.got[i] = y + error;
    truncating.got[i] = y + error - std::copysign(kUnit * 2.4, y);
  }
  EXPECT_LT(bias_of(DType::f32, right, 1).achieved, 5);
  EXPECT_GT(bias_of(DType::f32, truncating, 1).achieved, 8);
  EXPECT_EQ(bias_of(DType::f32, truncating, 1, 0.25).achieved, 0);  // allowed for sums
  EXPECT_EQ(bias_of(DType::f32, truncating, 1, 0, 1).achieved, 0);  // allowed for tensor cores, by bias_ulps
  truncating.rounding = 4;
  EXPECT_EQ(bias_of(DType::f32, truncating, 1).achieved, 0);  // allowed for functions
}

TEST(BoundRms, EqualRowsAreOneError) {
  const auto row = [](double gold, double ratio) {
    RowSums sums;
    sums.squared_gold = gold, sums.squared_ratio = ratio * ratio, sums.finite = 1;
    return sums;
  };
  EXPECT_EQ(bound_rms(std::vector(16, row(2, 0.5))).value, 0);  // one error
  EXPECT_DOUBLE_EQ(bound_rms(std::vector{row(2, 0.5), row(3, 0.5)}).value, 0.5);
  std::vector<RowSums> rows(4, row(1, 0.75));
  for (const double gold : {2.0, 3.0, 4.0}) rows.push_back(row(gold, 0.25));
  EXPECT_DOUBLE_EQ(bound_rms(rows).value, std::sqrt((0.75 * 0.75 + 3 * 0.25 * 0.25) / 4));
  rows.push_back(row(0, 0));
  EXPECT_DOUBLE_EQ(bound_rms(rows).value, std::sqrt((0.75 * 0.75 + 3 * 0.25 * 0.25) / 5));
}

TEST(Bias, WhatMayLeanIsGranted) {
  // 100 rows with a bias of 5, of which 4 is allowed: 500 - 400 over the root of 100 squares of 5 + 4.
  std::vector<RowSums> rows(100);
  for (size_t r = 0; r < rows.size(); ++r) {
    rows[r].squared_gold = static_cast<double>(r);
    rows[r].bias = r % 2 == 0 ? 5 : -5;
    rows[r].allowed_bias = 4;
  }
  EXPECT_EQ(bias_statistic(rows).value, 0);
  for (RowSums& row : rows) row.bias = -5;
  EXPECT_DOUBLE_EQ(bias_statistic(rows).value, 100.0 / 90);
  for (RowSums& row : rows) row.allowed_bias = 0;
  EXPECT_DOUBLE_EQ(bias_statistic(rows).value, 10);
  EXPECT_DOUBLE_EQ(bias_statistic(rows, 100).value, 10);
  EXPECT_DOUBLE_EQ(bias_statistic(rows, 25).value, 5);  // 4 rows err alike
  for (RowSums& row : rows) row.allowed_bias = 6;
  EXPECT_EQ(bias_statistic(rows).value, 0);
}

TEST(Bias, EqualInputsAreOneErrorNotMany) {
  // Every element is the same value, near the midpoint between two numbers, and the candidate rounds it the other way.
  Matrix m(100, 16);
  const double middle = 1 + 0x1p-8;
  std::fill(m.gold.begin(), m.gold.end(), middle + 0x1p-30);
  std::fill(m.got.begin(), m.got.end(), 1.0);
  EXPECT_EQ(bias_of(DType::bf16, m, 1).achieved, 0);
  // Identical rows count once, whatever their errors.
  std::fill(m.got.begin(), m.got.end(), 1 - 0x1p-7);
  EXPECT_LE(bias_of(DType::bf16, m, 10).achieved, 1);
}

TEST(Bias, FewRowsCannotTell) {
  Matrix m = ideal(9, 64);
  for (double& x : m.got) x = truncated(DType::bf16, x);
  EXPECT_LE(bias_of(DType::bf16, m, 2.5).achieved, 3);
}

}  // namespace
}  // namespace checkop::summary_test
