// SPDX-License-Identifier: Apache-2.0
// token_mean: whose errors add up, and an end where a log-probability is NaN.
#include "token_mean.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "policy_tokens.hpp"

namespace checkop {
namespace {

TEST(TokenMean, TokensOfOneKeyErrTogetherAndOthersApart) {
  TokenMean same, apart;
  for (int i = 0; i < 4; ++i) {
    const GoldElement term{0, 1, 0};
    same.add(term, 1, 7);
    apart.add(term, 1, i);
  }
  EXPECT_DOUBLE_EQ(same.over(1).magnitude, 4 / std::sqrt(3));
  EXPECT_DOUBLE_EQ(apart.over(1).magnitude, 2 / std::sqrt(3));
}

TEST(PolicyTokens, ErrorsThatLeanToOneSideAddUp) {
  constexpr int64_t kTokens = 4096;
  const Tensor old("old_logps", DType::f32, {1, kTokens});
  Tensor advantages("advantages", DType::f32, {1, kTokens}), mask("mask", DType::u8, {1, kTokens});
  for (int64_t i = 0; i < kTokens; ++i) advantages.set(i, i % 2 == 0 ? 1 : -1), mask.set(i, 1);
  std::vector<double> attrs;
  for (const AttrSpec& attr : kPolicyAttrs) attrs.push_back(attr.fallback);
  const auto rounding = [&](const std::vector<double>& lean) {
    std::vector<GoldElement> logps(kTokens, {0, 0, 1000});
    for (int64_t i = 0; i < kTokens; ++i) logps[static_cast<size_t>(i)].value = 1e-4 * static_cast<double>(i % 1000);
    const PolicyTokens tokens({logps, {}, kTokens, old, advantages, mask, nullptr, nullptr, nullptr, 6, lean}, attrs);
    return tokens.losses().loss.rounding;
  };
  EXPECT_LT(rounding({}), 250);
  EXPECT_GT(rounding(std::vector<double>(kTokens, 800)), 800);
}

TEST(PartialSums, AreOfTheLargerDirection) {
  PartialSums grows, ends;
  for (const double term : {4.0, 1.0, -5.0}) grows.add(term);  // 4, 5, 0; from the end -5, -4, 0
  EXPECT_DOUBLE_EQ(grows.size(), std::sqrt((16 + 25) / 3.0 + 42 / 6.0));
  for (const double term : {1.0, 1.5, 2.0}) ends.add(term);  // 1, 2.5, 4.5; from the end 2, 3.5, 4.5
  EXPECT_DOUBLE_EQ(ends.size(), std::sqrt((4 + 12.25 + 20.25) / 3 + 7.25 / 6));
}

TEST(PartialSums, EqualTermsRoundAlike) {
  PartialSums equal, different;
  for (int i = 0; i < 100; ++i) equal.add(1), different.add(1 + 1e-9 * i);
  EXPECT_NEAR(equal.size() / different.size(), std::sqrt(100 / 25.0), 1e-6);
}

/// The largest error of serial sums in fp32 over what the bound grants them, for sums of `n` terms from term(i).
template <class Term>
double worst_serial_sum(int n, const Term& term) {
  double worst = 0;
  for (int trial = 0; trial < 200; ++trial) {
    PartialSums sums;
    float forwards = 0, backwards = 0;
    for (int i = 0; i < n; ++i) {
      const float t = term(trial * n + i);
      sums.add(t), forwards += t;
    }
    for (int i = n - 1; i >= 0; --i) backwards += term(trial * n + i);
    const double bound = 6 * std::sqrt(n) * 0x1p-24 * sums.size() / std::sqrt(3);
    worst = std::max({worst, std::abs(forwards - sums.sum()) / bound, std::abs(backwards - sums.sum()) / bound});
  }
  return worst;
}

TEST(PartialSums, BoundSerialSumsWithoutMuchRoom) {
  std::mt19937 random(7);
  std::vector<float> normals(200 * 1024), uniforms(normals.size());
  for (float& x : normals) x = static_cast<float>(random() * 0x1p-31 - 1);
  for (float& x : uniforms) x = static_cast<float>(random() * 0x1p-32);
  for (const int n : {16, 1024}) {
    const double even = worst_serial_sum(n, [&](int i) { return normals[static_cast<size_t>(i)]; }),
                 growing = worst_serial_sum(n, [&](int i) { return uniforms[static_cast<size_t>(i)]; });
    EXPECT_LT(even, 1) << n;
    EXPECT_GT(even, 0.1) << n;
    EXPECT_LT(growing, 1) << n;
    EXPECT_GT(growing, 0.1) << n;
    // All terms of a sum the same: their roundings add up.
    const double equal = worst_serial_sum(n, [&](int i) { return uniforms[static_cast<size_t>(i / n)]; });
    EXPECT_LT(equal, 1) << n;
  }
}

TEST(TokenMean, WhatTokensShareIsTheRootOfSquaresOverGroups) {
  TokenMean one, four;
  one.add({1, 0, 0}, 1, 0), four.add({1, 0, 0}, 1, 0);
  const double before = TokenMean(one).over(1).rounding;
  one.add_shared(8);
  for (int group = 0; group < 64; ++group) four.add_shared(8);
  EXPECT_DOUBLE_EQ(one.over(1).rounding, before + 8);  // at its worst
  EXPECT_DOUBLE_EQ(four.over(1).rounding, before + 6 / std::sqrt(3) * 64);
}

TEST(TokenMean, OneSidedErrorsOfTermsOfBothSignsCancel) {
  TokenMean both, same;
  for (int i = 0; i < 4096; ++i) {
    both.add({i % 2 == 0 ? 1.0 + i * 1e-6 : -1.0 - i * 1e-6, 0, 64}, 1, i);
    same.add({1.0 + i * 1e-6, 0, 64}, 1, i);
  }
  EXPECT_GT(same.over(1).rounding - both.over(1).rounding, 0.9 * 4096 * 64 / 8);
}

TEST(TokenMean, NaNTokensMakeItNaNAndEnd) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  TokenMean mean;
  for (const double logp : {kNaN, -1.0, kNaN, -2.0}) mean.add({logp, std::abs(logp), 1}, 0.25, logp);
  EXPECT_TRUE(std::isnan(mean.over(1).value));
}

}  // namespace
}  // namespace checkop
