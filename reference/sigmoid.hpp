// SPDX-License-Identifier: Apache-2.0
// Code shared by silu and swiglu: the logistic function in FP64, the errors of computing it, and a loop over elements.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "operator/operator.hpp"
#include "softmax.hpp"

namespace checkop {

/// s = 1/(1 + exp(-x)), computed in a precision u. `error` is the coefficient of u:
///   The exponential errs by kExpUnits, and by 2|x| if x is first scaled by log2(e). Of this error the share 1 - s
///   reaches s, which is the exponential's share of the denominator. The addition rounds once; the division counts
///   twice, for a reciprocal with an error of one ulp. A sigmoid below the smallest normal fp32 may be flushed: 2^-126
///   is 2^-102 u.
struct Sigmoid {
  explicit Sigmoid(double x) {
    const double e = std::exp(-std::abs(x)), large = 1 / (1 + e), small = e / (1 + e);
    value = x < 0 ? small : large;
    complement = x < 0 ? large : small;
    error = value * (complement * (kExpUnits + 2 * std::abs(x)) + 3) + 0x1p-102;
  }
  double value, complement, error;
};

/// scale * x * s(x): one product, and a second one if scale is not 1.
inline GoldElement scaled_silu(double scale, double x, int products) {
  const Sigmoid s(x);
  const double value = scale * x * s.value;
  return {value, 0, std::abs(scale * x) * s.error + products * std::abs(value)};
}

/// scale * d(x s)/dx = scale * s * q,  q = 1 + x(1 - s),  with `products` roundings of s * q * scale.
/// 1 - s is assumed to be computed by a subtraction, whose absolute error is that of s plus one rounding. So s x(1 - s)
/// errs by s|x| times that, and by two roundings of s|x|(1 - s) as products. For large x, fp32 is no more accurate. An
/// error of s itself scales s q as a whole.
inline GoldElement scaled_silu_derivative(double scale, double x, int products) {
  const Sigmoid s(x);
  const double q = 1 + x * s.complement, value = scale * s.value * q, size = std::abs(x);
  const double error =
      (std::abs(q) + s.value * size) * s.error + s.value * ((products + 1) * std::abs(q) + 3 * size * s.complement);
  return {value, 0, std::abs(scale) * error};
}

/// In mode random: one element in every row but the first, of eight columns or more, becomes about a sixteenth
/// of the largest number of its dtype, of either sign by turns; those of `others` in the same place become small. So no
/// result overflows, even one that is wrong by a factor. Not in fp64, where finite differences of it would not be
/// finite. The first row stays normal: files of definitions draw their numbers there.
inline void plant_large(const FillArgs& args, std::string_view name, std::initializer_list<std::string_view> others) {
  constexpr int kSmall = -4;
  Tensor& x = *args.find(name);
  const int64_t columns = x.shape.back();
  if (args.mode != InputMode::random || x.dtype == DType::f64 || columns < 8) return;
  const double large = std::ldexp(1.75, kSmall + 1 - info(x.dtype).min_exponent);
  for (int64_t row = 1; row * columns < x.count(); ++row) {
    const int64_t at = row * columns + (5 * row + 2) % columns;
    x.set(at, row % 2 == 0 ? large : -large);
    for (const std::string_view other : others)
      if (Tensor* const tensor = args.find(other); tensor != nullptr)
        tensor->set(at, std::ldexp(tensor->at(at), kSmall));
  }
}

/// Emits output `index` = element(i) for each element, in rows of `columns`; decodes tensors by row.
///   element(const std::array<const double*, n>& inputs, size_t column) -> GoldElement
template <size_t n, class Element>
void emit_elements(const GoldArgs& args, int index, const std::array<int, n>& inputs, Element element) {
  const int64_t columns = args.in(inputs[0]).shape.back(), rows = args.in(inputs[0]).count() / columns;
  args.parallel_for(rows, [&](int64_t row) {
    static thread_local std::vector<double> buffers;
    const auto width = static_cast<size_t>(columns);
    buffers.resize((n + 3) * width);
    std::array<const double*, n> values;
    for (size_t i = 0; i < n; ++i) {
      const Tensor& tensor = args.in(inputs[i]);
      const DTypeInfo& type = info(tensor.dtype);
      values[i] = &buffers[i * width];
      type.decode(tensor.bytes.data() + static_cast<size_t>(row) * width * type.bytes, &buffers[i * width], width);
    }
    double *value = &buffers[n * width], *magnitude = value + width, *rounding = magnitude + width;
    for (size_t column = 0; column < width; ++column) {
      const GoldElement e = element(values, column);
      value[column] = e.value, magnitude[column] = e.magnitude, rounding[column] = e.rounding;
    }
    args.sink({index, row, 1, columns, value, magnitude, rounding});
  });
}

}  // namespace checkop
