// SPDX-License-Identifier: Apache-2.0
// Emulates ratio, KL estimate and gradient of one token.
#include "emulation/policy.hpp"

#include "recipes.hpp"

namespace checkop::emulation {
namespace {

float logp(const Arithmetic& arithmetic, const Matrix& logits, int64_t row, int64_t id) {
  const float value = softmax_row(arithmetic, logits.row(row), logits.columns).logp(logits.row(row)[id]);
  return arithmetic.has(kBf16Logps.name) ? Arithmetic::to_bf16(value)
                                         : arithmetic.rounded_if(arithmetic.rounds(recipe::kLogp), value);
}

/// exp(x) - 1, rounded by the fault of exponentials as they are.
float expm1(const Arithmetic& arithmetic, float x) {
  return arithmetic.has(faults::kBf16Exponential.name) ? Arithmetic::to_bf16(std::expm1(x)) : std::expm1(x);
}

}  // namespace

PolicyToken policy_token(const Arithmetic& arithmetic, const PolicyInputs& in, int64_t token) {
  const int64_t id = in.id(arithmetic, token);
  const float lp = logp(arithmetic, in.policy, token, id), lr = logp(arithmetic, in.ref, token, id);
  float old = in.old_logps[static_cast<size_t>(token)];
  if (arithmetic.has(kBf16Logps.name)) old = Arithmetic::to_bf16(old);
  if (arithmetic.has(kOldIgnored.name)) old = lp;
  if (arithmetic.has(kRefForOld.name)) old = lr;
  const float log_ratio = arithmetic.has(kRatioInverted.name) ? old - lp : lp - old, d = lr - lp;

  const float growth = expm1(arithmetic, d);
  PolicyToken result{log_ratio, arithmetic.exponential(log_ratio), growth - d, -growth};
  if (arithmetic.rounds(recipe::kKl)) {
    const auto rounded = [&](float x) { return arithmetic.rounded_if(true, x); };
    const float stored = rounded(d), e = rounded(arithmetic.exponential(stored));
    result.kl = rounded(rounded(e - stored) - 1), result.kl_slope = 1 - e;
  }
  if (arithmetic.has(kKlReversed.name)) result.kl_slope = expm1(arithmetic, -d), result.kl = result.kl_slope + d;
  if (arithmetic.has(kKlLinear.name)) result.kl = -d, result.kl_slope = 1;
  if (arithmetic.has(kKlSquare.name)) result.kl = d * d / 2, result.kl_slope = -d;
  if (arithmetic.has(kKlTermDropped.name)) result.kl_slope = 0;
  if (arithmetic.has(kKlSignFlipped.name)) result.kl_slope = -result.kl_slope;
  return result;
}

float policy_coefficient(const Arithmetic& arithmetic, const PolicyToken& token, float of_ratio, float g_kl) {
  if (g_kl == 0) return of_ratio;
  if (!arithmetic.rounds(recipe::kKl)) return of_ratio + g_kl * token.kl_slope;
  const auto rounded = [&](float x) { return arithmetic.rounded_if(true, x); };
  const float g = rounded(g_kl), e = rounded(1 - token.kl_slope);
  return rounded(of_ratio) - rounded(rounded(g * e) - g);
}

void policy_gradient_row(const Arithmetic& arithmetic, const PolicyInputs& in, int64_t token, float c, double* to) {
  const Matrix& logits = arithmetic.has(kRefSoftmax.name) ? in.ref : in.policy;
  logp_gradient_row(arithmetic, logits.row(token), logits.columns, in.id(arithmetic, token), c, to);
}

}  // namespace checkop::emulation
