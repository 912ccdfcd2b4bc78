// SPDX-License-Identifier: Apache-2.0
// One element of a gold with its error coefficients, arithmetic of such elements, and their rounding by a recipe.
#pragma once

#include <cmath>
#include <vector>

#include "operator/operator.hpp"

namespace checkop {

/// One gold element, or an intermediate value of one, and its error coefficients; see GoldRows.
struct GoldElement {
  double value, magnitude, rounding;
  Spread spread = {};
};

// --- values with errors of first order, whose operations round once ---

inline GoldElement exact(double value) { return {value, 0, 0}; }
/// An attribute in fp32, or a difference.
inline GoldElement rounded(double value) { return {value, 0, std::abs(value)}; }

inline GoldElement operator+(const GoldElement& a, const GoldElement& b) {
  const double value = a.value + b.value;
  return {value, a.magnitude + b.magnitude, a.rounding + b.rounding + std::abs(value)};
}
inline GoldElement operator-(const GoldElement& a) { return {-a.value, a.magnitude, a.rounding}; }
inline GoldElement operator-(const GoldElement& a, const GoldElement& b) { return a + -b; }
inline GoldElement operator*(const GoldElement& a, const GoldElement& b) {
  const double x = std::abs(a.value), y = std::abs(b.value);
  return {a.value * b.value, x * b.magnitude + y * a.magnitude, x * b.rounding + y * a.rounding + x * y};
}
inline GoldElement operator/(const GoldElement& a, const GoldElement& b) {
  const double value = a.value / b.value, size = std::abs(value), divisor = std::abs(b.value);
  return {value, (a.magnitude + size * b.magnitude) / divisor, (a.rounding + size * b.rounding) / divisor + size};
}
/// `result`, the sum or product of a and b, in a kernel that has rounded both to 16 bits. fp32 usually holds such a
/// result exactly; then the kernel has no error, and a tie is a tie in every kernel.
inline GoldElement of_16_bit(const GoldElement& a, const GoldElement& b, GoldElement result) {
  const bool has_errors = a.magnitude != 0 || a.rounding != 0 || b.magnitude != 0 || b.rounding != 0;
  if (!has_errors && static_cast<double>(static_cast<float>(result.value)) == result.value) result.rounding = 0;
  return result;
}
inline GoldElement sum_of_16_bit(const GoldElement& a, const GoldElement& b) { return of_16_bit(a, b, a + b); }
inline GoldElement product_of_16_bit(const GoldElement& a, const GoldElement& b) { return of_16_bit(a, b, a * b); }
/// g times a derivative, not rounded.
inline GoldElement scaled(double g, const GoldElement& e) {
  return {g * e.value, std::abs(g) * e.magnitude, std::abs(g) * e.rounding};
}
/// The sum of `terms`, whose own growth is that of the sum of |terms|.
inline GoldElement sum_of(const std::vector<GoldElement>& terms) {
  GoldElement sum{0, 0, 0};
  for (const GoldElement& e : terms) {
    sum.value += e.value, sum.magnitude += e.magnitude + std::abs(e.value), sum.rounding += e.rounding;
  }
  return sum;
}

/// A row of gold elements, all 0 at first.
class GoldElements {
 public:
  explicit GoldElements(int64_t columns)
      : value_(static_cast<size_t>(columns)), magnitude_(value_), rounding_(value_) {}

  void set(int64_t column, const GoldElement& e) {
    const auto at = static_cast<size_t>(column);
    value_[at] = e.value, magnitude_[at] = e.magnitude, rounding_[at] = e.rounding;
  }
  void emit(const GoldArgs& args, int output, int64_t row) const {
    args.sink({output, row, 1, std::ssize(value_), value_.data(), magnitude_.data(), rounding_.data()});
  }
  /// The same as rows of one element, from `first_row` on.
  void emit_column(const GoldArgs& args, int output, int64_t first_row) const {
    args.sink({output, first_row, std::ssize(value_), 1, value_.data(), magnitude_.data(), rounding_.data()});
  }

 private:
  std::vector<double> value_, magnitude_, rounding_;
};

/// An intermediate value `e` of output `output`, rounded to the dtype of the case if `rounds`. Rounding removes the
/// error of the computation before it; the remaining error is that a kernel may round to the other side of a tie.
inline GoldElement rounded_if(bool rounds, const GoldArgs& args, int output, const GoldElement& e) {
  if (!rounds) return e;
  const Rounded rounded = args.recipes.round(output, e.value, e.magnitude, e.rounding);
  return {rounded.value, 0, args.recipes.in_units(rounded.slack)};
}

}  // namespace checkop
