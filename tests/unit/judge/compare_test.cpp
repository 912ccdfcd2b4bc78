// SPDX-License-Identifier: Apache-2.0
// The comparison: what passes, what fails, and what it reports.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "judge/compare.hpp"

namespace checkop::comparison_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Gate bound_gate() {
  Gate gate;
  gate.lambda = 6;
  gate.max_chain = 1024;
  gate.source = "test";
  return gate;
}

Gate tolerance(double atol, double rtol) {
  Gate gate;
  gate.metric = Metric::atol_rtol;
  gate.atol = atol;
  gate.rtol = rtol;
  return gate;
}

Gate bits_gate() {
  Gate gate;
  gate.metric = Metric::bits;
  return gate;
}

/// Compares `got` with `gold` as one row; magnitude and rounding are 1 for every element.
Comparison compare(DType dtype, const std::vector<double>& got, const std::vector<double>& gold,
                   std::vector<Gate> gates, bool nonfinite_may_match = false) {
  Tensor tensor("y", dtype, {static_cast<int64_t>(got.size())});
  for (size_t i = 0; i < got.size(); ++i) tensor.set(static_cast<int64_t>(i), got[i]);
  const auto n = static_cast<int64_t>(gold.size());
  OutputComparison comparison(dtype, tensor.bytes.data(), {1, n}, {std::move(gates), nonfinite_may_match, "test"}, 1);
  const std::vector<double> ones(gold.size(), 1.0);
  if (n > 0) comparison.add({0, 0, 1, n, gold.data(), ones.data(), ones.data()});
  return comparison.finish();
}

TEST(Compare, EqualValuesPass) {
  const Comparison c = compare(DType::f32, {1, -2}, {1, -2}, {bound_gate()});
  EXPECT_TRUE(c.passed());
  EXPECT_EQ(c.count, 2);
  EXPECT_EQ(c.max_abs, 0);
}

TEST(Compare, WorstOfElementsThatAllPassIsTheFirstOfTheLargestError) {
  std::vector<double> gold(600, 4), got(600, 4);
  got[7] += 1, got[9] -= 1;  // in the first block
  for (const int64_t worst : {7, 300, 590}) {
    if (worst > 7) got[static_cast<size_t>(worst)] = 2 + 1.0 / static_cast<double>(worst);
    const Comparison c = compare(DType::f32, got, gold, {tolerance(10, 0), tolerance(0, 1)});
    EXPECT_TRUE(c.passed());
    ASSERT_TRUE(c.worst);
    EXPECT_EQ(c.worst->index, worst);
    EXPECT_EQ(c.worst->got, static_cast<float>(got[static_cast<size_t>(worst)]));
    EXPECT_EQ(c.worst->bound, 4);
    EXPECT_EQ(c.worst->ratio, c.worst->error / 4);
  }
}

TEST(Compare, NanInCandidateFailsWhenGoldIsFinite) {
  for (const Gate& gate : {bound_gate(), tolerance(1e30, 1e30), bits_gate()}) {
    const Comparison c = compare(DType::f32, {1, kNan}, {1, 2}, {gate});
    EXPECT_FALSE(c.passed()) << to_string(gate.metric);
    EXPECT_EQ(c.nonfinite, 1);
    EXPECT_EQ(c.first->index, 1);
    EXPECT_EQ(c.max_abs, kInf);
    EXPECT_EQ(c.gates[0].headroom, 0);
  }
}

TEST(Compare, InfinityInCandidateFailsWhenGoldIsFinite) {
  EXPECT_FALSE(compare(DType::f32, {kInf}, {1}, {tolerance(1e30, 1)}).passed());
}

TEST(Compare, NonfiniteGoldFailsUnlessTheContractSaysSo) {
  for (const double value : {kNan, kInf, -kInf}) {
    EXPECT_FALSE(compare(DType::f32, {value, 1}, {value, 1}, {bound_gate()}).passed()) << value;
    EXPECT_TRUE(compare(DType::f32, {value, 1}, {value, 1}, {bound_gate()}, true).passed()) << value;
  }
  EXPECT_FALSE(compare(DType::f32, {-kInf}, {kInf}, {bound_gate()}, true).passed());
  EXPECT_FALSE(compare(DType::f32, {1}, {kNan}, {bound_gate()}, true).passed());
}

TEST(Compare, OverflowOfTheOutputTypeIsRight) {
  EXPECT_TRUE(compare(DType::f16, {kInf}, {1e5}, {bound_gate()}).passed());
  EXPECT_FALSE(compare(DType::f16, {kInf}, {6e4}, {bound_gate()}).passed());
}

TEST(Compare, EmptyOutputDoesNotPass) { EXPECT_FALSE(compare(DType::f32, {}, {}, {bound_gate()}).passed()); }

TEST(Compare, MissingRowsDoNotPass) {
  const Tensor tensor("y", DType::f32, {2, 1});
  OutputComparison comparison(DType::f32, tensor.bytes.data(), {2, 1}, {{bound_gate()}, false, ""}, 1);
  const double zero = 0;
  comparison.add({0, 1, 1, 1, &zero, &zero, &zero});
  EXPECT_FALSE(comparison.finish().passed());
  comparison.add({0, 1, 1, 1, &zero, &zero, &zero});  // a repeated row does not replace a missing one
  EXPECT_EQ(comparison.finish().count, 1);
  EXPECT_FALSE(comparison.finish().passed());
}

TEST(Compare, BoundIsWorkedByHand) {
  const Gate gate = bound_gate();
  const double u = std::exp2(-24), tiny = std::exp2(-126);
  // 100 terms: growth = 6*sqrt(100)*u. E = 60u*3 + u*2 + tiny; at 1.5 + E half an ulp of bf16 is 2^-8.
  const double error = 60 * u * 3 + 2 * u + tiny;
  EXPECT_DOUBLE_EQ(element_bound(gate, DType::bf16, 100, 1.5, 3, 2), error + std::exp2(-8));
  EXPECT_DOUBLE_EQ(element_bound(gate, DType::f32, 100, 1.5, 3, 2), error + std::exp2(-24));
  // Just below 2 the error can reach the next binade, where half an ulp is twice as large.
  EXPECT_DOUBLE_EQ(element_bound(gate, DType::bf16, 100, 2 - 1e-9, 3, 2), error + std::exp2(-7));
}

TEST(Compare, BiasOfTruncationGrowsWithTheChainAndThePartialSums) {
  Gate gate = bound_gate();
  const double without = element_bound(gate, DType::f32, 1024, 1.5, 3, 0);
  gate.bias_ulps = 2;
  EXPECT_DOUBLE_EQ(element_bound(gate, DType::f32, 1024, 1.5, 3, 0), without + 2 * 1024 * std::exp2(-24) * 3);
}

TEST(Compare, ASpreadIsAddedToTheBound) {
  const Gate gate = bound_gate();
  const double chain = 60 * std::exp2(-24) * 3, tiny = std::exp2(-126), spread = 0.01;  // 100 terms
  for (const DType out : {DType::bf16, DType::f16, DType::f32}) {
    const PreparedGate prepared(gate, out, 100);
    EXPECT_DOUBLE_EQ(prepared.computed(3, 0, spread), chain + spread + tiny);
    const double value = 1, magnitude = 3, rounding = 0;
    double allowed = 0, over_half = 0;
    prepared.bounds(&value, &magnitude, &rounding, &spread, 1, &allowed, &over_half);
    EXPECT_DOUBLE_EQ(allowed, prepared.allowed(1, 3, 0, spread));
    EXPECT_DOUBLE_EQ(allowed, element_bound(gate, out, 100, 1, 3, 0, spread));
    EXPECT_GT(prepared.allowed(0, 0, 0, spread), 0);  // what is allowed to err is no exact zero
  }
}

TEST(Compare, NoiseIsMeasuredInStandardDeviations) {
  Gates gates = {{bound_gate()}, false, "rule", "", {}, {}, 0, {}, {}};
  Gate noise;
  noise.metric = Metric::noise_rms, noise.limit = 1;
  gates.all.push_back(noise);
  constexpr size_t kCount = 10000;
  const std::vector<double> gold(kCount, 1.5), magnitude(kCount, 0.0), rounding(kCount, 0.0), spread(kCount, 0.06),
      deviation(kCount, 0.01);
  const auto achieved = [&](double error) {
    std::vector<float> got(kCount);
    for (size_t i = 0; i < kCount; ++i) got[i] = static_cast<float>(1.5 + (i % 2 == 0 ? error : -error));
    OutputComparison comparison(DType::f32, reinterpret_cast<const std::byte*>(got.data()), {100, 100}, gates, 1);
    comparison.add({0, 0, 100, 100, gold.data(), magnitude.data(), rounding.data(), spread.data(), deviation.data()});
    return comparison.finish();
  };
  EXPECT_TRUE(achieved(0.01).passed());
  const Comparison twice = achieved(0.02);  // a third of each element's bound
  EXPECT_EQ(twice.out_of_bound, 0);
  EXPECT_FALSE(twice.passed());
  EXPECT_NEAR(twice.gates.back().achieved, 2 / std::sqrt(1 + 2 * std::sqrt(25.0 / kCount) + 2 * 25.0 / kCount), 1e-3);
  gates.independent = kCount;  // one per row at most, of 100
  const double of_rows = 2 / std::sqrt(1 + 2 * std::sqrt(0.25) + 2 * 0.25);
  EXPECT_NEAR(achieved(0.02).gates.back().achieved, of_rows, 1e-3);
  gates.independent = 4;
  const double of_few = 2 / std::sqrt(1 + 2 * std::sqrt(6.25) + 2 * 6.25);
  EXPECT_NEAR(achieved(0.02).gates.back().achieved, of_few, 1e-3);
  EXPECT_TRUE(achieved(0.02).passed());
}

TEST(Compare, Fp64OutputsAreHeldToFp64Arithmetic) {
  const Gate gate = bound_gate();
  EXPECT_LT(element_bound(gate, DType::f64, 100, 1.5, 3, 2), 1e-13);
  EXPECT_TRUE(compare(DType::f64, {1 + 4e-16}, {1}, {gate}).passed());
  EXPECT_FALSE(compare(DType::f64, {1 + 1e-9}, {1}, {gate}).passed());
}

TEST(Compare, OneRoundingPassesAndTruncationFails) {
  // 1 + 0.75 ulp of bf16: rounded up, the error is 0.25 ulp; truncated, 0.75.
  const double gold = 1 + 0.75 * std::exp2(-7);
  EXPECT_TRUE(compare(DType::bf16, {1 + std::exp2(-7)}, {gold}, {bound_gate()}).passed());
  EXPECT_FALSE(compare(DType::bf16, {1}, {gold}, {bound_gate()}).passed());
}

TEST(Compare, QuantilesAreThoseOfErrorsOverBounds) {
  // Errors of 1 to 1000 thousandths of the bound.
  std::vector<double> gold(1000, 4), got(1000, 4);
  const double bound = element_bound(bound_gate(), DType::f64, 1, 4, 1, 1);
  for (size_t i = 0; i < got.size(); ++i) got[i] += static_cast<double>(i + 1) * 1e-3 * bound * (i % 2 == 0 ? 1 : -0.5);
  const Comparison c = compare(DType::f64, got, gold, {bound_gate()});
  ASSERT_TRUE(c.quantiles.has_value());
  std::vector<double> ratios;
  for (const double x : got) ratios.push_back(std::abs(x - 4) / bound);
  std::sort(ratios.begin(), ratios.end());
  const auto is_near = [](double quantile, double exact) {
    return quantile >= exact * 0.95 && quantile <= exact * 1.2;
  };
  EXPECT_TRUE(is_near(c.quantiles->median, ratios[499])) << c.quantiles->median << " " << ratios[499];
  EXPECT_TRUE(is_near(c.quantiles->p99, ratios[989])) << c.quantiles->p99 << " " << ratios[989];
  EXPECT_TRUE(is_near(c.quantiles->p999, ratios[998])) << c.quantiles->p999 << " " << ratios[998];
  EXPECT_NEAR(c.quantiles->largest, ratios.back(), 0.05);
  EXPECT_NEAR(c.mean_error / bound, 0.125, 0.01);
  EXPECT_FALSE(compare(DType::f64, got, gold, {tolerance(1, 0)}).quantiles.has_value());
}

// A number stored in 16 bits tells no more of the computation than how far the gold is beyond the nearest tie.
TEST(Compare, ComputationHasTheErrorThatStoringDoesNotExplain) {
  const double computed =
      element_bound(bound_gate(), DType::bf16, 1, 1, 1, 1) - std::exp2(-8);  // at 1, E + half an ulp
  const double tie = 1 + std::exp2(-8), ulp = std::exp2(-7);
  EXPECT_EQ(compare(DType::bf16, {1}, {1 + 0.9 * std::exp2(-8)}, {bound_gate()}).computed, 0);
  EXPECT_TRUE(std::isinf(compare(DType::bf16, {1}, {1 + 0.9 * std::exp2(-8)}, {bound_gate()}).computation_headroom()));
  const Comparison flipped = compare(DType::bf16, {1}, {tie + computed / 4}, {bound_gate()});
  EXPECT_NEAR(flipped.computed, 0.25, 0.15);
  EXPECT_TRUE(flipped.passed());
  // Beyond the fast path too: another element that fails.
  const Comparison wrong = compare(DType::bf16, {1, 1 + 3 * ulp}, {tie + computed / 4, 1}, {bound_gate()});
  EXPECT_FALSE(wrong.passed());
  EXPECT_GT(wrong.computed, 1);
  EXPECT_TRUE(std::isinf(compare(DType::bf16, {kNan}, {1}, {bound_gate()}).computed));
}

TEST(Compare, AllGatesMustHold) {
  const Comparison c = compare(DType::f32, {1.001}, {1}, {tolerance(1, 0), tolerance(1e-6, 0)});
  EXPECT_FALSE(c.passed());
  EXPECT_EQ(c.gates[0].out_of_bound, 0);
  EXPECT_EQ(c.gates[1].out_of_bound, 1);
  EXPECT_NEAR(c.gates[1].achieved, 1000, 1);
  EXPECT_EQ(c.out_of_bound, 1);
}

TEST(Compare, ZeroToleranceAcceptsEqualityOnly) {
  EXPECT_TRUE(compare(DType::f32, {0.5}, {0.5}, {tolerance(0, 0)}).passed());
  EXPECT_FALSE(compare(DType::f32, {0.5f + 6e-8f}, {0.5}, {tolerance(0, 0)}).passed());
}

TEST(Compare, BitsGateTellsZerosApart) {
  EXPECT_TRUE(compare(DType::f32, {-0.0, 0.1}, {-0.0, 0.1}, {bits_gate()}).passed());
  EXPECT_FALSE(compare(DType::f32, {-0.0}, {0.0}, {bits_gate()}).passed());
}

TEST(Compare, IntegersAreEqualToTheLastUnit) {
  for (const DType dtype : {DType::i64, DType::i32, DType::u8}) {
    EXPECT_TRUE(compare(dtype, {0, 3, 255}, {0, 3, 255}, {bits_gate()}).passed()) << info(dtype).name;
    const Comparison off = compare(dtype, {0, 3, 255}, {0, 2, 255}, {bits_gate()});
    EXPECT_EQ(off.out_of_bound, 1) << info(dtype).name;
    EXPECT_EQ(off.first->index, 1);
    EXPECT_EQ(off.max_ulp, 1u);
    const Comparison zeros = compare(dtype, {0, 0}, {0, 2}, {bits_gate()});
    EXPECT_FALSE(zeros.passed());
    EXPECT_TRUE(zeros.would_pass.empty());
  }
}

// Equal bits do not make a NaN right if the contract accepts none.
TEST(Compare, ANanInTheGoldIsNoMatchForBitsUnlessTheContractSaysSo) {
  for (const bool may_match : {false, true}) {
    Tensor tensor("y", DType::f32, {2});
    tensor.set(0, NAN), tensor.set(1, 1);
    OutputComparison comparison(DType::f32, tensor.bytes.data(), {1, 2}, {{bits_gate()}, may_match, "test"}, 1);
    const std::vector<double> gold{tensor.at(0), 1}, none{0, 0};
    comparison.add({0, 0, 1, 2, gold.data(), none.data(), none.data()});
    EXPECT_EQ(comparison.finish().passed(), may_match);
    EXPECT_EQ(comparison.finish().nonfinite, may_match ? 0 : 1);
  }
}

// As doubles both would be 2^53.
TEST(Compare, IntegersBeyondDoublesAreToldApart) {
  Tensor tensor("y", DType::i64, {1});
  const int64_t got = (int64_t{1} << 53) + 1;
  encode_int(DType::i64, &got, tensor.bytes.data(), 1);
  OutputComparison comparison(DType::i64, tensor.bytes.data(), {1, 1}, {{bits_gate()}, false, "test"}, 1);
  const double gold = 0x1p53, none = 0;
  comparison.add({0, 0, 1, 1, &gold, &none, &none});
  EXPECT_EQ(comparison.finish().out_of_bound, 1);
}

TEST(Compare, FirstAndWorstAreReported) {
  const Comparison c = compare(DType::f32, {1, 2.5, 3, 9}, {1, 2, 3, 4}, {tolerance(0.1, 0)});
  EXPECT_EQ(c.out_of_bound, 2);
  EXPECT_EQ(c.first->index, 1);
  EXPECT_EQ(c.worst->index, 3);
  EXPECT_EQ(c.worst->got, 9);
  EXPECT_EQ(c.worst->gold, 4);
  EXPECT_NEAR(c.worst->ratio, 50, 1e-9);
  EXPECT_EQ(c.max_abs, 5);
  EXPECT_DOUBLE_EQ(c.mean_abs, 5.5 / 4);
  EXPECT_DOUBLE_EQ(c.rel_l2, std::sqrt((0.25 + 25) / 30));
}

TEST(Compare, RelativeErrorIgnoresElementsBelowTheFloor) {
  // 1e-9 of gold against 1e-3 is meaningless as a relative error, so only the large elements count.
  const Comparison c = compare(DType::f32, {1.5, 1e-3}, {1, 1e-9}, {tolerance(10, 0)});
  EXPECT_DOUBLE_EQ(c.max_rel, 0.5);
  EXPECT_GT(c.rel_floor, 1e-9);
}

TEST(Compare, UlpDistanceIsToTheGoldRoundedOnce) {
  EXPECT_EQ(compare(DType::bf16, {1 + 3 * std::exp2(-7)}, {1.0001}, {tolerance(1, 0)}).max_ulp, 3u);
  EXPECT_EQ(compare(DType::bf16, {1}, {1.0001}, {tolerance(1, 0)}).max_ulp, 0u);
}

// Masked elements: no term has an error, so neither a subnormal nor the smallest normal number may replace zero.
TEST(Compare, ZeroOfNothingThatErrsMustBeZero) {
  const std::vector<double> none(300, 0.0);
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const double off : {0.0, -0.0, std::ldexp(1.0, info(dtype).min_exponent), half_ulp(dtype, 0.0) * 2, 1e-5}) {
      Tensor tensor("y", dtype, {300});
      tensor.set(299, off);
      OutputComparison comparison(dtype, tensor.bytes.data(), {1, 300}, {{bound_gate()}, false, "test"}, 1);
      comparison.add({0, 0, 1, 300, none.data(), none.data(), none.data()});
      const Comparison c = comparison.finish();
      EXPECT_EQ(c.passed(), off == 0) << info(dtype).name << " " << off;
      EXPECT_EQ(c.gates.at(0).achieved, off == 0 ? 0 : kInf) << info(dtype).name << " " << off;
    }
  }
  EXPECT_EQ(element_bound(bound_gate(), DType::f32, 100, 0, 0, 0), 0);
  EXPECT_GT(element_bound(bound_gate(), DType::f32, 100, 0, 0, 1e-30), 0);
}

TEST(Compare, UlpGateCountsNumbersOfTheOutputsType) {
  Gate ulps;
  ulps.metric = Metric::ulp;
  ulps.limit = 1;
  const double ulp = std::exp2(-7);
  EXPECT_TRUE(compare(DType::bf16, {1, 1 + ulp, -2}, {1, 1.0001, -2}, {ulps}).passed());
  const Comparison c = compare(DType::bf16, {1, 1 + 2 * ulp, 1 - ulp}, {1, 1.0001, 1}, {ulps});
  EXPECT_EQ(c.out_of_bound, 2);  // below 1 numbers are twice as dense
  EXPECT_EQ(c.gates[0].achieved, 2);
  EXPECT_EQ(c.gates[0].passing, 2);
  ulps.limit = 0;
  EXPECT_TRUE(compare(DType::bf16, {1, -0.0}, {1.0001, 0.0}, {ulps}).passed());  // both zeros are the same number
  EXPECT_FALSE(compare(DType::bf16, {1 + ulp}, {1.0001}, {ulps}).passed());
  EXPECT_FALSE(compare(DType::bf16, {kNan}, {1}, {ulps}).passed());
}

TEST(Compare, UlpGateOfManyElementsFindsTheOneThatIsOff) {
  std::vector<double> gold(3000, 1.0), got = gold;
  Gate ulps;
  ulps.metric = Metric::ulp;
  ulps.limit = 2;
  EXPECT_TRUE(compare(DType::f16, got, gold, {ulps}).passed());
  got[2001] = 1 + 3 * std::exp2(-10);
  EXPECT_EQ(compare(DType::f16, got, gold, {ulps}).first->index, 2001);
  EXPECT_EQ(compare(DType::f16, got, gold, {ulps}).out_of_bound, 1);
}

TEST(Compare, ZerosWithinTheUlpLimitWouldPass) {
  Gate ulps;
  ulps.metric = Metric::ulp;
  ulps.limit = 3;
  const double smallest = std::exp2(-24);
  EXPECT_EQ(compare(DType::f16, {3 * smallest}, {3 * smallest}, {ulps}).would_pass, std::vector{Trivial::zeros});
  EXPECT_TRUE(compare(DType::f16, {4 * smallest}, {4 * smallest}, {ulps}).would_pass.empty());
}

TEST(Compare, EveryGateNamesTheSmallestLimitThatWouldPass) {
  const std::vector<double> got{1, 2.5}, gold{1, 2};
  const Comparison c = compare(DType::f32, got, gold, {tolerance(0.3, 0.1)});
  EXPECT_DOUBLE_EQ(c.gates[0].achieved, 1);
  const double u = std::exp2(-24);
  Gate bound = bound_gate();
  bound.limit = 10;
  const std::vector<double> near{1 + 50 * u, 2};
  const GateResult first = compare(DType::f32, near, gold, {bound}).gates[0];
  EXPECT_TRUE(first.holds);
  EXPECT_GE(first.passing, first.achieved);
  EXPECT_LT(first.passing, first.achieved * 1.001);
  bound.limit = first.passing;
  EXPECT_TRUE(compare(DType::f32, near, gold, {bound}).passed());
  bound.limit = first.passing * 0.998;
  EXPECT_FALSE(compare(DType::f32, near, gold, {bound}).passed());
  bound.limit = 0;
  EXPECT_EQ(compare(DType::f32, near, gold, {bound}).gates[0].headroom, 0);
}

TEST(Compare, ZerosThatWouldPassAreNoticed) {
  EXPECT_EQ(compare(DType::f32, {1e-9}, {1e-9}, {tolerance(1e-3, 0)}).would_pass, std::vector{Trivial::zeros});
  EXPECT_EQ(compare(DType::f32, {1e-9, 1}, {1e-9, 1}, {tolerance(1e-3, 0)}).would_pass,
            std::vector{Trivial::largest_alone});
  // If the gold is exactly zero, only zeros are right.
  EXPECT_TRUE(compare(DType::f32, {0, 0}, {0, 0}, {tolerance(1e-3, 0)}).would_pass.empty());
}

class CompareRows : public testing::TestWithParam<int64_t> {};

TEST_P(CompareRows, ResultDoesNotDependOnTheirOrderOrThreads) {
  constexpr int64_t kColumns = 33;
  const int64_t rows = GetParam();
  Tensor tensor("y", DType::f32, {rows, kColumns});
  std::vector<double> gold(static_cast<size_t>(rows * kColumns)), ones(gold.size(), 1.0);
  double largest = 0;
  for (int64_t i = 0; i < rows * kColumns; ++i) {
    gold[static_cast<size_t>(i)] = std::sin(static_cast<double>(i));
    tensor.set(i, gold[static_cast<size_t>(i)] + 1e-6 * std::cos(static_cast<double>(i * i)));
    largest = std::max(largest, std::abs(tensor.at(i) - gold[static_cast<size_t>(i)]));
  }
  const auto run = [&](bool reversed, bool threaded) {
    OutputComparison comparison(DType::f32, tensor.bytes.data(), {rows, kColumns}, {{bound_gate()}, false, ""}, 1);
    const auto add = [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const int64_t row = reversed ? rows - 1 - r : r, at = row * kColumns;
        comparison.add({0, row, 1, kColumns, &gold[static_cast<size_t>(at)], &ones[static_cast<size_t>(at)],
                        &ones[static_cast<size_t>(at)]});
      }
    };
    if (threaded) {
      std::jthread half([&] { add(0, rows / 2); });
      add(rows / 2, rows);
    } else {
      add(0, rows);
    }
    return comparison.finish();
  };
  const Comparison a = run(false, false);
  for (const Comparison& b : {run(true, false), run(false, true), run(true, true)}) {
    EXPECT_EQ(a.mean_abs, b.mean_abs);
    EXPECT_EQ(a.rel_l2, b.rel_l2);
    EXPECT_EQ(a.max_rel, b.max_rel);
    EXPECT_EQ(a.worst->index, b.worst->index);
    EXPECT_EQ(a.out_of_bound, b.out_of_bound);
    EXPECT_EQ(a.map.histogram, b.map.histogram);
    EXPECT_EQ(a.map.cells, b.map.cells);
  }
  EXPECT_EQ(a.count, rows * kColumns);
  EXPECT_EQ(a.max_abs, largest);
  EXPECT_EQ(std::accumulate(a.map.histogram.begin(), a.map.histogram.end(), int64_t{0}), a.count);
  EXPECT_GT(a.max_rel, 0);
}

INSTANTIATE_TEST_SUITE_P(FewAndMany, CompareRows, testing::Values(64, 5000));

}  // namespace
}  // namespace checkop::comparison_test
