// SPDX-License-Identifier: Apache-2.0
// A soft cap and a temperature, which change logits before the softmax.
#pragma once

#include "cpu/native.hpp"

namespace native {

/// z = softcap tanh(x / softcap) / temperature, or x / temperature if softcap is 0.
struct LogitTransform {
  float temperature = 1.0f, softcap = 0.0f;

  LogitTransform() = default;
  explicit LogitTransform(const checkop_call& c)
      : temperature(static_cast<float>(attribute(c, "temperature"))),
        softcap(static_cast<float>(attribute(c, "softcap"))) {}

  float operator()(float x) const { return (softcap == 0 ? x : softcap * std::tanh(x / softcap)) / temperature; }
  void operator()(float* x, int64_t n) const {
    if (softcap == 0 && temperature == 1) return;
    for (int64_t i = 0; i < n; ++i) x[i] = (*this)(x[i]);
  }
  /// dz/dx
  float slope(float x) const {
    const float tanh = softcap == 0 ? 0.0f : std::tanh(x / softcap);
    return (1.0f - tanh * tanh) / temperature;
  }
};

}  // namespace native
