// SPDX-License-Identifier: Apache-2.0
// Small cases of matmul and linear_logp, and the test plugins that run them.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "device/plugin.hpp"
#include "run/runner.hpp"
#include "support/built.hpp"

namespace checkop {

inline std::string test_plugin(std::string_view stem) {
  return std::string(kPluginFolder) + "/" + std::string(stem) + ".so";
}

/// c[batch, seq, 4] = a[batch, seq, 2] * b[2, 4]; 4*batch*seq outputs.
inline Case matmul_case(int64_t batch = 2, int64_t seq = 3, DType dtype = DType::f32) {
  Case c;
  c.op = find_operator("matmul");
  c.pass = find_pass(*c.op, "forward");
  c.dtype = dtype;
  c.dims = {{"batch", batch}, {"seq", seq}, {"k_dim", 2}, {"n_dim", 4}};
  return c;
}

inline Case linear_logp_case(std::string_view pass, bool bias) {
  Case c;
  c.op = find_operator("linear_logp");
  c.pass = find_pass(*c.op, pass);
  c.dims = {{"batch", 1}, {"seq", 6}, {"hidden", 3}, {"vocab", 5}};
  c.attrs = {-100, 1, 0};  // ignore_index, temperature, softcap
  if (bias) c.optionals = {"bias"};
  return c;
}

/// Inputs whose values depend only on the row: 1, 2, 3, ... in steps; ids are 0, 1, 2, ...
inline std::vector<Tensor> counting_inputs(const Case& c) {
  std::vector<Tensor> inputs;
  for (const TensorSpec& spec : c.pass->inputs) {
    if (!is_present(c, spec)) {
      inputs.emplace_back();
      continue;
    }
    Tensor& tensor = inputs.emplace_back(std::string(spec.name), dtype_of(c, spec), shape_of(c, spec));
    for (int64_t i = 0; i < tensor.count(); ++i)
      tensor.set(i, static_cast<double>(i % 5 + (info(tensor.dtype).is_float ? 1 : 0)));
  }
  return inputs;
}

/// The product that an honest candidate computes.
inline double product(const std::vector<Tensor>& inputs, int64_t row, int64_t column) {
  const int64_t k = inputs[1].shape[0], n = inputs[1].shape[1];
  double sum = 0;
  for (int64_t l = 0; l < k; ++l) sum += inputs[0].at(row * k + l) * inputs[1].at(l * n + column);
  return sum;
}

inline Candidate find_candidate(std::string_view plugin, std::string_view name, std::string_view pass = "forward") {
  for (const Candidate& candidate : load_plugin(test_plugin(plugin))) {
    if (candidate.name == name && candidate.pass == pass) return candidate;
  }
  throw std::invalid_argument("no test candidate " + std::string(name));
}

}  // namespace checkop
