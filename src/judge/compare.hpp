// SPDX-License-Identifier: Apache-2.0
// Gold x got x gates -> Comparison. Pure: nothing is run and nothing is printed here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "contract/contract.hpp"
#include "judge/bound.hpp"
#include "judge/error_map.hpp"
#include "judge/failures.hpp"
#include "judge/policy_metrics.hpp"
#include "judge/trivial.hpp"
#include "operator/operator.hpp"

namespace checkop {

struct ElementReport {
  int64_t index = 0;  ///< flat
  double got = 0, gold = 0, error = 0, bound = 0;
  double ratio = 0;       ///< error over bound; infinite when not finite
  std::string_view gate;  ///< the gate that judged it worst, by to_string(Metric)
};

struct GateResult {
  Metric metric = Metric::bound_ratio;
  double limit = 0;     ///< atol_rtol: 1 (of the ratio of error to atol + rtol*|gold|); bits: 0
  double achieved = 0;  ///< the largest; NaN never hides: non-finite errors count as infinity
  double headroom = 0;  ///< limit / achieved; infinity when nothing was off
  double passing = 0;   ///< the smallest limit of four digits that would pass; of atol_rtol, a factor of both
  bool holds = true;
  int64_t out_of_bound = 0;   ///< elements, blocks, rows or tokens, by the metric
  double atol = 0, rtol = 0;  ///< atol_rtol
  std::string source = {};
};

/// A positive `x` rounded up to so many significant digits; never below x.
double round_up(double x, int digits);

/// A gate's result, but for what only some have: out_of_bound, and whether it holds where single elements decide.
GateResult gate_result(const Gate& gate, double achieved);

/// What an identity said of the rows of one output; see Residual.
struct IdentityResult {
  std::string identity;
  int64_t rows = 0, out_of_bound = 0;  ///< rows looked at, and those beyond their bound
  double achieved = 0;                 ///< largest |value| over its bound
  int64_t worst_row = -1;
  double value = 0, bound = 0;  ///< of the worst row
};

/// How much of what was looked at has the bits that an order of addition gives.
struct OrderLikeness {
  std::string order;  ///< by to_string(ModelOrder)
  double equal;       ///< share of the elements
};

/// What a bits_of_model gate saw of one output.
struct ModelComparison {
  std::string arch, order;                            ///< that the contract names
  int64_t compared = 0, expected = 0, different = 0;  ///< elements
  int64_t first_index = -1;                           ///< the first that differs, flat
  double got = 0, model = 0;                          ///< its values
  uint64_t got_bits = 0, model_bits = 0;              ///< as stored
  int64_t rows_tried = 0;                             ///< rows with differences on which the orders were tried
  std::vector<OrderLikeness> orders;                  ///< the nearest first; empty when nothing differs
};

struct Comparison {
  int64_t count = 0;                       ///< elements compared
  int64_t expected = 0;                    ///< elements that were to be compared: of all rows, or of the sampled ones
  int64_t total_rows = 0;                  ///< rows of the output as it is judged
  RowSet rows;                             ///< those that the gold computed
  std::vector<IdentityResult> identities;  ///< on all rows; where the contract asks, or the gold did not compute all
  int64_t out_of_bound = 0;                ///< elements that failed at least one gate
  int64_t nonfinite = 0;      ///< NaN or infinity in the candidate where the gold has none, or the other way round
  bool gold_is_zero = false;  ///< every gold element is 0: only a wrong answer could tell anything
  bool rows_are_equal =
      false;  ///< the candidate gave several rows the same bits: none shows whether it is in its place
  std::vector<Trivial>
      would_pass;  ///< wrong answers that meet every gate of single elements, or all of a finished case
  std::optional<ElementReport> first, worst;  ///< of those out of bound; worst also when all pass
  std::optional<ElementReport> first_nonfinite;
  double max_abs = 0, mean_abs = 0;
  double max_rel = 0;    ///< over elements with |gold| > rel_floor
  double rel_floor = 0;  ///< power of two next above 1e-3 of the root mean square of the gold
  uint64_t max_ulp = 0;  ///< distance in the output's dtype to the gold rounded once
  double rel_l2 = 0;     ///< |got - gold| / |gold| in the 2-norm; infinity for a zero gold that is missed
  std::optional<PolicyMetrics> policy;   ///< of outputs that hold log-probabilities or ratios of tokens
  std::optional<ModelComparison> model;  ///< where the contract asks for the bits of a model
  std::vector<GateResult> gates;
  ErrorMap map;           ///< empty unless a gate is of single elements
  std::string diagnosis;  ///< what the failing elements look like, when that can be told; "" otherwise
  bool gates_hold() const {
    return std::all_of(gates.begin(), gates.end(), [](const auto& g) { return g.holds; });
  }
  bool identities_hold() const {
    return std::none_of(identities.begin(), identities.end(), [](const auto& i) { return i.out_of_bound > 0; });
  }
  bool passed() const {
    return count > 0 && count == expected && out_of_bound == 0 && gates_hold() && identities_hold();
  }
};

/// Compares one output, fed by gold rows in any order from any thread; the result does not depend on either.
class OutputComparison {
 public:
  /// `got` is the output's stored elements, `terms` the longest sum that leads to one element.
  /// Rows that are not in `rows` need not be given.
  OutputComparison(DType dtype, const std::byte* got, MatrixView view, Gates gates, int64_t terms, RowSet rows = {},
                   TokenQuantity tokens = TokenQuantity::none);
  ~OutputComparison();
  OutputComparison(OutputComparison&&) noexcept;

  void add(const GoldRows& block);
  Comparison finish() const;
  FailureSummary failures() const;
  /// The largest error that every gate of single elements grants; negative where one of them asks for equal bits.
  double allowed(double value, double magnitude, double rounding) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace checkop
