// SPDX-License-Identifier: Apache-2.0
// Safetensors files for tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tensor/safetensors.hpp"

namespace checkop {

inline std::string path_of(const std::string& name) { return testing::TempDir() + "own_data_" + name + ".safetensors"; }

inline Tensor tensor(const std::string& name, DType dtype, const Shape& shape,
                     const std::function<double(int64_t)>& value) {
  Tensor result(name, dtype, shape);
  for (int64_t i = 0; i < result.count(); ++i) result.set(i, value(i));
  return result;
}

/// Irregular nonzero values that fp32 does not hold exactly.
inline double wave(int64_t i) { return 1.5 + std::sin(static_cast<double>(i) * 1.7) + 1e-9; }

inline std::string write_tensors(const std::string& name, std::vector<Tensor> tensors) {
  write_safetensors(path_of(name), tensors);
  return path_of(name);
}

inline std::vector<Tensor> list(Tensor first) {
  std::vector<Tensor> tensors;
  tensors.push_back(std::move(first));
  return tensors;
}
template <typename... More>
std::vector<Tensor> list(Tensor first, More... more) {
  std::vector<Tensor> tensors = list(std::move(first));
  (tensors.push_back(std::move(more)), ...);
  return tensors;
}

/// Flags that judge by the gold only.
inline constexpr char kClass[] = "--contract contracts/policies/assert_close.json --class reduction";

}  // namespace checkop
