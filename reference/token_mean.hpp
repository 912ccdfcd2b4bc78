// SPDX-License-Identifier: Apache-2.0
// The mean of a loss over tokens, and how far it may err.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <vector>

#include "gold_element.hpp"

namespace checkop {

/// Coefficient of u for a sum of n terms whose partial sums are at most 1: a rounding for each addition, or lambda 6
/// standard deviations of them for a chain of 1024 at most, whichever is less.
inline double units_of_sum(double n) { return std::min(n, 6 * std::sqrt(std::min(n, 1024.0))); }

/// Adds weighted terms of tokens, in the order of the batch. The errors of tokens are independent, so those of their
/// sum are the root of the sum of squares, not the sum:
///   magnitude = sqrt(sum_k (sum of w M)^2) + partial
///   rounding  = min(c sqrt(sum_k (sum of w R)^2) + common, sum of w R) + jumps,  c = 6/sqrt(3)
/// M and R are a term's coefficients and w its weight; to R come the roundings of the weight and of the product.
///   k        tokens of one key err alike: those of a sequence with one ratio, or rows of equal logits
///   c        six standard deviations of a rounding that is spread as evenly as a uniform error at least
///   common   what errs to one side: an eighth of R (a quarter of an ulp of a function that is right to two; a
///            constant such as log2(e), rounded once), and two roundings of attributes that all tokens share
///   partial  size of partial sums: the largest from either end, and how far those of an order that is not the batch's
///            stray from these, about the root of the sum of squares
///   jumps    differences between branches that a kernel may take: these have no sign to cancel by
/// Source: Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41 (2019).
class TokenMean {
 public:
  void add(const GoldElement& term, double weight, double key, double jump = 0) {
    const double t = weight * term.value, r = weight * term.rounding + 2 * std::abs(t);
    sum_ += t, squares_ += t * t, least_ = std::min(least_, sum_), most_ = std::max(most_, sum_);
    linear_ += r, common_ += weight * term.rounding / 8 + 2 * std::abs(t), jumps_ += weight * jump;
    errors_.push_back({key, weight * term.magnitude, r});
  }

  GoldElement over(double divisor) {
    std::sort(errors_.begin(), errors_.end());
    double of_magnitudes = 0, of_roundings = 0;
    for (size_t i = 0; i < errors_.size();) {
      const double key = errors_[i].key;
      double magnitude = 0, rounding = 0;
      do {  // once at least: a NaN is no key's equal
        magnitude += errors_[i].magnitude, rounding += errors_[i].rounding;
      } while (++i < errors_.size() && errors_[i].key == key);
      of_magnitudes += magnitude * magnitude, of_roundings += rounding * rounding;
    }
    const double partial =
        std::max({most_, -least_, most_ - sum_, sum_ - least_}) + std::sqrt(squares_);  // from either end
    const double rounding = std::min(6 / std::sqrt(3.0) * std::sqrt(of_roundings) + common_, linear_) + jumps_;
    return {sum_ / divisor, (std::sqrt(of_magnitudes) + partial) / divisor, (rounding + 2 * std::abs(sum_)) / divisor};
  }

 private:
  struct Error {
    double key, magnitude, rounding;
    bool operator<(const Error& other) const {  // orders NaN, too
      const auto by_key = std::strong_order(key, other.key);
      return by_key != 0 ? by_key < 0 : std::strong_order(rounding, other.rounding) < 0;
    }
  };
  std::vector<Error> errors_;
  double sum_ = 0, squares_ = 0, least_ = 0, most_ = 0, linear_ = 0, common_ = 0, jumps_ = 0;
};

}  // namespace checkop
