// SPDX-License-Identifier: Apache-2.0
// What an element may err by: the bounds behind the gates of single elements, and behind identities.
#pragma once

#include "contract.hpp"
#include "operator.hpp"

namespace checkop {

/// The bound of one element under a bound_ratio gate, before `limit`:
///   E = (growth + bias_ulps*h*u)*magnitude + u*rounding + the smallest normal number of the arithmetic
///   bound = E + half an ulp of `out` at |value| + E;   0 where value, magnitude and rounding are all 0
/// u is the unit roundoff of the arithmetic: fp32, or fp64 for fp64 outputs.
double element_bound(const Gate& gate, DType out, int64_t terms, double value, double magnitude, double rounding);

/// What a residual may reach under a bound_ratio gate of an output of dtype `out` with sums of `terms` terms.
double residual_bound(const Gate& gate, DType out, int64_t terms, const Residual& residual);

/// A gate with everything that is the same for all elements of an output worked out.
struct PreparedGate {
  PreparedGate(const Gate& gate, DType out, int64_t terms);

  /// The largest error that passes; negative where bits decide.
  double allowed(double value, double magnitude, double rounding) const {
    const double size = value < 0 ? -value : value;
    switch (gate.metric) {
      case Metric::bound_ratio:
        return gate.limit * bound(size, magnitude, rounding);
      case Metric::atol_rtol:
        return tolerance(size);
      default:
        return -1;
    }
  }

  /// What atol and rtol allow at a value of that size.
  double tolerance(double size) const {
    const double relative = gate.rtol * size;
    if (gate.either == 0) return gate.atol + relative;
    return gate.atol < relative ? relative : gate.atol;
  }

  /// E: of the computation, before it is stored.
  double computed(double magnitude, double rounding) const {
    return (growth + bias) * magnitude + unit * rounding + tiny;
  }
  double bound(double size, double magnitude, double rounding) const {
    // A zero made of nothing that errs, such as the gradient of a row that is left out: no rounding can move it.
    const bool exactly_zero = size == 0 && magnitude == 0 && rounding == 0;
    const double error = computed(magnitude, rounding);
    return exactly_zero ? 0 : error + half_ulp(size + error);
  }

  /// Of n elements: the errors that a bound_ratio gate allows, and what E is over half an ulp.
  void bounds(const double* size, const double* magnitude, const double* rounding, size_t n, double* allowed,
              double* over_half) const {
    // Copies can't alias what is written.
    const double per_magnitude = growth + bias, per_rounding = unit, least = tiny, limit = gate.limit;
    const HalfUlp half_ulp_of = half_ulp;
    for (size_t i = 0; i < n; ++i) {
      const double error = per_magnitude * magnitude[i] + per_rounding * rounding[i] + least;
      const double half = half_ulp_of(size[i] + error);
      const bool exactly_zero = size[i] == 0 && magnitude[i] == 0 && rounding[i] == 0;
      allowed[i] = exactly_zero ? 0 : limit * (error + half);
      over_half[i] = error - half;
    }
  }

  Gate gate;
  double unit, tiny;  ///< of the arithmetic: unit roundoff, smallest normal number
  double growth, bias;
  HalfUlp half_ulp;  ///< of the output
};

}  // namespace checkop
