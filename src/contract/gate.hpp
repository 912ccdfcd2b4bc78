// SPDX-License-Identifier: Apache-2.0
// The conditions that a contract can put on an output: metrics, their numbers, and the keys that set them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "operator/model.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// Notation: c_i is an element of the candidate's output as stored, y_i of the gold, r(y) the gold rounded once to the
/// output's dtype, E_i the allowed error of the computation and B_i the whole bound, both from element_bound(). A gate
/// holds only if achieved <= limit, so a NaN fails.
enum class Metric : uint8_t {
  // Metrics of every element: the worst one decides.
  bound_ratio,  ///< |c - y| / B; see element_bound()
  atol_rtol,    ///< |c - y| / (atol + rtol*|y|), at most 1; with `either`, over the larger of atol and rtol*|y|
  bits,         ///< whether stored bits differ from those of r(y)
  ulp,          ///< distance of c and r(y) in numbers of the output's dtype
  // Metrics of the whole output: errors that are too frequent, too large together, or biased to one side.
  rel_l2,           ///< |c - y|_2 / |y|_2
  cosine,           ///< 1 - 2<c, y>/(|c|^2 + |y|^2), which is |c - y|^2/(|c|^2 + |y|^2)
  block_rel_l2,     ///< rel_l2 of every block of rows x columns, edges from 0; the worst block decides
  max_vs_baseline,  ///< max|c - y| / (max|r(y) - y| + max|r(r(y + 0.3) - 0.3) - y|), as in FlashAttention's tests
  vs_baseline,      ///< rms(c - y) / rms(r(y) - y): relative to an ideal candidate, which errs only by storing
  vs_reference,     ///< rms and max of |c - y| over those of |reference - y| + |r(y) - y|/2; of a gold in a file only
  bound_rms,        ///< rms of |c - y| / B
  noise_rms,        ///< rms of the errors over the standard deviation that independent roundings have
  bias_t,           ///< bias of the errors to one side; see bias_statistic()
  identities,       ///< the operator's identities on every row, relative to their bounds; see Residual
  bits_of_model,    ///< elements whose stored bits differ from Pass::model; on the modelled architecture only
  // Metrics of outputs with one log-probability or probability ratio per row: see PolicyMetrics.
  max_abs_dlogp,
  k3_mean,
  k3_max,
  ratio_deviation,
  clip_flips,
};
std::string_view to_string(Metric metric);
std::span<const Metric> all_metrics();
bool is_elementwise(Metric metric);
bool is_of_bits(Metric metric);  ///< bits and bits_of_model, which have no adjustable limit

/// The quantity that an output holds per row, for the metrics of tokens.
enum class TokenQuantity : uint8_t { none, logp, ratio };
/// logp or ratio for outputs of this name with numerics logprob. Gradients have other names.
TokenQuantity token_quantity(const OutputSpec& output);
bool is_of_tokens(Metric metric);

/// One condition on an output.
struct Gate {
  Metric metric = Metric::bound_ratio;
  double limit = 1.0;         ///< all metrics except atol_rtol, bits and bits_of_model
  double lambda = 6.0;        ///< bound_ratio: standard deviations allowed to a sum of independent roundings
  int64_t step = 1;           ///< bound_ratio: terms added per rounding (16 for a tensor core block)
  int64_t max_chain = 0;      ///< bound_ratio: cap on the chain of additions, for sums of any length; 0: no cap
  double bias_ulps = 0;       ///< bound_ratio: signed error per step in units of u*magnitude (tensor cores truncate)
  double atol = 0, rtol = 0;  ///< atol_rtol
  int64_t either = 0;         ///< atol_rtol: 1: within atol or within rtol*|y|, in place of their sum
  int64_t rows = 0, columns = 0;  ///< block_rel_l2: size of a block
  double one_sided = 0;           ///< bias_t: share of growth*magnitude that may be one-sided
  double clip_eps = 0.2;          ///< clip_flips: the ratio is clipped to [1 - eps, 1 + eps]
  int64_t arch = 0;               ///< bits_of_model: index in kModelledArchs
  int64_t block = 0, order = 0;   ///< bits_of_model: see model_order()
  std::string source = {};        ///< "contracts/default.json: rules[3].gates[0]", then " + overlays[0]" if it applied
};

/// The direction in which a number accepts more candidates.
enum class Looser : uint8_t {
  larger,
  larger_or_zero,  ///< larger, or 0, which means no cap
  smaller,
  any,  ///< no order: either direction may accept more
};

/// A key of a contract file that sets a number of a metric.
struct GateKey {
  std::string_view name;
  double Gate::*real;      ///< or nullptr
  int64_t Gate::*integer;  ///< or nullptr
  double least;
  bool required;  ///< tolerances must be stated; hardware properties have defaults
  Looser looser;
  /// Words that stand for the integers 0, 1, ... in the file; empty: numbers.
  std::span<const std::string_view> words = {};

  double value_in(const Gate& gate) const { return real != nullptr ? gate.*real : static_cast<double>(gate.*integer); }
  std::string text_in(const Gate& gate) const;  ///< "0.25", "ascending"
};
/// Whether `to` instead of `from` accepts something that `from` rejects, for any other numbers.
bool loosens(const GateKey& key, double from, double to);

std::span<const GateKey> keys_of(Metric metric);

/// Order and architecture of a bits_of_model gate.
ModelOrder model_order(const Gate& gate);
const ModelledArch& modelled_arch(const Gate& gate);

}  // namespace checkop
