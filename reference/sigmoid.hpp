// SPDX-License-Identifier: Apache-2.0
// What silu and swiglu share: the logistic function in FP64, the errors that its computation has, rows of elements.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "operator/operator.hpp"
#include "softmax.hpp"

namespace checkop {

/// s = 1/(1 + exp(-x)) as it is computed in a precision u. `error` is the coefficient of u:
///   The exponential errs by kExpUnits, and by 2|x| where x is scaled by log2(e) first. Of that, the share 1 - s of the
///   denominator reaches s. The addition rounds once; the division twice, as a reciprocal of one ulp does.
///   A sigma below the smallest normal fp32 may be flushed: 2^-126, 2^-102 u.
struct Sigmoid {
  explicit Sigmoid(double x) {
    const double e = std::exp(-std::abs(x)), large = 1 / (1 + e), small = e / (1 + e);
    value = x < 0 ? small : large;
    complement = x < 0 ? large : small;
    error = value * (complement * (kExpUnits + 2 * std::abs(x)) + 3) + 0x1p-102;
  }
  double value, complement, error;
};

/// scale * x * s(x): one product, and one more where scale is not 1.
inline GoldElement scaled_silu(double scale, double x, int products) {
  const Sigmoid s(x);
  const double value = scale * x * s.value;
  return {value, 0, std::abs(scale * x) * s.error + products * std::abs(value)};
}

/// scale * d(x s)/dx = scale * s * q,  q = 1 + x(1 - s),  with `products` roundings of s * q * scale.
/// 1 - s is taken as computed by a subtraction, whose absolute error is that of s and one rounding, so that
/// s x(1 - s) errs by s|x| times that, and by two roundings of s|x|(1 - s) as products. Where x is large this is all
/// that fp32 gives; an error of s itself scales s q as a whole.
inline GoldElement scaled_silu_derivative(double scale, double x, int products) {
  const Sigmoid s(x);
  const double q = 1 + x * s.complement, value = scale * s.value * q, size = std::abs(x);
  const double error =
      (std::abs(q) + s.value * size) * s.error + s.value * ((products + 1) * std::abs(q) + 3 * size * s.complement);
  return {value, 0, std::abs(scale) * error};
}

/// Emits output `index` = element(i) for each of its elements, in rows of `columns`; tensors are decoded by row.
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
