// SPDX-License-Identifier: Apache-2.0
// Code shared by the logprob operators: softmax statistics of a row in FP64, and the propagation of errors in a row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gold_element.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// Error of one exponential in units of u = half an ulp of 1: at most 2 ulp, which is 4u just below a power of two.
/// CUDA's expf errs by 1 ulp, its exp2f by 2, glibc's expf by less than 1.
inline constexpr double kExpUnits = 4;
/// Error of the argument of exp2(x*log2(e)) relative to x: the difference, the product and the constant are rounded.
inline constexpr double kArgumentUnits = 2.25;
/// Error of flushing a subnormal exponential to zero, in units of u = 2^-24: 2^-126/u.
inline constexpr double kFlushUnits = 0x1p-102;
/// The smallest growth, in units of u, that a contract gives to a sum: lambda 6 and one addition. A rounding that can
/// only be expressed as part of a magnitude (see linear_logp.cpp) counts as 1/6 of a growth.
inline constexpr double kLeastGrowth = 6;

/// Error coefficients of logits, like those of GoldRows, and how far rounded logits may be off. nullptr means zeros,
/// for logits that are inputs.
struct LogitErrors {
  const double *magnitude = nullptr, *rounding = nullptr, *slack = nullptr;
};

/// Softmax statistics of a row of logits z[0..V), accumulated term by term in a fixed order.
///   max = max z;  sum = sum exp(z - max);  spread = sum exp(z - max)*|z - max|
///   weighted, rounded = sum exp(z - max)*e, for the coefficients magnitude and rounding of each logit
/// For logits that were rounded:
///   slack = sum exp(z - max)*e,  slack_square = sum (exp(z - max)*e)^2,  e = exp(s) - 1, where a logit may be off by s
struct SoftmaxRow {
  double max = -INFINITY, sum = 0, spread = 0, weighted = 0, rounded = 0, slack = 0, slack_square = 0;

  void add(const double* z, int64_t n, const LogitErrors& errors = {});

  double log_sum() const { return std::log(sum); }
  double lse() const { return max + log_sum(); }
  double mean_spread() const { return spread / sum; }
  double mean_magnitude() const { return weighted / sum; }
  double mean_rounding() const { return rounded / sum; }
  /// Coefficient of u in the error of a computed log-sum-exp, without its chain of additions: the logits have errors,
  /// each argument is rounded, each exponential errs, log errs, and max is added back. After Blanchard, Higham &
  /// Higham, "Accurately computing the log-sum-exp and softmax functions", IMA J. Numer. Anal. 2021.
  double lse_rounding() const {
    return mean_rounding() + kArgumentUnits * mean_spread() + kExpUnits + 2 * std::abs(log_sum()) + std::abs(max) +
           std::abs(lse());
  }
};

/// logp = z - lse for the selected logit z.
inline GoldElement selected_logp(const SoftmaxRow& row, const GoldElement& z) {
  // (z - max) - log(sum), not z - lse: keeps all digits when max is large.
  const double below = z.value - row.max, value = below - row.log_sum();
  return {value, 1 + z.magnitude + row.mean_magnitude(),
          z.rounding + row.lse_rounding() + std::abs(below) + std::abs(value)};
}

/// dz = g*(selected - p), p = exp(z - lse): the upstream gradient g times the derivative of logp with respect to the
/// logit z. The error of p is p times the error of its exponent, for z - lse as well as for z - max with exp divided by
/// the sum. 1 - p and the product with g round once each; a p that is flushed to zero is missing entirely.
class LogitGradient {
 public:
  LogitGradient(const SoftmaxRow& row, double g)
      : max_(row.max), sum_(row.sum), log_sum_(row.log_sum()), g_(g), abs_g_(std::abs(g)) {
    chain_ = 1 + row.mean_magnitude();
    fixed_ = row.lse_rounding() + kExpUnits + 2;
  }

  GoldElement operator()(const GoldElement& z, bool selected) const {
    const double p = std::exp(z.value - max_) / sum_;
    const double value = g_ * ((selected ? 1.0 : 0.0) - p);
    const double last = 2 * std::abs(value) + kFlushUnits * abs_g_;
    if (p == 0) return {value, 0, last};  // p*|exponent| tends to 0; computed it would be 0*inf
    const double share = abs_g_ * p, below = max_ - z.value, exponent = below + log_sum_;
    const double argument = z.rounding + kArgumentUnits * below + std::abs(exponent);
    return {value, share * (z.magnitude + chain_), share * (fixed_ + argument) + last};
  }

 private:
  double max_, sum_, log_sum_, g_, abs_g_, chain_, fixed_;
};

/// The error of a log-sum-exp of rounded logits; see Rounded::slack. For weights w of sum 1, log sum w exp(s) <= sum w
/// (exp(s) - 1), and -log sum w exp(-s) <= sum w s is less.
inline double lse_slack(const ActiveRecipes& recipes, int output, const SoftmaxRow& row) {
  return row.slack == 0 ? 0 : recipes.of_errors(output, row.slack_square, row.slack) / row.sum;
}

/// LogitGradient in a kernel that rounds intermediate values:
///   to rounded logits, each off by `slack`: dz = g*(selected - exp(z - lse)) has their errors
///   to a rounded log-probability: dz = g*(selected - exp(round(z - lse)))
class RoundedLogitGradient {
 public:
  RoundedLogitGradient(const GoldArgs& args, int output, const SoftmaxRow& row, double g, bool rounds_logp)
      : args_(args),
        output_(output),
        row_(row),
        gradient_(row, g),
        g_(g),
        lse_slack_(lse_slack(args.recipes, output, row)),
        rounds_logp_(rounds_logp) {}

  GoldElement operator()(const GoldElement& z, double slack, bool selected) const {
    const double off = slack + lse_slack_;
    if (!rounds_logp_) {
      GoldElement e = gradient_(z, selected);
      e.rounding += std::abs(g_) * std::exp(z.value - row_.max) / row_.sum * args_.recipes.in_units(std::expm1(off));
      return e;
    }
    GoldElement logp = selected_logp(row_, z);
    if (logp.value == -INFINITY) return gradient_(z, selected);
    logp.rounding += args_.recipes.in_units(off);
    const Rounded rounded = args_.recipes.round(output_, logp.value, logp.magnitude, logp.rounding);
    const double p = std::exp(rounded.value), value = g_ * ((selected ? 1.0 : 0.0) - p);
    // exp(-inf) is exactly 0; the size of its argument would make 0 * inf of the error.
    const double of_p = std::isinf(rounded.value) ? 0
                                                  : args_.recipes.in_units(std::expm1(rounded.slack)) + kExpUnits +
                                                        kArgumentUnits * std::abs(rounded.value);
    return {value, 0, std::abs(g_) * (p * of_p + kFlushUnits) + 2 * std::abs(value)};
  }

 private:
  const GoldArgs& args_;
  const int output_;
  const SoftmaxRow& row_;
  const LogitGradient gradient_;
  const double g_, lse_slack_;
  const bool rounds_logp_;
};

/// Decodes row `row` of logits[rows, vocab] into `z`, which has the size of a row, and reduces it.
SoftmaxRow read_row(const Tensor& logits, int64_t row, std::vector<double>& z);

/// Arrays of one thread, reused from row to row: a row of 151936 logits takes 1.2 MB per array, which is slow to map
/// for each row.
struct RowScratch {
  std::vector<double> z, value, magnitude, rounding;

  /// For a row that is left out: sets every result to exactly 0.
  void clear_results() {
    for (auto* array : {&value, &magnitude, &rounding}) std::fill(array->begin(), array->end(), 0.0);
  }
};
RowScratch& row_scratch(int64_t vocab);

/// Reads the ids of a per-row integer input. Throws InputError that names the first id outside [0, vocab), unless the
/// id is `except`.
std::vector<int64_t> read_ids(const Tensor& ids, int64_t vocab, std::optional<int64_t> except = {});

}  // namespace checkop
