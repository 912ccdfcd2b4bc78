// SPDX-License-Identifier: Apache-2.0
// Inputs out of files in place of generated ones, and the case that such files make.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "tensor/safetensors.hpp"

namespace checkop {

class GivenInputs {
 public:
  GivenInputs() = default;
  /// `settings` are NAME=FILE:TENSOR; `file` holds inputs by their own names, "" for none. Throws InputError for a
  /// setting of another form, a file or a tensor that is not there.
  GivenInputs(const std::vector<std::string>& settings, const std::string& file);

  /// Throws InputError when a tensor does not fit a case in dtype or shape, or a setting names no input of any case.
  /// Only headers are looked at.
  void require_fit(const std::vector<const Case*>& cases) const;

  /// Inputs of `c` that are given, and where they come from: logits -> "captured.safetensors:lm_head.out".
  std::map<std::string, std::string> origins(const Case& c) const;

  /// Tensors of the file of inputs that are none of `c`.
  std::vector<std::string> left_over(const Case& c) const;

  /// The inputs of `c`: generated, but for those that are given. Throws InputError for an id that selects nothing and
  /// is not ignore_index either.
  std::vector<Tensor> make(const Case& c, unsigned threads) const;

 private:
  void require_fit(const Case& c) const;

  struct Source {
    std::shared_ptr<const SafetensorsReader> file;
    std::string tensor;
    bool by_name;  ///< of the file of inputs, which may hold more
  };
  std::map<std::string, Source, std::less<>> sources_;
};

/// The case of a known operator whose tensors are those of `file`; attributes by name, and their defaults. Throws
/// InputError: an input that is missing, sizes that do not go together. `bounds` are those of ranks' parts; none: one
/// rank.
Case case_of_inputs(const SafetensorsReader& file, const Operator& op, const Pass& pass,
                    const std::map<std::string, double, std::less<>>& attrs, const std::vector<int64_t>& bounds = {});

}  // namespace checkop
