// SPDX-License-Identifier: Apache-2.0
// Access to a call of matmul/forward, and a table of kernels, for plugins of the CPU and of GPUs.
#pragma once

#include <cstdint>
#include <cstdio>

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

/// A kernel of matmul/forward.
constexpr checkop_kernel kernel(const char* name, checkop_status (*launch)(const checkop_call*),
                                size_t (*workspace_bytes)(const checkop_call*) = nullptr,
                                int32_t device = CHECKOP_CPU) {
  return {sizeof(checkop_kernel), name, "matmul", "forward", device, 0, 0, workspace_bytes, launch};
}

template <int32_t N>
constexpr checkop_plugin plugin(const checkop_kernel (&kernels)[N]) {
  return {CHECKOP_ABI_VERSION, N, kernels};
}

}  // namespace test_plugin
