// SPDX-License-Identifier: Apache-2.0
// Error bounds of single elements and of identities.
#pragma once

#include <limits>

#include "contract/contract.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// Also the error of an element that is not finite although its gold is: no bound covers it.
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One row of a gold; see GoldRows. No array but `reference` is nullptr.
struct GoldRow {
  const double *value, *magnitude, *rounding, *spread, *deviation, *reference = nullptr;
};

/// The bound of one element under a bound_ratio gate, before it is multiplied by `limit`:
///   E = (growth + bias_ulps*h*u)*magnitude + u*rounding + spread
///       + the smallest normal number of the arithmetic
///   bound = E + half an ulp of `out` at |value| + E;   0 if value, magnitude, rounding and spread are all 0
/// u is the unit roundoff of the arithmetic: fp32, or fp64 for fp64 outputs. The error of a sum with h roundings
/// exceeds lambda standard deviations with probability 2*exp(-lambda^2/2) at most.
///
/// Source: Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41 (2019).
double element_bound(const Gate& gate, DType out, int64_t terms, double value, double magnitude, double rounding,
                     double spread = 0);

/// The largest residual that passes a bound_ratio gate of an output of dtype `out` with sums of `terms` terms.
double residual_bound(const Gate& gate, DType out, int64_t terms, const Residual& residual);

/// A gate with precomputed values that are the same for all elements of an output.
struct PreparedGate {
  PreparedGate(const Gate& gate, DType out, int64_t terms);

  /// The largest error that passes; negative if the gate does not limit the error of an element.
  double allowed(double value, double magnitude, double rounding, double spread = 0) const {
    const double size = value < 0 ? -value : value;
    switch (gate.metric) {
      case Metric::bound_ratio:
        return gate.limit * bound(size, magnitude, rounding, spread);
      case Metric::atol_rtol:
        return tolerance(size);
      case Metric::bits:
      case Metric::ulp:
      case Metric::rel_l2:
      case Metric::cosine:
      case Metric::block_rel_l2:
      case Metric::max_vs_baseline:
      case Metric::vs_baseline:
      case Metric::vs_reference:
      case Metric::bound_rms:
      case Metric::noise_rms:
      case Metric::bias_t:
      case Metric::identities:
      case Metric::bits_of_model:
      case Metric::max_abs_dlogp:
      case Metric::k3_mean:
      case Metric::k3_max:
      case Metric::ratio_deviation:
      case Metric::clip_flips:
        break;
    }
    return -1;
  }

  /// The error that atol and rtol allow at a value of magnitude `size`.
  double tolerance(double size) const {
    const double relative = gate.rtol * size;
    if (gate.either == 0) return gate.atol + relative;
    return gate.atol < relative ? relative : gate.atol;
  }

  /// E: the error bound of the computation, before the result is stored.
  double computed(double magnitude, double rounding, double spread = 0) const {
    return (growth + bias) * magnitude + unit * rounding + spread + tiny;
  }
  /// The variance of an element's error: of independent roundings, for which E allows lambda standard deviations, and
  /// of storing the result. Parts that may be biased count with their full size.
  double variance(double size, double magnitude, double rounding, double spread, double deviation) const {
    const double even = growth * magnitude / std::max(gate.lambda, 1.0);
    const double biased = bias * magnitude + unit * rounding + tiny;
    const double stored = half_ulp(size + computed(magnitude, rounding, spread));
    return even * even + deviation * deviation + biased * biased + stored * stored / 3;
  }
  double bound(double size, double magnitude, double rounding, double spread = 0) const {
    // Such a zero is exact, for example the gradient of a row that is left out.
    const bool exactly_zero = size == 0 && magnitude == 0 && rounding == 0 && spread == 0;
    const double error = computed(magnitude, rounding, spread);
    return exactly_zero ? 0 : error + half_ulp(size + error);
  }

  /// The smallest error that the computation behind a stored `got` can have had, over E. If the result was rounded
  /// once, it differed from `got` by at most half an ulp. 0 if storing the gold explains the error.
  double least_computed(double error, double value, double magnitude, double rounding, double spread) const {
    const double size = value < 0 ? -value : value, e = computed(magnitude, rounding, spread);
    const double beyond = error - half_ulp(size + e);
    return beyond > 0 ? beyond / e : 0;
  }

  /// For n elements: the errors that a bound_ratio gate allows, and E minus half an ulp.
  void bounds(const double* size, const double* magnitude, const double* rounding, const double* spread, size_t n,
              double* allowed, double* over_half) const {
    // Local copies, so that the compiler knows the outputs don't alias them.
    const double per_magnitude = growth + bias, per_rounding = unit, least = tiny, limit = gate.limit;
    const HalfUlp half_ulp_of = half_ulp;
    for (size_t i = 0; i < n; ++i) {
      const double error = per_magnitude * magnitude[i] + per_rounding * rounding[i] + spread[i] + least;
      const double half = half_ulp_of(size[i] + error);
      const bool exactly_zero = size[i] == 0 && magnitude[i] == 0 && rounding[i] == 0 && spread[i] == 0;
      allowed[i] = exactly_zero ? 0 : limit * (error + half);
      over_half[i] = error - half;
    }
  }

  Gate gate;
  double unit, tiny;  ///< unit roundoff and smallest normal number of the arithmetic
  double growth, bias;
  HalfUlp half_ulp;  ///< of the output
};

}  // namespace checkop
