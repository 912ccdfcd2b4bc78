// SPDX-License-Identifier: Apache-2.0
// A case as one safetensors file. Tensors: input/NAME and output/NAME as stored, gold/NAME and magnitude/NAME in F64.
// Metadata: op, pass, case, candidate, recipes (that it declares, with spaces between), attrs (a JSON object), seed,
// grad_seed, arch_key, shard_bounds (a JSON array), rows (a JSON object), left_out.
#pragma once

#include <string>
#include <vector>

#include "case/case.hpp"

namespace checkop {

/// Writes FOLDER/<candidate>-<pass>-<case name>.safetensors and returns its path. Computes the gold again, streamed.
std::string save_case(const std::string& folder, const Case& c, const std::string& candidate,
                      const std::string& arch_key, const std::vector<Tensor>& inputs,
                      const std::vector<Tensor>& outputs, unsigned threads, const std::vector<RowSet>& rows = {},
                      const std::vector<std::string>& declared_recipes = {}, LeftOut left_out = LeftOut::nonfinite);

/// Makes the folder and its parents. Throws InputError on failure.
void make_folder(const std::string& folder);

/// Sets sizes and dtype of `c` from a tensor that is `spec` of its pass. Throws InputError at `where` if tensors
/// disagree. Skips extents that are made of several dimensions.
void learn_dims(const std::string& where, const TensorSpec& spec, DType dtype, const Shape& shape, Case& c);

struct SavedCase {
  Case c;
  std::string candidate, arch_key;
  std::vector<std::string> declared_recipes;
  LeftOut left_out = LeftOut::nonfinite;
  std::vector<Tensor> inputs, outputs;  ///< in the order of the pass; absent optional tensors have an empty name
  std::vector<RowSet> rows;             ///< the rows that the gold computed, in the order of the outputs
};

/// Loads inputs and outputs. Throws InputError if the file is missing, names an unknown operator, pass or tensor, or
/// has contradictory sizes.
SavedCase load_case(const std::string& path);

}  // namespace checkop
