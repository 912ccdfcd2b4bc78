// SPDX-License-Identifier: Apache-2.0
// For tests of verdicts: the result of a check in which nothing is wrong.
#pragma once

#include <cmath>
#include <vector>

#include "judge/verdict.hpp"
#include "support/gold_helper.hpp"

namespace checkop {

/// A check of logp forward with 2x3 rows without findings, for tests to modify.
struct CleanResult {
  Case c = gold_case("logp", "forward", DType::f32, {{"batch", 2}, {"seq", 3}, {"vocab", 7}});
  RunResult run;
  std::vector<Comparison> comparisons{1};
  std::vector<Demands> demands{1};
  RunChecks checks;
  bool accuracy = true;

  CleanResult() {
    run.status = RunStatus::ok;
    run.outputs.resize(1);
    run.outputs[0].repeat.compared = 6;
    comparisons[0].count = comparisons[0].expected = 6;
  }
  void out_of_bound() {
    comparisons[0].out_of_bound = 2;
    comparisons[0].worst = ElementReport{4, -1.5, -1.25, 0.25, 0.125, 2, "bound_ratio"};
  }
  /// `count` elements that are not finite, of `all` out of bound.
  void not_finite(int64_t count, int64_t all) {
    comparisons[0].out_of_bound = all;
    comparisons[0].nonfinite = count;
    comparisons[0].first_nonfinite = comparisons[0].worst =
        ElementReport{0, NAN, 1, INFINITY, 0.1, INFINITY, "bound_ratio"};
  }
  Judgment judged(const std::vector<KnownFailure>& known = {}) const {
    return judge(c, run, comparisons, demands, checks, accuracy, known);
  }
};

}  // namespace checkop
