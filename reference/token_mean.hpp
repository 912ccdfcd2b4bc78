// SPDX-License-Identifier: Apache-2.0
// The mean of a loss over tokens, and how far it may err.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <vector>

#include "gold_element.hpp"

namespace checkop {

/// Coefficient of u for a sum of n terms whose partial sums are at most 1: one rounding for each addition, or 6
/// standard deviations (lambda) of the roundings of a chain of at most 1024, whichever is less.
inline double units_of_sum(double n) { return std::min(n, 6 * std::sqrt(std::min(n, 1024.0))); }

/// A sum, and how large its partial sums are: the root of the mean of their squares. An addition errs by u times the
/// partial sum at most.
class PartialSums {
 public:
  void add(double term) {
    if (term == 0) return;  // exact
    sum_ += term, squares_ += term * term, of_sums_ += sum_, of_sum_squares_ += sum_ * sum_;
    terms_.push_back(term);
  }

  double sum() const { return sum_; }

  /// Partial sums in the order of the terms or in reverse, whichever are larger. In an order unrelated to the terms
  /// their mean square is sum^2/3 + squares/6, where squares/6 measures how far they stray from steady growth.
  double size() {
    if (terms_.empty()) return 0;
    const auto n = static_cast<double>(terms_.size());
    const double of_suffixes = (n - 1) * sum_ * sum_ - 2 * sum_ * (of_sums_ - sum_) + of_sum_squares_;
    const double largest = std::max({of_sum_squares_ / n, of_suffixes / n, sum_ * sum_ / 3});
    return std::sqrt((largest + squares_ / 6) * repetition());
  }

 private:
  /// Adding equal terms to sums of one binade rounds equally each time. So m such roundings may add up, to three
  /// eighths of m u times the sum; that is a fifth of m times 6/sqrt(3) standard deviations of one rounding.
  double repetition() {
    std::sort(terms_.begin(), terms_.end(), [](double a, double b) { return std::strong_order(a, b) < 0; });
    const auto n = static_cast<double>(terms_.size());
    double all = 0;
    for (size_t i = 0; i < terms_.size();) {
      const size_t first = i++;
      while (i < terms_.size() && terms_[i] == terms_[first]) ++i;
      const auto m = static_cast<double>(i - first);
      all += std::max(m, m * m / 25 * std::min(1.0, 1024 / n));
    }
    return all / n;
  }

  std::vector<double> terms_;
  double sum_ = 0, squares_ = 0, of_sums_ = 0, of_sum_squares_ = 0;
};

/// Adds weighted terms of tokens, in the order of the batch. The errors of tokens are independent, so those of their
/// sum are the root of the sum of squares, not the sum:
///   magnitude = (sqrt(sum_k (sum of w M)^2) + size of partial sums)/sqrt(3)
///   rounding  = min(c sqrt(sum_k (sum of w R)^2) + common, sum of w R) + shared + jumps,  c = 6/sqrt(3)
/// M and R are a term's coefficients and w its weight; to R come the roundings of the weight and of the product.
///   k        tokens of one key err alike: those of a sequence with one ratio, or rows of equal logits
///   sqrt(3)  a contract's growth is lambda times the largest error of one rounding, whose standard deviation is
///            1/sqrt(3) of it at most: roundings are spread as evenly as a uniform error at least
///   common   what errs to one side. A function that is right to two ulp leans by a quarter: an eighth of R, in step
///            with the term, so that terms of both signs cancel. A constant such as log2(e) leans with the argument: a
///            sixty-fourth of R. And roundings of attributes, such as the edge of a clip, which tokens have in common
///   shared   what several tokens take from one value, such as a group's advantages: the root of the sum of squares
///   jumps    differences between branches that a kernel may take: these have no sign to cancel by
/// Source: Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41 (2019).
class TokenMean {
 public:
  /// `attributes`: roundings of attributes that the term is made of, in units of u.
  void add(const GoldElement& term, double weight, double key, double attributes = 0, double jump = 0) {
    const double t = weight * term.value, r = weight * term.rounding + 2 * std::abs(t);
    sums_.add(t), linear_ += r, jumps_ += weight * jump;
    in_step_ += std::copysign(weight * term.rounding, t) / 8;
    common_ += weight * (term.rounding / 64 + attributes);
    errors_.push_back({key, weight * term.magnitude, r});
  }

  /// Adds the error of a value that several tokens take.
  void add_shared(double error) { shared_squares_ += error * error, shared_ += error; }

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
    const double magnitude = (std::sqrt(of_magnitudes) + sums_.size()) / std::sqrt(3.0);
    const double common = std::abs(in_step_) + common_;
    const double rounding = std::min(kDeviations * std::sqrt(of_roundings) + common, linear_) +
                            std::min(kDeviations * std::sqrt(shared_squares_), shared_) + jumps_ +
                            2 * std::abs(sums_.sum());
    return {sums_.sum() / divisor, magnitude / divisor, rounding / divisor};
  }

 private:
  static constexpr double kDeviations = 3.4641016151377544;  ///< 6/sqrt(3)

  struct Error {
    double key, magnitude, rounding;
    bool operator<(const Error& other) const {  // orders NaN, too
      const auto by_key = std::strong_order(key, other.key);
      return by_key != 0 ? by_key < 0 : std::strong_order(rounding, other.rounding) < 0;
    }
  };
  PartialSums sums_;
  std::vector<Error> errors_;
  double linear_ = 0, in_step_ = 0, common_ = 0, shared_squares_ = 0, shared_ = 0, jumps_ = 0;
};

}  // namespace checkop
