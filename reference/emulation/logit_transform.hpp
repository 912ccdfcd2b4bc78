// SPDX-License-Identifier: Apache-2.0
// The soft cap and the temperature of logits, and the faults in their handling.
#pragma once

#include <array>
#include <cmath>
#include <vector>

#include "emulation/common.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kTemperatureLeftOut{"temperature_left_out", "logits are not divided by the temperature"};
inline constexpr FaultSpec kTemperatureTwice{"temperature_twice", "logits are divided by the temperature twice"};
inline constexpr FaultSpec kTemperatureMultiplied{"temperature_multiplied", "logits are multiplied by the temperature"};
inline constexpr FaultSpec kTemperatureBeforeCap{"temperature_before_cap",
                                                 "the temperature divides logits before the cap"};
inline constexpr FaultSpec kCapLeftOut{"cap_left_out", "logits are not capped"};
inline constexpr FaultSpec kSlopeOfTemperature{"slope_of_temperature",
                                               "the gradient is not divided by the temperature"};
inline constexpr FaultSpec kSlopeOfCap{"slope_of_cap", "the gradient lacks the derivative of the cap"};

inline constexpr std::array kTransformFaults{kTemperatureLeftOut, kTemperatureTwice, kTemperatureMultiplied,
                                             kTemperatureBeforeCap, kCapLeftOut};
inline constexpr std::array kTransformGradientFaults{
    kTemperatureLeftOut, kTemperatureTwice, kTemperatureMultiplied, kTemperatureBeforeCap, kCapLeftOut,
    kSlopeOfTemperature, kSlopeOfCap};

struct LogitTransform {
  float temperature = 1, softcap = 0;

  /// From the attributes after `ignore_index`, which tensor-parallel operators lack.
  static LogitTransform of(const EmulationArgs& args) {
    if (args.attrs.size() < 3) return {};
    return {static_cast<float>(args.attrs[1]), static_cast<float>(args.attrs[2])};
  }
};

/// A row of transformed logits and the derivative of each.
struct TransformedRow {
  std::vector<float> z, slope;

  TransformedRow(const Arithmetic& a, const LogitTransform& transform, const float* x, int64_t n) {
    float divisor = a.has(kTemperatureLeftOut.name) ? 1 : transform.temperature;
    if (a.has(kTemperatureTwice.name)) divisor *= divisor;
    if (a.has(kTemperatureMultiplied.name)) divisor = 1 / divisor;
    const float cap = a.has(kCapLeftOut.name) ? 0 : transform.softcap;
    const bool before = a.has(kTemperatureBeforeCap.name), uncapped = a.has(kSlopeOfCap.name);
    const float of_gradient = a.has(kSlopeOfTemperature.name) ? 1 : divisor;
    for (int64_t v = 0; v < n; ++v) {
      const float logit = before ? x[v] / divisor : x[v];
      const float tanh = cap == 0 ? 0 : std::tanh(logit / cap), capped = cap == 0 ? logit : cap * tanh;
      z.push_back(before ? capped : capped / divisor);
      slope.push_back((uncapped ? 1 : 1 - tanh * tanh) / of_gradient);
    }
  }
};

}  // namespace checkop::emulation
