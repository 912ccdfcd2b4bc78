// SPDX-License-Identifier: Apache-2.0
// Shared by the test plugins of the CPU: an honest product.
#pragma once

#include <cstdint>
#include <cstring>

#include "check_operator.h"
#include "plugins/call.hpp"

namespace test_plugin {

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

}  // namespace test_plugin
