// SPDX-License-Identifier: Apache-2.0
// Bounds from a contract's numbers.
#include "bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace checkop {
namespace {

double chain_length(const Gate& gate, int64_t terms) {
  auto chain = (terms + gate.step - 1) / gate.step;
  if (gate.max_chain > 0) chain = std::min(chain, gate.max_chain);
  return static_cast<double>(std::max<int64_t>(chain, 1));
}

}  // namespace

PreparedGate::PreparedGate(const Gate& gate, DType out, int64_t terms) : gate(gate), half_ulp(out) {
  const DType arithmetic = out == DType::f64 ? DType::f64 : DType::f32;
  unit = unit_roundoff(arithmetic);
  // Not the smallest subnormal: GPUs may flush subnormal intermediates to zero.
  tiny = std::ldexp(1.0, info(arithmetic).min_exponent);
  growth = sum_growth(gate, terms, unit);
  bias = gate.bias_ulps * chain_length(gate, terms) * unit;
}

double element_bound(const Gate& gate, DType out, int64_t terms, double value, double magnitude, double rounding) {
  return PreparedGate(gate, out, terms).bound(std::abs(value), magnitude, rounding);
}

double residual_bound(const Gate& gate, DType out, int64_t terms, const Residual& r) {
  const PreparedGate prepared(gate, out, terms);
  return gate.limit * (prepared.computed(r.magnitude, r.rounding) + unit_roundoff(out) * r.stored);
}

}  // namespace checkop
