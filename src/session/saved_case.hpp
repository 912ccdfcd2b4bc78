// SPDX-License-Identifier: Apache-2.0
// A case as one safetensors file: input/NAME, output/NAME as stored, gold/NAME and magnitude/NAME in F64; metadata op,
// pass, case, candidate, attrs (a JSON object), seed, grad_seed, arch_key, shard_bounds (a JSON array).
#pragma once

#include <string>
#include <vector>

#include "case/case.hpp"

namespace checkop {

/// Writes FOLDER/<candidate>-<pass>-<case name>.safetensors and returns its path. The gold is computed once more,
/// streamed.
std::string save_case(const std::string& folder, const Case& c, const std::string& candidate,
                      const std::string& arch_key, const std::vector<Tensor>& inputs,
                      const std::vector<Tensor>& outputs, unsigned threads, const std::vector<RowSet>& rows = {});

/// Makes the folder and its parents. Throws InputError when that can't be done.
void make_folder(const std::string& folder);

/// Infers sizes and dtype of `c` from a tensor that is `spec` of its pass. Throws InputError at `where` when two
/// tensors disagree. What an extent made of several dimensions must be is known only in the end.
void learn_dims(const std::string& where, const TensorSpec& spec, DType dtype, const Shape& shape, Case& c);

struct SavedCase {
  Case c;
  std::string candidate, arch_key;
  std::vector<Tensor> inputs, outputs;  ///< in the order of the pass; absent optional ones with an empty name
  std::vector<RowSet> rows;             ///< that the gold computed, in the order of the outputs
};

/// Reads inputs and outputs back. Throws InputError: no such file, an operator, pass or tensor that does not belong,
/// sizes that do not fit each other.
SavedCase load_case(const std::string& path);

}  // namespace checkop
