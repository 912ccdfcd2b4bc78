// SPDX-License-Identifier: Apache-2.0
// Shared by the test plugins: access to a call of matmul/forward, and a table of kernels.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "check_operator.h"

namespace test_plugin {

inline int64_t rows(const checkop_tensor& t) { return t.shape[0] * t.shape[1]; }

inline int64_t count(const checkop_tensor& t) {
  int64_t n = 1;
  for (int32_t i = 0; i < t.rank; ++i) n *= t.shape[i];
  return n;
}

inline size_t element_bytes(const checkop_tensor& t) {
  constexpr size_t kBytes[] = {8, 4, 2, 2, 8, 4, 1};
  return kBytes[t.dtype];
}

inline void say(const checkop_call* call, const char* text) {
  std::snprintf(call->message, call->message_bytes, "%s", text);
}

inline char* element(const checkop_tensor& t, int64_t index) {
  return static_cast<char*>(t.data) + index * static_cast<int64_t>(element_bytes(t));
}

/// c = a * b for float, honest.
inline checkop_status multiply(const checkop_call* call) {
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1], &c = call->outputs[0];
  if (c.dtype != CHECKOP_F32) {
    say(call, "float only");
    return CHECKOP_UNSUPPORTED;
  }
  const int64_t k = b.shape[0], n = b.shape[1];
  for (int64_t i = 0; i < rows(c); ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += static_cast<const float*>(a.data)[i * k + l] * static_cast<const float*>(b.data)[l * n + j];
      }
      static_cast<float*>(c.data)[i * n + j] = sum;
    }
  }
  return CHECKOP_OK;
}

/// Writes zeros to every element of `c`, whatever its dtype.
inline void write_zeros(const checkop_tensor& c) {
  std::memset(c.data, 0, static_cast<size_t>(count(c)) * element_bytes(c));
}

constexpr checkop_kernel kernel(const char* name, checkop_status (*launch)(const checkop_call*),
                                size_t (*workspace_bytes)(const checkop_call*) = nullptr) {
  return {sizeof(checkop_kernel), name, "matmul", "forward", CHECKOP_CPU, 0, 0, workspace_bytes, launch};
}

template <int32_t N>
constexpr checkop_plugin plugin(const checkop_kernel (&kernels)[N]) {
  return {CHECKOP_ABI_VERSION, N, kernels};
}

}  // namespace test_plugin
