// SPDX-License-Identifier: Apache-2.0
// Code shared by the operators that standardise rewards: groups of completions, mean and variance of a set.
#pragma once

#include <cmath>
#include <vector>

#include "gold_element.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// First completion of every group, then the number of completions: `boundaries`, or if that is nullptr, groups of
/// `samples`. Throws InputError unless the boundaries partition the batch.
std::vector<int64_t> read_groups(const Tensor* boundaries, int64_t batch, double samples);

/// Throws InputError unless the dimensions `batch` and `group_bounds` (with group_boundaries) or `samples` (without)
/// give groups; without group_boundaries each has at least 2 completions.
void validate_groups(const CaseSizes& sizes, double samples);

/// Plants group boundaries, if they are an input, with groups that grow towards the end of the batch.
void plant_boundaries(const FillArgs& args, int64_t batch);

/// Mean and variance of a set of numbers, taken relative to the first one: otherwise the mean of equal numbers could be
/// an ulp off, which a small divisor would magnify.
struct Moments {
  double first = 0, mean = 0, size = 0, variance = 0;  ///< mean: of the distances from `first`; size: mean |x|
  bool equal = true;                                   ///< whether all numbers are
  std::vector<double> values = {};

  void add(double x);
  /// Computes the moments; the variance is divided by n - 1 if `unbiased`, else by n.
  void finish(bool unbiased);
  double whole_mean() const { return first + mean; }
  double away(double x) const { return x - first - mean; }
  /// x minus the mean. With E(mean) = growth*mean|x| + u|mean|.
  GoldElement centred(double x) const;
  /// a = away(x)/s. E(var) = (growth + 4u)*var; the mean's error has no first-order effect. The share `of_variance` of
  /// the relative error of var reaches s:
  ///   E(a) = (E(mean) + u|away|)/s + |a|*(of_variance*E(var)/var + 2u)
  GoldElement standardised(double x, double s, double of_variance) const;
};

}  // namespace checkop
