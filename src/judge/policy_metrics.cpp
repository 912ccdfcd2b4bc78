// SPDX-License-Identifier: Apache-2.0
// Computes the metrics token by token, in order.
#include "judge/policy_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "judge/bound.hpp"

namespace checkop {
namespace {

double logp_error(TokenQuantity quantity, const Token& t) {
  if (t.got == t.gold) return 0;  // also for infinities
  const double d = quantity == TokenQuantity::ratio ? std::log(t.got) - std::log(t.gold) : t.got - t.gold;
  return std::isnan(d) ? kInfinity : d;
}

/// A token whose probability is 0 in fp32. No policy samples it, so a finite error of its log-probability adds nothing
/// to the divergence; one rounding at -50000 can be 0.002.
bool is_impossible(TokenQuantity quantity, const Token& t) {
  constexpr double kLeast = -104;  // exp(-104) is below 2^-150
  return quantity == TokenQuantity::logp && std::isfinite(t.gold) && t.gold < kLeast && std::isfinite(t.got);
}

bool flips(TokenQuantity quantity, const Token& t, double d, double eps) {
  if (quantity == TokenQuantity::logp) {
    const double ratio = std::exp(d);
    return !(ratio >= 1 - eps && ratio <= 1 + eps);
  }
  const auto crosses = [&t](double edge) {
    return !((t.got < edge) == (t.gold < edge) && std::isfinite(t.got)) && !(std::abs(t.gold - edge) <= t.bound);
  };
  return t.got != t.gold && (crosses(1 - eps) || crosses(1 + eps));
}

}  // namespace

PolicyMetrics policy_metrics(TokenQuantity quantity, std::span<const Token> tokens, double clip_eps) {
  PolicyMetrics m;
  m.clip_eps = clip_eps;
  double k3_sum = 0;
  int64_t flipped = 0;
  for (const Token& t : tokens) {
    const double d = logp_error(quantity, t);
    const double growth = std::expm1(d), k3 = is_impossible(quantity, t) ? 0 : std::isinf(d) ? kInfinity : growth - d;
    ++m.tokens;
    m.max_abs_dlogp = std::max(m.max_abs_dlogp, std::abs(d));
    m.ratio_deviation = std::max(m.ratio_deviation, std::isinf(d) ? kInfinity : std::abs(growth));
    m.k3_max = std::max(m.k3_max, k3);
    k3_sum += k3;
    if (flips(quantity, t, d, clip_eps)) ++flipped;
  }
  if (m.tokens == 0) return m;
  m.k3_mean = k3_sum / static_cast<double>(m.tokens);
  m.clip_flips = static_cast<double>(flipped) / static_cast<double>(m.tokens);
  return m;
}

}  // namespace checkop
