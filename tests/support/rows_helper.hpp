// SPDX-License-Identifier: Apache-2.0
// For tests of operators with ignored rows: generated inputs, and the native candidate's outputs.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "case/inputs.hpp"
#include "device/plugin.hpp"
#include "run/runner.hpp"
#include "support/built.hpp"
#include "support/gold_helper.hpp"

namespace checkop {

inline Tensor& input(const Case& c, std::vector<Tensor>& inputs, std::string_view name) {
  return inputs[input_index(*c.pass, name)];
}

/// Fills row `row` of a tensor [rows, columns].
inline void set_row(Tensor& tensor, int64_t row, double value) {
  const int64_t columns = tensor.shape.size() < 3 ? 1 : tensor.shape.back();
  for (int64_t i = row * columns; i < (row + 1) * columns; ++i) tensor.set(i, value);
}

/// Inputs of ratio_kl or grpo_loss with every token active and the policy's own log-probabilities as old ones: no token
/// holds values that must not be read.
inline std::vector<Tensor> active_policy_inputs(const Case& c) {
  std::vector<Tensor> inputs = make_inputs(c, 1);
  const int64_t vocab = input(c, inputs, "policy_logits").shape.back();
  for (int64_t row = 0; row < input(c, inputs, "action_ids").count(); ++row) {
    input(c, inputs, "action_ids").set(row, static_cast<double>(row * 5 % vocab));
    for (Tensor& tensor : inputs) {
      if (tensor.name.ends_with("_mask")) tensor.set(row, static_cast<double>(1 + row % 2));
    }
    for (int64_t v = 0; v < vocab; ++v) {
      const int64_t at = row * vocab + v;
      input(c, inputs, "policy_logits").set(at, static_cast<double>(at * 7 % 31) / 16 - 1);
      input(c, inputs, "ref_logits").set(at, static_cast<double>(at * 11 % 29) / 16 - 1);
    }
  }
  const auto middle = [](double value) { return [value](std::string_view, uint64_t) { return value; }; };
  c.op->refine({inputs, c.attrs, middle(0), middle(0.5)});
  return inputs;
}

struct NativeAnswer {
  RunResult result;
  std::vector<Tensor> outputs;
};

inline NativeAnswer run_native(const Case& c, const std::vector<Tensor>& inputs) {
  const std::string path = native_plugin(c.op->name);
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

/// Values of all outputs of the gold, then of the native candidate; none of an absent one.
inline std::vector<std::vector<double>> gold_and_native(const Case& c, const std::vector<Tensor>& inputs) {
  std::vector<std::vector<double>> all;
  for (const GoldOutput& output : collect_gold(c, inputs, 1)) all.push_back(output.value);
  const NativeAnswer native = run_native(c, inputs);
  EXPECT_EQ(native.result.status, RunStatus::ok) << native.result.message;
  for (const Tensor& output : native.outputs)
    all.push_back(output.name.empty() ? std::vector<double>() : values_of(output));
  return all;
}

}  // namespace checkop
