// SPDX-License-Identifier: Apache-2.0
// Element and residual bounds from a gate's numbers.
#include "judge/bound.hpp"

#include <algorithm>
#include <cmath>

namespace checkop {

PreparedGate::PreparedGate(const Gate& gate, DType out, int64_t terms) : gate(gate), half_ulp(out) {
  const DType arithmetic = out == DType::f64 ? DType::f64 : DType::f32;
  unit = unit_roundoff(arithmetic);
  // Not the smallest subnormal: GPUs may flush subnormal intermediates to zero.
  tiny = std::ldexp(1.0, info(arithmetic).min_exponent);
  growth = sum_growth(gate, terms, unit);
  bias = gate.bias_ulps * static_cast<double>(std::max<int64_t>(chain_length(gate, terms), 1)) * unit;
}

double element_bound(const Gate& gate, DType out, int64_t terms, double value, double magnitude, double rounding,
                     double spread) {
  return PreparedGate(gate, out, terms).bound(std::abs(value), magnitude, rounding, spread);
}

double residual_bound(const Gate& gate, DType out, int64_t terms, const Residual& r) {
  const PreparedGate prepared(gate, out, terms);
  return gate.limit * (prepared.computed(r.magnitude, r.rounding) + unit_roundoff(out) * r.stored);
}

}  // namespace checkop
