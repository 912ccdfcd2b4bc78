// SPDX-License-Identifier: Apache-2.0
// What models and samplers do to logits before the softmax: a soft cap, then a temperature.
#pragma once

#include <cmath>

#include "operator/operator.hpp"

namespace checkop {

inline constexpr AttrSpec kTemperature{"temperature", 1, "logits are divided by it, after the soft cap"};
inline constexpr AttrSpec kSoftcap{"softcap", 0, "c: logits x become c tanh(x/c) first; 0: they stay as they are"};

/// Throws InputError unless attributes `temperature` and `softcap`, by index, are above 0 and at least 0.
void validate_logit_transform(const CaseSizes& sizes, size_t temperature, size_t softcap);

/// A transformed logit z and its derivative by x, with their errors in units of u.
struct TransformedLogit {
  double z, error, slope, slope_error;
};

/// z = t/temperature,  t = softcap tanh(x/softcap), or x without a cap.
/// Errors: x/softcap and the product with the cap round once, tanh errs by 2 ulp, which is 4u; with y = x/c an error of
/// y moves tanh y by y (1 - tanh^2 y) <= tanh y times its relative size. So t errs by 6u|t|. A temperature costs the
/// rounding of its reciprocal and of the product. The slope is (1 - tanh^2 y)/temperature: 2 tanh^2 y times tanh's
/// relative error, and one rounding each.
class LogitTransform {
 public:
  LogitTransform(double temperature, double softcap) : temperature_(temperature), softcap_(softcap) {}

  TransformedLogit operator()(double x) const {
    const double of_temperature = temperature_ == 1 ? 0 : 2;
    if (softcap_ == 0) {
      const double z = x / temperature_, slope = 1 / temperature_;
      return {z, std::isfinite(z) ? of_temperature * std::abs(z) : 0, slope, of_temperature * slope};
    }
    const double tanh = std::tanh(x / softcap_), z = softcap_ * tanh / temperature_;
    const double slope = (1 - tanh * tanh) / temperature_;
    return {z, (kTanhUnits + 2 + of_temperature) * std::abs(z), slope,
            (2 * (kTanhUnits + 1) + 1) * tanh * tanh / temperature_ + (1 + of_temperature) * slope};
  }

 private:
  static constexpr double kTanhUnits = 4;
  double temperature_, softcap_;
};

}  // namespace checkop
