// SPDX-License-Identifier: Apache-2.0
// For tests of ratio_kl and grpo_loss: generated inputs, and the native candidate's answer to them.
#pragma once

#include "gold_helper.hpp"
#include "inputs.hpp"
#include "plugin.hpp"
#include "runner.hpp"

namespace checkop {

inline Tensor& input(const Case& c, std::vector<Tensor>& inputs, std::string_view name) {
  return inputs[input_index(*c.pass, name)];
}

/// Fills row `row` of a tensor [rows, columns].
inline void set_row(Tensor& tensor, int64_t row, double value) {
  const int64_t columns = tensor.shape.size() < 3 ? 1 : tensor.shape.back();
  for (int64_t i = row * columns; i < (row + 1) * columns; ++i) tensor.set(i, value);
}

struct NativeAnswer {
  RunResult result;
  std::vector<Tensor> outputs;
};

inline NativeAnswer run_native(const Case& c, const std::vector<Tensor>& inputs) {
  const std::string path = std::string(CHECKOP_BINARY_DIR) + "/kernels/" + std::string(c.op->name) + "/native.so";
  for (const Candidate& candidate : load_plugin(path)) {
    if (candidate.pass != c.pass->name) continue;
    NativeAnswer answer;
    answer.outputs = make_outputs(c);
    const auto device = open_cpu_device();
    answer.result = run_candidate(*device, candidate, c, inputs, answer.outputs, RunChecks{});
    return answer;
  }
  throw std::logic_error("no native candidate in " + path);
}

}  // namespace checkop
