// SPDX-License-Identifier: Apache-2.0
// Inputs out of files in place of generated ones, and the case that such files make.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "case.hpp"
#include "safetensors.hpp"

namespace checkop {

class GivenInputs {
 public:
  GivenInputs() = default;
  /// `settings` are NAME=FILE:TENSOR; `file` holds inputs by their own names, "" for none. Throws InputError for a
  /// setting of another form, a file or a tensor that is not there.
  GivenInputs(const std::vector<std::string>& settings, const std::string& file);

  /// Throws InputError when a tensor does not fit the case in dtype or shape, or is no input of its operator at all.
  /// Only headers are looked at.
  void require_fit(const Case& c) const;

  /// Puts the tensors in the place of `inputs`, those of the case's pass. Throws InputError for an id that selects
  /// nothing and is not ignore_index either.
  void replace(const Case& c, std::vector<Tensor>& inputs) const;

 private:
  struct Source {
    std::shared_ptr<const SafetensorsReader> file;
    std::string tensor;
    bool by_name;  ///< of the file of inputs, which may hold more
  };
  std::map<std::string, Source, std::less<>> sources_;
};

/// The case of a known operator whose tensors are those of `file`; attributes by name, and their defaults. Throws
/// InputError: an input that is missing, sizes that do not go together.
Case case_of_inputs(const SafetensorsReader& file, const Operator& op, const Pass& pass,
                    const std::map<std::string, double, std::less<>>& attrs);

}  // namespace checkop
