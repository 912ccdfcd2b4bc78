// SPDX-License-Identifier: Apache-2.0
// Operators and golds from files: a gold in place of the operator's own, or an operator of which only tensors are
// known.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "contract/contract.hpp"
#include "judge/gold.hpp"
#include "tensor/safetensors.hpp"

namespace checkop {

/// One pass of an operator without gold here: tensors of given dtypes and shapes, no attributes, no independent rows.
/// Every distinct extent becomes a dimension: n0, n1, ... The case refers to this object.
class GivenOperator {
 public:
  /// `numerics` applies to floating-point outputs; integers are exact. `terms`: the longest sum behind an element.
  GivenOperator(const std::string& name, const std::string& pass, Numerics numerics, int64_t terms,
                const std::vector<SafetensorsEntry>& inputs, const std::vector<SafetensorsEntry>& outputs);
  GivenOperator(const GivenOperator&) = delete;
  GivenOperator& operator=(const GivenOperator&) = delete;

  const Operator& op() const { return op_; }
  const Case& as_case() const { return case_; }

 private:
  std::string_view keep(std::string text);
  TensorSpec spec_of(const SafetensorsEntry& entry);

  std::map<int64_t, std::string> names_;  ///< extent -> name of its dimension
  std::deque<std::string> texts_;
  std::vector<TensorSpec> inputs_;
  std::vector<OutputSpec> outputs_;
  std::vector<Pass> passes_;
  Operator op_;
  Case case_;
};

/// The gold of a case's outputs from a file. Tensor NAME has any floating-point dtype, or the output's integer dtype.
/// Bounds that depend on each element's conditioning need more tensors:
///   magnitude/NAME   coefficient of the growth of accumulated sums, see GoldRows
///   rounding/NAME    coefficient of one unit roundoff; default |gold|, the smallest possible value
class GivenGold {
 public:
  /// Throws InputError if a tensor is missing or does not fit its output.
  GivenGold(const SafetensorsReader& file, const Case& c);

  GoldReplay replay() const;  ///< refers to this object

  std::vector<DType> dtypes() const;  ///< of the gold in the file, in the order of the pass

  /// Whether `name` is the magnitude or rounding of another tensor in the file.
  static bool is_companion(const SafetensorsReader& file, const std::string& name);

  /// Throws InputError unless `file` holds what the gates of every output of `c` need. Reads only headers.
  ///   bound_ratio, bound_rms, bias_t   magnitude/NAME: |gold| would do without cancellation, which a file does not
  /// show
  ///   vs_baseline, max_vs_baseline     a gold of finer dtype than the output; otherwise storing the gold has no error
  static void require_sound(const SafetensorsReader& file, const Case& c, const Contract& contract,
                            const Subject& subject);

 private:
  struct Output {
    Tensor value, magnitude, rounding;  ///< an absent tensor has no name
    int64_t columns = 1;
  };
  std::vector<Output> outputs_;
};

}  // namespace checkop
