// SPDX-License-Identifier: Apache-2.0
// Computes ratio, KL estimate and gradient of one token, and the old log-probabilities of generated inputs.
#include "policy.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "left_out.hpp"
#include "recipes.hpp"

namespace checkop {
namespace {

/// The relative error of exp(x) for an x with this error; both are coefficients of u. If x is `rounded`, its error may
/// be a step of the dtype of the case, which is too large for a first-order formula.
double of_exponential(const GoldArgs& args, double rounding, bool rounded) {
  if (!rounded) return rounding;
  return args.recipes.in_units(std::expm1(rounding / args.recipes.in_units(1)));
}

/// kl in a kernel that rounds each of its steps, and its exponential.
void round_kl(const GoldArgs& args, const GoldElement& lp, const GoldElement& lr, PolicyToken& token) {
  const auto rounded = [&](const GoldElement& e) { return rounded_if(true, args, 0, e); };
  const GoldElement d = rounded(sum_of_16_bit(lr, -lp));
  const double e = std::exp(d.value);
  token.growth = rounded({e, 0, e == 0 ? 0 : e * (of_exponential(args, d.rounding, true) + kExpUnits)});
  token.kl = rounded(sum_of_16_bit(rounded(sum_of_16_bit(token.growth, -d)), exact(-1)));
}

}  // namespace

PolicyToken policy_token(const GoldArgs& args, int64_t row, int64_t id, std::vector<double>& z) {
  const auto target = static_cast<size_t>(id);
  const bool rounds_logp = args.recipes.has(recipe::kLogp);
  const auto selected = [&](const SoftmaxRow& softmax) {
    return rounded_if(rounds_logp, args, 0, selected_logp(softmax, {z[target], 0, 0}));
  };
  const SoftmaxRow ref_row = read_row(args.in(kRefLogits), row, z);
  const GoldElement lr = selected(ref_row);
  PolicyToken token;
  token.policy = read_row(args.in(kPolicyLogits), row, z);
  const GoldElement lp = selected(token.policy);

  token.logp = lp.value;
  token.delta = lp.value - args.in(kOldLogps).at(row);
  const double ratio = std::exp(token.delta);
  token.ratio = {ratio, 0, 0};  // a ratio of 0 has no error; computed it would be 0*inf
  if (ratio != 0) {
    token.ratio.magnitude = ratio * lp.magnitude;
    token.ratio.rounding = ratio * (of_exponential(args, lp.rounding, rounds_logp) + std::abs(token.delta) + kExpUnits);
  }

  token.d = lr.value - lp.value;
  const double e = std::exp(token.d), below = std::abs(std::expm1(token.d));
  const double chain = lp.magnitude + lr.magnitude, off = lp.rounding + lr.rounding;
  const double fixed = of_exponential(args, off, rounds_logp) + std::abs(token.d);
  // expm1(d) - d, not exp(d) - d - 1, which would lose all digits of a small kl even in FP64.
  token.kl = {std::expm1(token.d) - token.d, below * chain, 0};
  // (exp(d) - 1)(exp(off) - 1) + exp(off) - 1 - off is what an error of `off` makes of kl.
  token.kl.rounding =
      below * fixed + (of_exponential(args, off, rounds_logp) - off) + kExpUnits * e + std::abs(token.d) + 1;
  token.slope = {-std::expm1(token.d), 0, below};
  if (e != 0) token.slope.magnitude = e * chain, token.slope.rounding += e * (fixed + kExpUnits);
  if (args.recipes.has(recipe::kKl)) round_kl(args, lp, lr, token);
  return token;
}

PolicyGradient::PolicyGradient(const GoldArgs& args, const SoftmaxRow& row, const GoldElement& c)
    : unit_(row, 1.0),
      rounded_unit_(args, 0, row, 1.0, /*rounds_logp=*/true),
      rounds_logp_(args.recipes.has(recipe::kLogp)),
      c_(c) {}

GoldElement PolicyGradient::operator()(double z, bool selected) const {
  const GoldElement e = rounds_logp_ ? rounded_unit_(exact(z), 0, selected) : unit_(exact(z), selected);
  const double size = std::abs(c_.value), share = std::abs(e.value);
  return {c_.value * e.value, size * e.magnitude + share * c_.magnitude, size * e.rounding + share * c_.rounding};
}

GoldElement policy_coefficient(const PolicyToken& token, double g_ratio, double g_kl) {
  const double of_ratio = g_ratio * token.ratio.value, of_kl = g_kl * token.slope.value;
  const double a = std::abs(g_ratio), b = std::abs(g_kl);
  return {of_ratio + of_kl, a * token.ratio.magnitude + b * token.slope.magnitude,
          a * token.ratio.rounding + b * token.slope.rounding + 2 * (std::abs(of_ratio) + std::abs(of_kl))};
}

bool rounds_coefficient(const GoldArgs& args) {
  return args.recipes.has(recipe::kKl) || args.recipes.has(recipe::kUpstream);
}

GoldElement rounded_coefficient(const GoldArgs& args, const PolicyToken& token, const GoldElement& of_ratio,
                                const GoldElement& g_kl) {
  GoldElement c = of_ratio;
  if (!args.recipes.has(recipe::kKl)) {
    if (g_kl.value != 0) c = c + g_kl * token.slope;
  } else {
    const auto rounded = [&](const GoldElement& e) { return rounded_if(true, args, 0, e); };
    const GoldElement g = rounded(g_kl);
    c = rounded(of_ratio);
    if (g.value != 0) {
      const GoldElement of_growth = rounded(product_of_16_bit(g, token.growth));
      c = sum_of_16_bit(c, -rounded(sum_of_16_bit(of_growth, -g)));
    }
  }
  return rounded_if(args.recipes.has(recipe::kUpstream), args, 0, c);
}

std::vector<int64_t> read_active_ids(const Tensor& ids, const std::vector<char>& active, int64_t vocab) {
  std::vector<int64_t> values(static_cast<size_t>(ids.count()));
  decode_int(ids.dtype, ids.bytes.data(), values.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (active[i] == 0) {
      values[i] = 0;
    } else if (values[i] < 0 || values[i] >= vocab) {
      throw InputError("input '" + ids.name + "'",
                       fmt::format("element {} is {}, outside [0, {}), and not masked", i, values[i], vocab),
                       "give ids of existing tokens wherever the mask is not 0");
    }
  }
  return values;
}

std::vector<char> read_mask(const Tensor& mask) {
  std::vector<char> active(static_cast<size_t>(mask.count()));
  for (size_t i = 0; i < active.size(); ++i) active[i] = mask.at(static_cast<int64_t>(i)) != 0;
  return active;
}

void plant_masked_tokens(const FillArgs& args, const std::vector<char>& active) {
  Tensor &ids = *args.find("action_ids"), &policy = *args.find("policy_logits");
  const int64_t vocab = policy.shape.back();
  constexpr double kLargest = 24;  // exp of a difference of log-probabilities must stay finite in fp32
  for (int64_t row = 0; row < ids.count(); ++row) {
    if (active[static_cast<size_t>(row)] != 0) continue;
    const uint64_t kind = payload_kind(args, static_cast<uint64_t>(row));
    plant_payload(args, policy, vocab, row, kind, kLargest);
    plant_payload(args, *args.find("ref_logits"), vocab, row, kind, kLargest);
    plant_payload(args, *args.find("old_logps"), 1, row, kind, kLargest);
    if (kind % 2 == 0 && args.left_out == LeftOut::nonfinite)
      ids.set(row, kind == 0 ? -100 : static_cast<double>(vocab));
  }
}

void refine_old_logps(const FillArgs& args) {
  constexpr double kDrift = 0.02, kOutlier = 5, kHalfOfOutliers = 0.0005;
  const Tensor& logits = *args.find("policy_logits");
  Tensor& old_logps = *args.find("old_logps");
  const std::vector<int64_t> ids = read_ids(*args.find("action_ids"), logits.shape.back());
  GoldArgs parallel;
  parallel.threads = args.threads;
  parallel.parallel_for(old_logps.count(), [&](int64_t row) {
    static thread_local std::vector<double> z;
    z.resize(static_cast<size_t>(logits.shape.back()));
    const SoftmaxRow softmax = read_row(logits, row, z);
    const auto i = static_cast<uint64_t>(row);
    double old =
        selected_logp(softmax, {z[static_cast<size_t>(ids[i])], 0, 0}).value + kDrift * args.normal("drift", i);
    const double drawn = args.uniform("outliers", i);
    if (drawn < 2 * kHalfOfOutliers) old += drawn < kHalfOfOutliers ? -kOutlier : kOutlier;
    old_logps.set(row, old);
  });
}

}  // namespace checkop
