// SPDX-License-Identifier: Apache-2.0
// Inputs from files in place of generated ones, and the case that such files describe.
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
  /// `settings` are NAME=FILE:TENSOR. `file` holds inputs by name; "" for none. Throws InputError if a setting is
  /// malformed, or a file or tensor is missing.
  GivenInputs(const std::vector<std::string>& settings, const std::string& file);

  /// Throws InputError if a tensor has the wrong dtype or shape for a case, or if a setting names no input of any case.
  /// Reads only headers.
  void require_fit(const std::vector<const Case*>& cases) const;

  /// The given inputs of `c` and their origins: logits -> "captured.safetensors:lm_head.out".
  std::map<std::string, std::string> origins(const Case& c) const;

  /// Tensors in the file of inputs that are no inputs of `c`.
  std::vector<std::string> left_over(const Case& c) const;

  /// The inputs of `c`: given ones from files, others generated. Throws InputError for an id that is out of range and
  /// not ignore_index.
  std::vector<Tensor> make(const Case& c, unsigned threads) const;

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

}  // namespace checkop
