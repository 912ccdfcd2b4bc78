// SPDX-License-Identifier: Apache-2.0
// What files give in place of what the program makes: the gold of an output, an operator of which only tensors are
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

/// One pass of an operator that has no gold here: tensors of given dtypes and shapes, no attributes, no rows that are
/// independent of each other. Each extent is a dimension: n0, n1, ... Its case refers to it.
class GivenOperator {
 public:
  /// `numerics` is of every floating-point output, `terms` the longest sum behind an element; integers are exact.
  GivenOperator(const std::string& name, const std::string& pass, Numerics numerics, int64_t terms,
                const std::vector<SafetensorsEntry>& inputs, const std::vector<SafetensorsEntry>& outputs);
  GivenOperator(const GivenOperator&) = delete;
  GivenOperator& operator=(const GivenOperator&) = delete;

  const Operator& op() const { return op_; }
  const Case& as_case() const { return case_; }

 private:
  std::string_view keep(std::string text);
  TensorSpec spec_of(const SafetensorsEntry& entry);

  std::map<int64_t, std::string> names_;  ///< of the dimension of each extent
  std::deque<std::string> texts_;
  std::vector<TensorSpec> inputs_;
  std::vector<OutputSpec> outputs_;
  std::vector<Pass> passes_;
  Operator op_;
  Case case_;
};

/// The gold of a case's outputs out of a file: NAME of any floating-point dtype, or of the output's own integer dtype.
/// Bounds that follow each element's conditioning need what NAME does not tell:
///   magnitude/NAME   coefficient of the growth of accumulated sums, see GoldRows
///   rounding/NAME    coefficient of one unit roundoff; |gold| where there is none, the least that it can be
class GivenGold {
 public:
  /// Throws InputError for a tensor that is missing or does not fit the output.
  GivenGold(const SafetensorsReader& file, const Case& c);

  GoldReplay replay() const;  ///< refers to this

  std::vector<DType> dtypes() const;  ///< in which the file has it, in the order of the pass

  /// Whether `name` belongs to another tensor of the file as its magnitude or rounding.
  static bool is_companion(const SafetensorsReader& file, const std::string& name);

  /// Throws InputError unless `file` holds what the gates of every output of `c` need. Only headers are looked at.
  ///   bound_ratio, bound_rms, bias_t   magnitude/NAME. |gold| would do where nothing cancels; a file does not tell
  ///   vs_baseline, max_vs_baseline     a gold of finer dtype than the output: else storing the gold costs nothing
  static void require_sound(const SafetensorsReader& file, const Case& c, const Contract& contract,
                            const Subject& subject);

 private:
  struct Output {
    Tensor value, magnitude, rounding;  ///< without a name where there is none
    int64_t columns = 1;
  };
  std::vector<Output> outputs_;
};

}  // namespace checkop
