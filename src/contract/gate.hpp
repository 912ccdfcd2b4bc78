// SPDX-License-Identifier: Apache-2.0
// What a contract can ask of an output: metrics, their numbers, and the keys that set them.
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

/// Notation: c_i an element of the candidate's output as stored, y_i of the gold, r(y) the gold rounded once to the
/// output's dtype, E_i what the computation may err by and B_i the whole bound, both of element_bound(). A metric fails
/// unless achieved <= limit, so a NaN fails.
enum class Metric : uint8_t {
  // Of every element: the worst one decides.
  bound_ratio,  ///< |c - y| / B; see element_bound()
  atol_rtol,    ///< |c - y| / (atol + rtol*|y|), at most 1; with `either`, over the larger of the two
  bits,         ///< stored bits equal those of r(y)
  ulp,          ///< numbers of the output's dtype between c and r(y)
  // Of the output as a whole: errors that are too many, too large together, or all to one side.
  rel_l2,           ///< |c - y|_2 / |y|_2
  cosine,           ///< 1 - 2<c, y>/(|c|^2 + |y|^2), which is |c - y|^2/(|c|^2 + |y|^2)
  block_rel_l2,     ///< rel_l2 of every block of rows x columns, edges from 0; the worst block decides
  max_vs_baseline,  ///< max|c - y| / (max|r(y) - y| + max|r(r(y + 0.3) - 0.3) - y|), as FlashAttention's tests have it
  vs_baseline,      ///< rms(c - y) / rms(r(y) - y): against an ideal candidate, whose only error is to store the result
  bound_rms,        ///< rms of |c - y| / B
  bias_t,           ///< how far errors lean to one side; see bias_statistic()
  identities,       ///< identities of the operator on every row, over their bounds; see Residual
  bits_of_model,    ///< elements whose stored bits are not those of Pass::model; where the device is the modelled one
  // Of one token's log-probability, or ratio of probabilities, a row: see PolicyMetrics.
  max_abs_dlogp,
  k3_mean,
  k3_max,
  ratio_deviation,
  clip_flips,
};
std::string_view to_string(Metric metric);
std::span<const Metric> all_metrics();
bool is_elementwise(Metric metric);
bool is_of_bits(Metric metric);  ///< bits, bits_of_model: they have no limit that could be another

/// What an output holds a row of, for the metrics of tokens.
enum class TokenQuantity : uint8_t { none, logp, ratio };
/// logp and ratio: outputs of that name whose numerics are logprob. Gradients have names of their own.
TokenQuantity token_quantity(const OutputSpec& output);
bool is_of_tokens(Metric metric);

/// One condition on an output.
struct Gate {
  Metric metric = Metric::bound_ratio;
  double limit = 1.0;         ///< all but atol_rtol and those of bits
  double lambda = 6.0;        ///< bound_ratio: standard deviations allowed to a sum of independent roundings
  int64_t step = 1;           ///< bound_ratio: terms added per rounding (16 for a tensor core block)
  int64_t max_chain = 0;      ///< bound_ratio: longest chain of additions allowed however long the sum; 0 = no cap
  double bias_ulps = 0;       ///< bound_ratio: signed error per step in units of u*magnitude (tensor cores truncate)
  double term_roundings = 0;  ///< bound_ratio: roundings to terms_dtype that each term carries from before
  double atol = 0, rtol = 0;  ///< atol_rtol
  int64_t either = 0;         ///< atol_rtol: 1: within atol or within rtol*|y|, in place of their sum
  int64_t rows = 0, columns = 0;  ///< block_rel_l2: size of a block
  double one_sided = 0;           ///< bias_t: the share of growth*magnitude that may lean to one side
  double clip_eps = 0.2;          ///< clip_flips: the ratio is clipped outside of [1 - eps, 1 + eps]
  int64_t arch = 0;               ///< bits_of_model: index in kModelledArchs
  int64_t block = 0, order = 0;   ///< bits_of_model: see model_order()
  std::string source = {};        ///< "contracts/default.json: rules[3].gates[0]", "+ overlays[0]" where it applied
  std::optional<DType> terms_dtype = {};  ///< the case's, where gates_for() knows it; none: the output's
};

/// Which change of a number lets more candidates pass.
enum class Looser : uint8_t {
  larger,
  larger_or_zero,  ///< 0 stands for no cap
  smaller,
  any,  ///< no order: more may pass or less
};

/// A number that a contract's file gives for a metric.
struct GateKey {
  std::string_view name;
  double Gate::*real;      ///< or nullptr
  int64_t Gate::*integer;  ///< or nullptr
  double least;
  bool required;  ///< policy must be stated; what describes hardware has a default
  Looser looser;
  std::span<const std::string_view> words = {};  ///< that stand in the file for 0, 1, ... of an integer; none: numbers

  double value_in(const Gate& gate) const { return real != nullptr ? gate.*real : static_cast<double>(gate.*integer); }
  std::string text_in(const Gate& gate) const;  ///< "0.25", "ascending"
};
/// Whether `to` in place of `from` lets pass what `from` does not, whatever the other numbers.
bool loosens(const GateKey& key, double from, double to);

std::span<const GateKey> keys_of(Metric metric);

/// Of a bits_of_model gate.
ModelOrder model_order(const Gate& gate);
const ModelledArch& modelled_arch(const Gate& gate);

}  // namespace checkop
