// SPDX-License-Identifier: Apache-2.0
// The entropy of the softmax of a row, and its gradient, with their errors.
#pragma once

#include <cmath>
#include <span>

#include "gold_element.hpp"
#include "logit_transform.hpp"
#include "softmax.hpp"

namespace checkop {

/// With b = max - z >= 0, p = exp(-b)/sum, of the transformed logits z:
///   entropy = L + M,  L = log sum exp(-b),  M = sum p b        its derivative with respect to z is p (b - M)
/// Both sums have positive terms. A term exp(-b) errs by e_b = 2.25 b + kExpUnits, relative and in units of u. Relative
/// errors e of the terms move L by sum p e and M by sum p (b - M) e; b itself errs as z does.
class EntropyRow {
 public:
  EntropyRow() = default;
  /// `softmax` has the whole row; then add() must get the whole row, too.
  explicit EntropyRow(const SoftmaxRow& softmax) : softmax_(softmax), mean_(softmax.mean_spread()) {}

  void add(std::span<const TransformedLogit> logits) {
    for (const TransformedLogit& each : logits) {
      const double b = softmax_.max - each.z.value, p = probability(b);
      if (p == 0) continue;  // also keeps inf*0 out of the sums
      const double share = p * std::abs(b - mean_);
      mean_errors_ += share * (kArgumentUnits * b + kExpUnits) + 2 * p * b;
      off_mean_ += share * each.z.rounding;
      chain_off_mean_ += share * each.z.magnitude;
    }
  }

  /// L has one chain of additions, M has two: the sum of p b, and the sum that p is divided by. Then come the
  /// logarithm, the division and the addition.
  GoldElement entropy() const {
    const double log_sum = softmax_.log_sum(), value = log_sum + mean_;
    const double of_terms = kArgumentUnits * mean_ + kExpUnits;
    return {value, 1 + 2 * mean_ + chain_off_mean_,
            of_terms + mean_errors_ + off_mean_ + of_large_logits() + 2 * std::abs(log_sum) + mean_ + std::abs(value)};
  }

  /// The part of entropy()'s magnitude that comes from the logits.
  double magnitude_of_logits() const { return chain_off_mean_; }

  /// The derivative with respect to the transformed logit. The error of p is that of LogitGradient. The mean M has the
  /// errors of its two chains and of its terms. b - M has the error of M, the roundings of b and of the difference, and
  /// the errors of the logits: d(b - M) = -dz + sum p dz + sum p (b - M) dz.
  GoldElement gradient(const TransformedLogit& logit) const {
    const double b = softmax_.max - logit.z.value, p = probability(b);
    if (!std::isfinite(b)) return {0, 0, 0};  // a logit of -inf
    const double away = b - mean_, size = std::abs(away), value = p * away;
    const double of_p = softmax_.lse_rounding() + kExpUnits + 2 + kArgumentUnits * b +
                        std::abs(b + softmax_.log_sum()) + logit.z.rounding;
    const double of_away = mean_errors_ + off_mean_ + mean_ + of_large_logits() + logit.z.rounding +
                           softmax_.mean_rounding() + 2 * (b + mean_);
    const double chain = logit.z.magnitude + softmax_.mean_magnitude();
    return {value, p * (size * (1 + chain) + 2 * mean_ + chain + chain_off_mean_),
            p * (size * of_p + of_away) + 3 * std::abs(value) + kFlushUnits * size};
  }

 private:
  double probability(double b) const { return std::exp(-b) / softmax_.sum; }
  /// Roundings of a kernel that takes the mean of z and log-sum-exp, both as large as the logits are, for L and M.
  double of_large_logits() const { return 3 * std::abs(softmax_.max) + std::abs(softmax_.lse()) + 2 * mean_; }

  SoftmaxRow softmax_;
  double mean_ = 0;            ///< M
  double mean_errors_ = 0;     ///< sum p |b - M| e_b, and the roundings of b and of the product p b
  double off_mean_ = 0;        ///< sum p |b - M| times the rounding of z
  double chain_off_mean_ = 0;  ///< the same of its magnitude
};

}  // namespace checkop
