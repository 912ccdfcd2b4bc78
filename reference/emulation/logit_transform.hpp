// SPDX-License-Identifier: Apache-2.0
// The soft cap and the temperature of logits, and the faults in their handling.
#pragma once

#include <array>
#include <cmath>
#include <vector>

#include "emulation/common.hpp"
#include "recipes.hpp"

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
  bool has_recipe = true;  ///< whether transform_in_16_bit changes it

  /// From the attributes after `ignore_index`, which tensor-parallel operators lack.
  static LogitTransform of(const EmulationArgs& args) {
    if (args.attrs.size() < 3) return {};
    return {static_cast<float>(args.attrs[1]), static_cast<float>(args.attrs[2])};
  }
};

/// A row of transformed logits and the derivative of each; with the recipe in 16 bits, step by step.
struct TransformedRow {
  std::vector<float> z, slope;

  TransformedRow(const Arithmetic& a, const LogitTransform& transform, const float* x, int64_t n)
      : steps_(a.rounds(recipe::kTransform) && transform.has_recipe &&
               (transform.temperature != 1 || transform.softcap != 0)) {
    float divisor = a.has(kTemperatureLeftOut.name) ? 1 : transform.temperature;
    if (a.has(kTemperatureTwice.name)) divisor *= divisor;
    if (a.has(kTemperatureMultiplied.name)) divisor = 1 / divisor;
    const float cap = cap_ = a.has(kCapLeftOut.name) ? 0 : transform.softcap;
    const bool before = a.has(kTemperatureBeforeCap.name), uncapped = a.has(kSlopeOfCap.name);
    of_gradient_ = a.has(kSlopeOfTemperature.name) ? 1 : divisor;
    const auto step = [&](float result) { return a.rounded_if(steps_, result); };
    for (int64_t v = 0; v < n; ++v) {
      const float logit = before ? step(x[v] / divisor) : x[v];
      const float tanh = cap == 0 ? 0 : step(std::tanh(step(logit / cap))),
                  capped = cap == 0 ? logit : step(cap * tanh);
      z.push_back(before || divisor == 1 ? capped : step(capped / divisor));
      of_cap_.push_back(uncapped ? 1 : 1 - tanh * tanh);
      slope.push_back(of_cap_.back() / of_gradient_);
    }
  }

  /// The gradient with respect to the logit of column v, from dz, the gradient with respect to the transformed logit.
  float by_logit(const Arithmetic& a, float dz, size_t v) const {
    if (!steps_) return dz * slope[v];
    const auto step = [&](float result) { return a.rounded_if(true, result); };
    const float d = step(dz) / of_gradient_;
    return cap_ == 0 ? d : step(step(cap_ * step(d)) * of_cap_[v]) / cap_;
  }

 private:
  bool steps_;
  float cap_ = 0, of_gradient_ = 1;
  std::vector<float> of_cap_;
};

}  // namespace checkop::emulation
