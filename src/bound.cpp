// SPDX-License-Identifier: Apache-2.0
// Bounds from a contract's numbers.
#include "bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace checkop {
namespace {

/// The positive number of dtype `out` that is `steps` + 1 numbers from 0; infinity when there are not so many.
double number_beyond(DType out, double steps) {
  const DTypeInfo& type = info(out);
  const double infinity = std::ldexp(1.0, static_cast<int>(8 * type.bytes) - 1) -
                          std::ldexp(1.0, type.precision - 1);  // as an integer, its bits
  if (!type.is_float || !(steps + 1 < infinity)) return std::numeric_limits<double>::infinity();
  const auto bits = static_cast<uint64_t>(steps) + 1;
  double value = 0;
  type.decode(reinterpret_cast<const std::byte*>(&bits), &value, 1);  // little-endian
  return value;
}

}  // namespace

PreparedGate::PreparedGate(const Gate& gate, DType out, int64_t terms) : gate(gate), half_ulp(out) {
  const DType arithmetic = out == DType::f64 ? DType::f64 : DType::f32;
  unit = unit_roundoff(arithmetic);
  // Not the smallest subnormal: GPUs may flush subnormal intermediates to zero.
  tiny = std::ldexp(1.0, info(arithmetic).min_exponent);
  growth = sum_growth(gate, terms, unit);
  bias = gate.bias_ulps * static_cast<double>(std::max<int64_t>(chain_length(gate, terms), 1)) * unit;
  beyond_zero = number_beyond(out, gate.limit);
}

double element_bound(const Gate& gate, DType out, int64_t terms, double value, double magnitude, double rounding) {
  return PreparedGate(gate, out, terms).bound(std::abs(value), magnitude, rounding);
}

double residual_bound(const Gate& gate, DType out, int64_t terms, const Residual& r) {
  const PreparedGate prepared(gate, out, terms);
  return gate.limit * (prepared.computed(r.magnitude, r.rounding) + unit_roundoff(out) * r.stored);
}

}  // namespace checkop
