// SPDX-License-Identifier: Apache-2.0
// Own data: tensors from files of the user in place of generated inputs, of the gold, or of a whole operator.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "contract/contract.hpp"
#include "judge/gold.hpp"
#include "session/run_options.hpp"
#include "tensor/safetensors.hpp"

namespace checkop {

class OwnInputs {
 public:
  OwnInputs() = default;
  /// `settings` are NAME=FILE:TENSOR. `file` holds inputs by name; "" for none. Throws InputError if a setting is
  /// malformed, or a file or tensor is missing.
  OwnInputs(const std::vector<std::string>& settings, const std::string& file);

  /// Throws InputError if a tensor has the wrong dtype or shape for a case, or if a setting names no input of any case.
  /// Reads only headers.
  void require_fit(const std::vector<const Case*>& cases) const;

  /// The given inputs of `c` and their origins: logits -> "captured.safetensors:lm_head.out".
  std::map<std::string, std::string> origins(const Case& c) const;

  /// Tensors in the file of inputs that are no inputs of `c`.
  std::vector<std::string> left_over(const Case& c) const;

  /// The inputs of `c`: given ones from files, others generated. Throws InputError for an id that is out of range and
  /// not ignore_index.
  std::vector<Tensor> make(const Case& c, unsigned threads, LeftOut left_out = LeftOut::nonfinite) const;

 private:
  void require_fit(const Case& c) const;

  struct Source {
    std::shared_ptr<const SafetensorsReader> file;
    std::string tensor;
    bool by_name;  ///< from the file of inputs, which may hold other tensors too
  };
  std::map<std::string, Source, std::less<>> sources_;
};

/// The case of a known operator whose inputs are in `file`. Attributes not in `attrs` have their defaults. `bounds` are
/// the bounds of tensor-parallel parts; empty for one rank. Throws InputError if an input is missing or sizes
/// contradict each other.
Case case_of_inputs(const SafetensorsReader& file, const Operator& op, const Pass& pass,
                    const std::map<std::string, double, std::less<>>& attrs, const std::vector<int64_t>& bounds = {});

/// One pass of an operator without gold here: tensors of given dtypes and shapes, no attributes, no independent rows.
/// Every distinct extent becomes a dimension: n0, n1, ... The case refers to this object.
class OwnOperator {
 public:
  /// `numerics` applies to floating-point outputs; integers are exact. `terms`: the longest sum behind an element.
  OwnOperator(const std::string& name, const std::string& pass, Numerics numerics, int64_t terms,
              const std::vector<SafetensorsEntry>& inputs, const std::vector<SafetensorsEntry>& outputs);
  OwnOperator(const OwnOperator&) = delete;
  OwnOperator& operator=(const OwnOperator&) = delete;

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
///   reference/NAME   what a trusted implementation computed, in the dtype of the output
class OwnGold {
 public:
  /// Throws InputError if a tensor is missing or does not fit its output.
  OwnGold(const SafetensorsReader& file, const Case& c);

  GoldReplay replay() const;  ///< refers to this object

  std::vector<DType> dtypes() const;  ///< of the gold in the file, in the order of the pass

  /// Whether `name` is the magnitude, rounding or reference of another tensor in the file.
  static bool is_companion(const SafetensorsReader& file, const std::string& name);

  /// Throws InputError unless `file` holds what the gates of every output of `c` need. Reads only headers.
  ///   bound_ratio, bound_rms, bias_t   magnitude/NAME; |gold| does not show cancellation
  ///   vs_reference                     reference/NAME
  ///   vs_baseline, max_vs_baseline     a gold of finer dtype than the output; otherwise storing the gold has no error
  static void require_sound(const SafetensorsReader& file, const Case& c, const Contract& contract,
                            const Subject& subject);

 private:
  struct Output {
    Tensor value, magnitude, rounding, reference;  ///< an absent tensor has no name
    int64_t columns = 1;
  };
  std::vector<Output> outputs_;
};

/// Makes the case. Adds an unknown operator, described by its tensors; call once per process. Throws InputError if
/// tensors do not fit the operator or each other, or if anything needed to judge them is missing.
Case case_of_own_data(const RunOptions& options);

}  // namespace checkop
