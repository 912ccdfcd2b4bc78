// SPDX-License-Identifier: Apache-2.0
// What an element may err by: the bounds behind the gates of single elements, and behind identities.
#pragma once

#include <limits>

#include "contract/contract.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// The error of an element that is not finite where its gold is, and other values that no bound covers.
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The bound of one element under a bound_ratio gate, before `limit`:
///   E = (growth + bias_ulps*h*u)*magnitude + of_terms*(magnitude - |value|) + u*rounding
///       + the smallest normal number of the arithmetic
///   of_terms = lambda*sqrt(term_roundings/3)*u_case
///   bound = E + half an ulp of `out` at |value| + E;   0 where value, magnitude and rounding are all 0
/// u is the unit roundoff of the arithmetic: fp32, or fp64 for fp64 outputs; u_case that of the case's dtype, which the
/// gate names (terms_dtype), or of `out` where it names none.
///
/// With term_roundings each term t of the sum has been stored in the case's dtype on the way so many times: rounded to
/// nearest, it errs by at most u_case*|t|, and as evenly as in [-u_case*|t|, u_case*|t|] or better, so with a variance,
/// and a sub-Gaussian one, of u_case^2*t^2/3. Over the sum these add up to term_roundings*u_case^2/3 times the sum of
/// the squares of the terms, whose root is what a magnitude of a product has beside |value|; lambda standard deviations
/// of that are passed with probability 2*exp(-lambda^2/2) at most.
///
/// Source: Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41 (2019).
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
  double computed(double size, double magnitude, double rounding) const {
    return (growth + bias) * magnitude + terms(size, magnitude) + unit * rounding + tiny;
  }
  /// The part of E that the terms carry from before.
  double terms(double size, double magnitude) const { return of_terms * (magnitude > size ? magnitude - size : 0); }
  double bound(double size, double magnitude, double rounding) const {
    // A zero made of nothing that errs, such as the gradient of a row that is left out: no rounding can move it.
    const bool exactly_zero = size == 0 && magnitude == 0 && rounding == 0;
    const double error = computed(size, magnitude, rounding);
    return exactly_zero ? 0 : error + half_ulp(size + error);
  }

  /// Of n elements: the errors that a bound_ratio gate allows, and what E is over half an ulp.
  void bounds(const double* size, const double* magnitude, const double* rounding, size_t n, double* allowed,
              double* over_half) const {
    // Copies can't alias what is written.
    const double per_magnitude = growth + bias, of_all_terms = of_terms, per_rounding = unit, least = tiny,
                 limit = gate.limit;
    const HalfUlp half_ulp_of = half_ulp;
    for (size_t i = 0; i < n; ++i) {
      const double others = magnitude[i] > size[i] ? magnitude[i] - size[i] : 0;
      const double error = per_magnitude * magnitude[i] + of_all_terms * others + per_rounding * rounding[i] + least;
      const double half = half_ulp_of(size[i] + error);
      const bool exactly_zero = size[i] == 0 && magnitude[i] == 0 && rounding[i] == 0;
      allowed[i] = exactly_zero ? 0 : limit * (error + half);
      over_half[i] = error - half;
    }
  }

  Gate gate;
  double unit, tiny;  ///< of the arithmetic: unit roundoff, smallest normal number
  double growth, bias;
  double of_terms;   ///< what the terms carry from before
  HalfUlp half_ulp;  ///< of the output
};

}  // namespace checkop
