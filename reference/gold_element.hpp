// SPDX-License-Identifier: Apache-2.0
// One element of a gold with its error coefficients, and its rounding by a recipe.
#pragma once

#include <cmath>

#include "operator/operator.hpp"

namespace checkop {

/// One gold element, or an intermediate value of one, and its error coefficients; see GoldRows.
struct GoldElement {
  double value, magnitude, rounding;
  Spread spread = {};
};

// --- values with errors of first order, whose operations round once
// --------------------------------------------------------------------------------------

inline GoldElement exact(double value) { return {value, 0, 0}; }
inline GoldElement rounded(double value) {
  return {value, 0, std::abs(value)};
}  // an attribute in fp32, or a difference

inline GoldElement operator+(const GoldElement& a, const GoldElement& b) {
  const double value = a.value + b.value;
  return {value, a.magnitude + b.magnitude, a.rounding + b.rounding + std::abs(value)};
}
inline GoldElement operator*(const GoldElement& a, const GoldElement& b) {
  const double x = std::abs(a.value), y = std::abs(b.value);
  return {a.value * b.value, x * b.magnitude + y * a.magnitude, x * b.rounding + y * a.rounding + x * y};
}
inline GoldElement operator-(const GoldElement& a) { return {-a.value, a.magnitude, a.rounding}; }
/// g times a derivative, not rounded.
inline GoldElement scaled(double g, const GoldElement& e) {
  return {g * e.value, std::abs(g) * e.magnitude, std::abs(g) * e.rounding};
}

/// An intermediate value `e` of output `output`, rounded to the dtype of the case if `rounds`. A rounded value has lost
/// the error of the computation before it; what is left is that a kernel may round it to the other side of a tie.
inline GoldElement rounded_if(bool rounds, const GoldArgs& args, int output, const GoldElement& e) {
  if (!rounds) return e;
  const Rounded rounded = args.recipes.round(output, e.value, e.magnitude, e.rounding);
  return {rounded.value, 0, args.recipes.in_units(rounded.slack)};
}

}  // namespace checkop
