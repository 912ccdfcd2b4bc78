// SPDX-License-Identifier: Apache-2.0
// Gold x got x gates -> Comparison. Pure: nothing is run and nothing is printed here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "contract.hpp"
#include "operator.hpp"

namespace checkop {

struct ElementReport {
  int64_t index = 0;  ///< flat
  double got = 0, gold = 0, error = 0, bound = 0;
  double ratio = 0;       ///< error over bound; infinite when not finite
  std::string_view gate;  ///< the gate that judged it worst, by to_string(Metric)
};

struct GateResult {
  Metric metric = Metric::bound_ratio;
  double limit = 0;     ///< bound_ratio: of the ratio; atol_rtol: 1 (ratio of error to atol + rtol*|gold|); bits: 0
  double achieved = 0;  ///< the largest; NaN never hides: non-finite errors count as infinity
  double headroom = 0;  ///< limit / achieved; infinity when nothing was off
  int64_t out_of_bound = 0;
  double atol = 0, rtol = 0;  ///< atol_rtol
  std::string source;
};

struct Comparison {
  int64_t count = 0;              ///< elements compared
  int64_t expected = 0;           ///< elements that the output has
  int64_t out_of_bound = 0;       ///< elements that failed at least one gate
  int64_t nonfinite = 0;          ///< NaN or infinity in the candidate where the gold has none, or the other way round
  bool gold_is_zero = false;      ///< every gold element is 0: only a wrong answer could tell anything
  bool zeros_would_pass = false;  ///< an answer of all zeros meets every gate although the gold is not all zero
  std::optional<ElementReport> first, worst;  ///< of those out of bound; worst also when all pass
  std::optional<ElementReport> first_nonfinite;
  double max_abs = 0, mean_abs = 0;
  double max_rel = 0;    ///< over elements with |gold| > rel_floor
  double rel_floor = 0;  ///< power of two next above 1e-3 of the root mean square of the gold
  uint64_t max_ulp = 0;  ///< distance in the output's dtype to the gold rounded once
  double rel_l2 = 0;     ///< |got - gold| / |gold| in the 2-norm; infinity for a zero gold that is missed
  std::vector<GateResult> gates;
  bool passed() const { return count > 0 && count == expected && out_of_bound == 0; }
};

/// The bound of one element under a bound_ratio gate, before `limit`:
///   E = (growth + bias_ulps*h*u)*magnitude + u*rounding;   bound = E + half an ulp of `out` at |value| + E
/// u is the unit roundoff of the arithmetic: fp32, or fp64 for fp64 outputs.
double element_bound(const Gate& gate, DType out, int64_t terms, double value, double magnitude, double rounding);

/// Compares one output, fed by gold rows in any order from any thread; the result does not depend on either.
class OutputComparison {
 public:
  /// `got` is the output's stored elements, `terms` the longest sum that leads to one element.
  OutputComparison(DType dtype, const std::byte* got, MatrixView view, Gates gates, int64_t terms);
  ~OutputComparison();
  OutputComparison(OutputComparison&&) noexcept;

  void add(const GoldRows& block);
  Comparison finish() const;

 private:
  struct RowSums;
  struct State;
  std::unique_ptr<State> state_;
};

/// Bits of two runs or of a row in two batches.
struct BitDifference {
  int64_t compared = 0, different = 0;
  int64_t first_index = -1;  ///< flat, in `a`
  uint64_t a_bits = 0, b_bits = 0;
};
BitDifference compare_bits(DType dtype, const std::byte* a, const std::byte* b, int64_t count);

}  // namespace checkop
