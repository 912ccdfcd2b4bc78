// SPDX-License-Identifier: Apache-2.0
// Compares an output with its gold under the contract's gates. Pure: runs nothing and prints nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "contract/contract.hpp"
#include "judge/bound.hpp"
#include "judge/error_map.hpp"
#include "judge/error_quantiles.hpp"
#include "judge/failures.hpp"
#include "judge/policy_metrics.hpp"
#include "judge/trivial.hpp"
#include "operator/operator.hpp"

namespace checkop {

struct ElementReport {
  int64_t index = 0;  ///< flat
  double got = 0, gold = 0, error = 0, bound = 0;
  double ratio = 0;       ///< error over bound; infinite if not finite
  std::string_view gate;  ///< the gate with the largest ratio, as to_string(Metric) names it
};

struct GateResult {
  Metric metric = Metric::bound_ratio;
  double limit = 0;     ///< 1 for atol_rtol, whose ratio is error / (atol + rtol*|gold|); 0 for bits
  double achieved = 0;  ///< the largest; non-finite errors count as infinity, so NaNs are never hidden
  double headroom = 0;  ///< limit / achieved; infinity without errors
  double passing = 0;   ///< the smallest limit of four digits that would pass; for atol_rtol, a factor of atol and rtol
  bool holds = true;
  int64_t out_of_bound = 0;   ///< elements, blocks, rows or tokens, depending on the metric
  double atol = 0, rtol = 0;  ///< only for atol_rtol
  std::string source = {};
};

/// A positive `x` rounded up to `digits` significant digits; never below x.
double round_up(double x, int digits);

/// The result of a gate. The caller sets out_of_bound, and `holds` for gates of single elements.
GateResult gate_result(const Gate& gate, double achieved);

/// The result of one identity over the rows of one output; see Residual.
struct IdentityResult {
  std::string identity;
  int64_t rows = 0, out_of_bound = 0;  ///< rows checked, and rows beyond their bound
  double achieved = 0;                 ///< largest |value| over its bound
  int64_t worst_row = -1;
  double value = 0, bound = 0;  ///< of the worst row
};

/// How many of the compared elements have the bits of one order of addition.
struct OrderLikeness {
  std::string order;  ///< as to_string(ModelOrder) names it
  double equal;       ///< share of the elements, 0 to 1
};

/// The result of a bits_of_model gate on one output.
struct ModelComparison {
  std::string arch, order;                            ///< as the contract names them
  int64_t compared = 0, expected = 0, different = 0;  ///< elements
  int64_t first_index = -1;                           ///< flat index of the first different element
  double got = 0, model = 0;                          ///< the values of that element
  uint64_t got_bits = 0, model_bits = 0;              ///< its stored bits
  int64_t rows_tried = 0;                             ///< differing rows on which other orders of addition were tried
  std::vector<OrderLikeness> orders;                  ///< the nearest first; empty if nothing differs
};

struct Comparison {
  int64_t count = 0;                       ///< elements compared
  int64_t expected = 0;                    ///< elements to compare: of all rows, or of the sampled ones
  int64_t total_rows = 0;                  ///< rows of the output's judged_view()
  RowSet rows;                             ///< the rows that the gold computed
  std::vector<IdentityResult> identities;  ///< over all rows; empty unless the contract asks or the gold is sampled
  int64_t out_of_bound = 0;                ///< elements that failed at least one gate
  int64_t nonfinite = 0;                   ///< elements that are NaN or infinite in only one of candidate and gold
  bool gold_is_zero = false;               ///< every gold element is 0, so only a wrong answer would differ
  bool rows_are_equal = false;  ///< the candidate's rows all have the same bits, so swapped rows can't be detected
  std::vector<Trivial>
      would_pass;  ///< trivial wrong answers that all element-wise gates accept; after judge_outputs(), all gates
  std::optional<ElementReport> first, worst;  ///< of the elements out of bound; `worst` also if all pass
  std::optional<ElementReport> first_nonfinite;
  double max_abs = 0, mean_abs = 0;
  double mean_error = 0;  ///< signed: candidate minus gold; NaN if an element is not finite where the gold is
  /// For a bound_ratio gate: errors over their bounds, and the largest error over E that the computation must have
  /// made, apart from storing its result. See PreparedGate::least_computed().
  std::optional<ErrorQuantiles> quantiles;
  double computed = 0;
  double max_rel = 0;    ///< over elements with |gold| > rel_floor
  double rel_floor = 0;  ///< smallest power of two that is at least 1e-3 of the gold's root mean square
  uint64_t max_ulp = 0;  ///< distance in the output's dtype to the gold rounded once
  double rel_l2 = 0;     ///< |got - gold| / |gold| in the 2-norm; infinite if the gold is zero and got is not
  std::optional<PolicyMetrics> policy;   ///< only for outputs of log-probabilities or probability ratios of tokens
  std::optional<ModelComparison> model;  ///< only if the contract has a bits_of_model gate
  std::vector<GateResult> gates;
  ErrorMap map;                      ///< empty without element-wise gates
  std::string diagnosis;             ///< what the failing elements look like; "" if unknown
  std::vector<RecipeGrant> granted;  ///< recipes by which it may be judged, and who grants them
  std::vector<std::string> recipes;  ///< by which the output was judged, because it fails without them; see Recipe
  /// Of an output that fails: the smallest set of recipes, granted or not, by which it would pass; empty: none.
  std::vector<std::string> passes_under;
  /// For an output that fails, by RecipeSearch::every_set: all minimal sets of recipes under which it would pass, the
  /// smallest first.
  std::vector<std::vector<std::string>> every_set;
  /// For an output that fails: with finite numbers in the left-out elements it passes, or would under passes_under.
  bool leaks_left_out = false;
  std::string granted_by;      ///< the shipped contract that grants all that the output needs to pass; "" for none
  bool tried_recipes = false;  ///< whether passes_under was looked for
  /// How many times larger the computation's own errors may get; infinite if storing the gold explains all.
  double computation_headroom() const { return computed > 0 ? 1 / computed : HUGE_VAL; }
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

/// Compares one output with its gold. Gold rows may come in any order from any thread; the result is the same.
class OutputComparison {
 public:
  /// `got` are the output's stored elements, `terms` is the length of the longest sum behind one element.
  /// Only the rows in `rows` must be given.
  OutputComparison(DType dtype, const std::byte* got, MatrixView view, Gates gates, int64_t terms, RowSet rows = {},
                   TokenQuantity tokens = TokenQuantity::none);
  ~OutputComparison();
  OutputComparison(OutputComparison&&) noexcept;

  void add(const GoldRows& block);
  Comparison finish() const;
  FailureSummary failures() const;
  /// The largest error that passes every element-wise gate; negative if one of them compares bits.
  double allowed(double value, double magnitude, double rounding, double spread = 0) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace checkop
