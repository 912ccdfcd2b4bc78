// SPDX-License-Identifier: Apache-2.0
// The logistic function of silu and swiglu, with the faults that both can have.
#pragma once

#include "emulation/common.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kExponentSign{"exponent_sign", "sigmoid of -x"};
inline constexpr FaultSpec kBaseTwo{"base_two", "powers of 2 instead of e: the factor log2(e) is missing"};
inline constexpr FaultSpec kGeluSlope{"gelu_slope", "sigmoid of 1.702 x, the approximation of gelu"};
inline constexpr FaultSpec kBf16Sigmoid{"bf16_sigmoid", "the sigmoid is rounded to bf16"};
inline constexpr FaultSpec kSigmoidAlone{"sigmoid_alone", "the sigmoid is not multiplied by x"};
inline constexpr FaultSpec kExponentialRatio{"exponential_ratio", "sigmoid as exp(x)/(exp(x) + 1): NaN for large x",
                                             "nonfinite"};
inline constexpr FaultSpec kDerivativeShort{"derivative_short", "the derivative of x sigmoid(x) is the sigmoid alone"};
inline constexpr FaultSpec kComplementLeftOut{"complement_left_out", "the derivative has x where x (1 - s) belongs"};
inline constexpr FaultSpec kDerivativeSign{"derivative_sign", "the derivative is s (1 - x (1 - s))"};

/// x sigmoid(x) and its derivative.
class Silu {
 public:
  explicit Silu(const Arithmetic& a)
      : arithmetic_(a),
        rounded_(a.has(kBf16Sigmoid.name)),
        alone_(a.has(kSigmoidAlone.name)),
        ratio_(a.has(kExponentialRatio.name)),
        short_(a.has(kDerivativeShort.name)),
        all_of_x_(a.has(kComplementLeftOut.name)),
        sign_(a.has(kDerivativeSign.name) ? -1.0F : 1.0F) {
    if (a.has(kExponentSign.name)) slope_ = 1;
    if (a.has(kBaseTwo.name)) slope_ = -0.69314718F;
    if (a.has(kGeluSlope.name)) slope_ = -1.702F;
  }

  float sigmoid(float x) const {
    const float e = arithmetic_.exponential(ratio_ ? x : slope_ * x), s = ratio_ ? e / (e + 1) : 1 / (1 + e);
    return rounded_ ? Arithmetic::to_bf16(s) : s;
  }
  float operator()(float x) const { return alone_ ? sigmoid(x) : x * sigmoid(x); }
  float derivative(float x) const {
    const float s = sigmoid(x);
    if (short_) return s;
    return s * (1 + sign_ * x * (all_of_x_ ? 1 : 1 - s));
  }

 private:
  const Arithmetic& arithmetic_;
  float slope_ = -1;  ///< factor of x in the exponent
  bool rounded_, alone_, ratio_, short_, all_of_x_;
  float sign_;
};

}  // namespace checkop::emulation
