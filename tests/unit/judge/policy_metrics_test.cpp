// SPDX-License-Identifier: Apache-2.0
// Effects of log-probability errors on a trainer, computed by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "judge/policy_metrics.hpp"
#include "support/compare_helper.hpp"

namespace checkop::policy_metrics_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

PolicyMetrics of_logp(const std::vector<Token>& tokens, double eps = 0.2) {
  return policy_metrics(TokenQuantity::logp, tokens, eps);
}
PolicyMetrics of_ratio(const std::vector<Token>& tokens, double eps = 0.2) {
  return policy_metrics(TokenQuantity::ratio, tokens, eps);
}

TEST(PolicyMetrics, AreZeroWhereNothingErrs) {
  const PolicyMetrics m = of_logp({{-1, -1, 0}, {-kInf, -kInf, 0}});
  EXPECT_EQ(m.tokens, 2);
  EXPECT_EQ(m.max_abs_dlogp, 0);
  EXPECT_EQ(m.k3_mean, 0);
  EXPECT_EQ(m.ratio_deviation, 0);
  EXPECT_EQ(m.clip_flips, 0);
}

TEST(PolicyMetrics, FollowTheirFormulas) {
  const PolicyMetrics m = of_logp({{-1.5, -1, 0}, {-2, -2, 0}});
  EXPECT_DOUBLE_EQ(m.max_abs_dlogp, 0.5);
  EXPECT_DOUBLE_EQ(m.k3_max, std::exp(-0.5) - 0.5);
  EXPECT_DOUBLE_EQ(m.k3_mean, m.k3_max / 2);
  EXPECT_DOUBLE_EQ(m.ratio_deviation, 1 - std::exp(-0.5));
  EXPECT_EQ(m.clip_flips, 0.5);
}

TEST(PolicyMetrics, SmallErrorsKeepTheirDigits) {
  const double d = 1.1e-6;  // d^2/2 is 6e-13, and exp(d) is rounded at 1e-16
  EXPECT_NEAR(of_logp({{d, 0, 0}}).k3_max / (d * d / 2), 1, 1e-6);
}

TEST(PolicyMetrics, TokensOfProbabilityZeroDoNotDiverge) {
  EXPECT_EQ(of_logp({{-50000.004, -50000, 0}}).k3_max, 0);
  EXPECT_GT(of_logp({{-100.004, -100, 0}}).k3_max, 0);
  EXPECT_EQ(of_logp({{-3, -kInf, 0}}).k3_max, kInf);
  EXPECT_EQ(of_logp({{-kInf, -50000, 0}}).k3_max, kInf);
}

TEST(PolicyMetrics, ErrorsOfARatioAreThoseOfItsLogp) {
  const PolicyMetrics m = of_ratio({{2.2, 2, 1e-3}});
  EXPECT_DOUBLE_EQ(m.max_abs_dlogp, std::log(2.2) - std::log(2));
  EXPECT_NEAR(m.ratio_deviation, 0.1, 1e-12);
}

TEST(PolicyMetrics, ALogpFlipsWhenItsRatioLeavesTheInterval) {
  EXPECT_EQ(of_logp({{std::log(1.19), 0, 0}}).clip_flips, 0);
  EXPECT_EQ(of_logp({{std::log(1.21), 0, 0}}).clip_flips, 1);
  EXPECT_EQ(of_logp({{std::log(0.79), 0, 0}}).clip_flips, 1);
  EXPECT_EQ(of_logp({{std::log(1.21), 0, 0}}, 0.3).clip_flips, 0);
}

TEST(PolicyMetrics, ARatioFlipsWhenItCrossesAnEdge) {
  EXPECT_EQ(of_ratio({{1.25, 1.3, 0}}).clip_flips, 0);  // both above
  EXPECT_EQ(of_ratio({{1.19, 1.21, 1e-3}}).clip_flips, 1);
  EXPECT_EQ(of_ratio({{1.19, 1.2005, 1e-3}}).clip_flips, 0);  // within its bound of the edge: either branch is right
  EXPECT_EQ(of_ratio({{0.5, 0.9, 1e-3}}).clip_flips, 1);
}

TEST(PolicyMetrics, NothingNonfiniteHides) {
  for (const double got : {kNan, kInf, -kInf}) {
    const PolicyMetrics m = of_logp({{got, -1, 0}, {-1, -1, 0}});
    EXPECT_EQ(m.max_abs_dlogp, kInf);
    EXPECT_EQ(m.k3_mean, kInf);
    EXPECT_EQ(m.ratio_deviation, kInf);
    EXPECT_EQ(m.clip_flips, 0.5);
    EXPECT_EQ(of_ratio({{got, 1, 0}}).clip_flips, 1) << got;
  }
}

TEST(PolicyMetrics, AreOfTheOutputsThatHoldTokens) {
  const auto quantity = [](std::string_view op, std::string_view pass, size_t output) {
    return token_quantity(find_pass(*find_operator(op), pass)->outputs[output]);
  };
  EXPECT_EQ(quantity("logp", "forward", 0), TokenQuantity::logp);
  EXPECT_EQ(quantity("linear_logp", "forward", 0), TokenQuantity::logp);
  EXPECT_EQ(quantity("ratio_kl", "forward", 0), TokenQuantity::ratio);
  EXPECT_EQ(quantity("ratio_kl", "forward", 1), TokenQuantity::none);
  EXPECT_EQ(quantity("logp", "backward", 0), TokenQuantity::none);
  EXPECT_EQ(quantity("grpo_loss", "forward", 0), TokenQuantity::none);
  EXPECT_EQ(quantity("matmul", "forward", 0), TokenQuantity::none);
}

TEST(PolicyMetrics, AreGatesWhenTheContractAsks) {
  using namespace compare_test;
  Matrix m(3, 1);
  m.gold = {-1, -2, -3};
  m.got = {-1, -2.25, -3};
  Gate clip = gate(Metric::clip_flips, 0);
  const Comparison c = compare(DType::f32, m,
                               {tolerance(1, 0), gate(Metric::max_abs_dlogp, 0.25), gate(Metric::k3_mean, 1e-3),
                                gate(Metric::k3_max, 1), gate(Metric::ratio_deviation, 1), clip},
                               TokenQuantity::logp);
  EXPECT_TRUE(c.gates[1].holds);
  EXPECT_FALSE(c.gates[2].holds);
  EXPECT_TRUE(c.gates[3].holds && c.gates[4].holds);
  EXPECT_FALSE(c.gates[5].holds);  // exp(-0.25) = 0.78
  EXPECT_NEAR(c.gates[5].achieved, 1.0 / 3, 1e-15);
  EXPECT_FALSE(c.passed());
  clip.clip_eps = 0.25;
  EXPECT_TRUE(compare(DType::f32, m, {tolerance(1, 0), clip}, TokenQuantity::logp).passed());
  EXPECT_EQ(compare(DType::f32, m, {tolerance(1, 0)}, TokenQuantity::logp).policy->tokens, 3);  // always reported
  EXPECT_FALSE(compare(DType::f32, m, {tolerance(1, 0)}).policy.has_value());
}

}  // namespace
}  // namespace checkop::policy_metrics_test
