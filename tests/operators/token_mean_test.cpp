// SPDX-License-Identifier: Apache-2.0
// token_mean: whose errors add up, and an end where a log-probability is NaN.
#include "token_mean.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace checkop {
namespace {

TEST(TokenMean, TokensOfOneKeyErrTogetherAndOthersApart) {
  TokenMean same, apart;
  for (int i = 0; i < 4; ++i) {
    const GoldElement term{0, 1, 0};
    same.add(term, 1, 7);
    apart.add(term, 1, i);
  }
  EXPECT_DOUBLE_EQ(same.over(1).magnitude, 4);
  EXPECT_DOUBLE_EQ(apart.over(1).magnitude, 2);
}

TEST(TokenMean, NaNTokensMakeItNaNAndEnd) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  TokenMean mean;
  for (const double logp : {kNaN, -1.0, kNaN, -2.0}) mean.add({logp, std::abs(logp), 1}, 0.25, logp);
  EXPECT_TRUE(std::isnan(mean.over(1).value));
}

}  // namespace
}  // namespace checkop
