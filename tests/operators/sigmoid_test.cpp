// SPDX-License-Identifier: Apache-2.0
// The error bounds of silu and swiglu: they hold for the naive fp32 formulas, and not for much worse ones.
#include <gtest/gtest.h>

#include "sigmoid.hpp"

namespace checkop::sigmoid_test {
namespace {

constexpr double kUnit = 0x1p-24, kTiny = 0x1p-126;

float naive_sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
/// exp by a rounded product with log2(e), as special-function units compute it.
float scaled_sigmoid(float x) { return 1.0f / (1.0f + std::exp2(-x * 1.44269504f)); }

/// Largest error of result(x) over its bound, the output's own rounding included, over [-100, 100].
template <class Result, class Gold>
double worst_ratio(Result result, Gold gold) {
  double worst = 0;
  for (int i = -100'000; i <= 100'000; ++i) {
    const float x = static_cast<float>(i) * 1e-3f;
    const GoldElement e = gold(static_cast<double>(x));
    const double error = std::abs(static_cast<double>(result(x)) - e.value);
    const double ratio = error / (kUnit * (e.rounding + std::abs(e.value)) + kTiny);
    if (!(ratio <= worst)) worst = ratio;  // negated so that a NaN counts
  }
  return worst;
}

TEST(SigmoidBound, HoldsForNaiveFp32) {
  const auto silu = [](double x) { return scaled_silu(1, x, 1); };
  const auto slope = [](double x) { return scaled_silu_derivative(1, x, 2); };
  for (const auto sigmoid : {naive_sigmoid, scaled_sigmoid}) {
    const double forward = worst_ratio([&](float x) { return x * sigmoid(x); }, silu);
    const double backward = worst_ratio(
        [&](float x) {
          const float s = sigmoid(x);
          return s * (1.0f + x * (1.0f - s));
        },
        slope);
    const double other = worst_ratio(
        [&](float x) {
          const float s = sigmoid(x), y = x * s;
          return s + y * (1.0f - s);
        },
        slope);
    for (const double ratio : {forward, backward, other}) {
      EXPECT_LE(ratio, 1.0);
      EXPECT_GE(ratio, 0.1);  // a bound that is never approached proves little
    }
  }
}

TEST(SigmoidBound, RejectsALogisticFunctionFromTanh) {
  // 0.5 + 0.5 tanh(x/2) loses all digits if x is far below zero.
  const double ratio = worst_ratio([](float x) { return x * (0.5f + 0.5f * std::tanh(0.5f * x)); },
                                   [](double x) { return scaled_silu(1, x, 1); });
  EXPECT_GT(ratio, 100.0);
}

TEST(SigmoidBound, IsFiniteAtTheEndsOfFp32) {
  for (const double x : {-3e38, -65504.0, -1000.0, 0.0, 1000.0, 3e38}) {
    EXPECT_TRUE(std::isfinite(scaled_silu(1, x, 1).rounding)) << x;
    const GoldElement slope = scaled_silu_derivative(1, x, 2);
    EXPECT_TRUE(std::isfinite(slope.value) && std::isfinite(slope.rounding)) << x;
  }
}

}  // namespace
}  // namespace checkop::sigmoid_test
