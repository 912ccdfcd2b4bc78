// SPDX-License-Identifier: Apache-2.0
// Roundings of recipes, and what they may cost.
#include "operator/recipe.hpp"

#include <array>
#include <cstddef>

namespace checkop {

double ActiveRecipes::round(double x) const {
  std::array<std::byte, 8> stored{};
  const DTypeInfo& type = info(dtype_);
  double rounded = 0;
  type.encode(&x, stored.data(), 1);
  type.decode(stored.data(), &rounded, 1);
  return rounded;
}

Rounded ActiveRecipes::round(int output, double x, double magnitude, double rounding) const {
  const double error = numbers_[static_cast<size_t>(output)].growth * magnitude + unit_ * rounding;
  const double value = round(x);
  if (!(error > 0) || !std::isfinite(value)) return {value, 0};
  // A kernel that rounds to infinity gets no allowance for it.
  const auto distance = [&](double to) { return std::isfinite(to) ? std::abs(to - value) : 0; };
  return {value, std::max(distance(round(x + error)), distance(round(x - error)))};
}

double ActiveRecipes::round_to_tf32(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);  // 1/2 <= |fraction| < 1
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11);
}

}  // namespace checkop
