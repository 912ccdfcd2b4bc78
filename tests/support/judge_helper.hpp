// SPDX-License-Identifier: Apache-2.0
// For tests that judge outputs: correct outputs, and the shipped contract.
#pragma once

#include <vector>

#include "case/inputs.hpp"
#include "contract/contract.hpp"
#include "run/runner.hpp"
#include "support/gold_helper.hpp"

namespace checkop {

/// Outputs that contain the gold, rounded once.
inline std::vector<Tensor> rounded_gold(const Case& c, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> outputs = make_outputs(c);
  const auto gold = collect_gold(c, inputs, 1);
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t k = 0; k < gold[i].value.size(); ++k) outputs[i].set(static_cast<int64_t>(k), gold[i].value[k]);
  }
  return outputs;
}

inline Contract default_contract() { return Contract::load(CHECKOP_SOURCE_DIR "/contracts/default.json"); }

}  // namespace checkop
