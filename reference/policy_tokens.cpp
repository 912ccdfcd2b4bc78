// SPDX-License-Identifier: Apache-2.0
// Computes the losses of tokens and their derivatives.
#include "policy_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.hpp"
#include "left_out.hpp"
#include "policy.hpp"
#include "softmax.hpp"
#include "token_mean.hpp"

namespace checkop {
namespace {

constexpr double kUnit = 0x1p-24;  // of fp32, in which all of this is computed

GoldElement exponential(const GoldElement& x) {
  const double value = std::exp(x.value);
  return {value, value * x.magnitude, value * (x.rounding + kExpUnits + kArgumentUnits * std::abs(x.value))};
}

/// A value that an equally accurate kernel may have moved by `jump`, since it took the other branch.
GoldElement either(GoldElement x, bool is_either, double jump) {
  if (is_either) x.rounding += std::abs(jump) / kUnit;
  return x;
}

/// Adds a term to a sum of which every addition rounds.
void add_term(GoldElement& sum, const GoldElement& term) {
  sum.value += term.value, sum.magnitude += std::abs(term.value) + term.magnitude;
  sum.rounding += std::abs(term.value) + term.rounding;
}

/// exp(-x) - 1 + x near x = 0 cancels in the definition, so that its bound is absolute; as PolicyToken::kl.
GoldElement third(const GoldElement& x) {
  const double below = std::abs(std::expm1(-x.value));
  return {std::expm1(-x.value) + x.value, below * x.magnitude,
          below * x.rounding + kExpUnits * std::exp(-x.value) + std::abs(x.value) + 1};
}
GoldElement third_slope(const GoldElement& x) {
  const double e = std::exp(-x.value), value = -std::expm1(-x.value);
  return {value, e * x.magnitude, e * (x.rounding + kExpUnits) + std::abs(value)};
}

}  // namespace

PolicyTokens::PolicyTokens(PolicyInputs inputs, std::span<const double> attrs)
    : in_(std::move(inputs)), attrs_(attrs), active_(read_mask(in_.mask)) {
  sequences_.resize(static_cast<size_t>(count() / in_.seq));
  for (int64_t i = 0; i < count(); ++i) {
    if (!is_active(i)) continue;
    Sequence& s = sequences_[static_cast<size_t>(i / in_.seq)];
    s.n += 1, n_active_ += 1;
    // The differences are exact or round as much as their sum does.
    const double old = in_.old_logps.at(i);
    GoldElement log_ratio = logp(i);
    log_ratio.value -= old;
    add_term(s.log_ratio, log_ratio);
    if (in_.rollout_logps != nullptr) add_term(s.mismatch, exact(old - in_.rollout_logps->at(i)));
  }
  denom_ = count_for_mean();
}

double PolicyTokens::count_for_mean() const {
  if (in_.denom != nullptr) return in_.denom->at(0);
  double n = 0;
  switch (choice(kAggregation)) {
    case 0:
      n = n_active_;
      break;
    case 3:
      n = static_cast<double>(count());
      break;
    default:
      for (const Sequence& s : sequences_) n += s.n > 0 ? 1 : 0;
  }
  return std::max(n, 1.0);
}

bool PolicyTokens::is_near(const GoldElement& x, double edge) const {
  const double error = kUnit * (in_.growth * x.magnitude + x.rounding);
  return std::abs(x.value - edge) <= error + kUnit * std::abs(edge);
}

GoldElement PolicyTokens::clipped(const GoldElement& x, double low, double high) const {
  const double value = std::clamp(x.value, low, high), edge = value == low ? low : high;
  if (value == x.value) return x;
  return is_near(x, edge) ? GoldElement{value, x.magnitude, x.rounding + std::abs(value)} : rounded(value);
}

PolicyTokens::Held PolicyTokens::held(const GoldElement& x, double limit) const {
  if (limit == 0) return {x};
  return {clipped(x, -limit, limit),
          either(exact(std::abs(x.value) <= limit ? 1 : 0), is_near(x, limit) || is_near(x, -limit), 1)};
}

PolicyTokens::Token PolicyTokens::token(int64_t i) const {
  Token token;
  const Held log_ratio = held(
      choice(kRatioLevel) == 1 ? sequence_of(i).mean(sequence_of(i).log_ratio) : logp(i) + exact(-in_.old_logps.at(i)),
      attr(kRatioClamp));
  const GoldElement ratio = exponential(log_ratio.value), slope = ratio * log_ratio.slope;
  set_objective(i, ratio, slope, token);
  if (token.loss_slope.value == 0 || token.clipped != 0) token.loss_attributes = token.loss.rounding;
  if (in_.rollout_logps != nullptr) weigh(i, token);
  if (in_.ref_logps != nullptr) set_kl(i, ratio, slope, token);
  return token;
}

/// The loss without its weight. At an edge both branches have the same loss, so the branch that a ratio near an edge
/// takes changes only the derivative.
void PolicyTokens::set_objective(int64_t i, const GoldElement& ratio, const GoldElement& slope, Token& token) const {
  const double low = 1 - attr(kClipLow), high = 1 + attr(kClipHigh), a = in_.advantages.at(i), size = std::abs(a);
  const GoldElement inside = clipped(ratio, low, high);
  const bool at_edge = is_near(ratio, low) || is_near(ratio, high);
  if (choice(kObjective) == 1) {
    token.loss_slope = -(inside * exact(a));
    token.loss = token.loss_slope * logp(i);
    token.clipped = inside.value != ratio.value ? 1 : 0, token.may_clip = at_edge ? 1 : 0;
    return;
  }
  const double delta = attr(kDelta);
  const bool is_limited = delta > 0 && ratio.value > delta;
  const GoldElement limited = delta > 0 ? clipped(ratio, -INFINITY, delta) : ratio;
  const GoldElement plain = -(limited * exact(a)), other = -(inside * exact(a));
  const bool is_clipped = other.value > plain.value;
  token.loss = is_clipped ? other : plain;
  // Only the edge on the advantage's side decides between the two.
  const bool at_own_edge = a != 0 && is_near(ratio, a > 0 ? high : low);
  const bool at_delta = delta > 0 && is_near(ratio, delta);
  token.clipped = is_clipped ? 1 : 0, token.may_clip = at_own_edge ? 1 : 0;
  token.loss_slope = is_clipped || is_limited ? exact(0) : -(slope * exact(a));
  token.loss_slope = either(token.loss_slope, at_own_edge || at_delta, size * slope.value);
  const double most = -a * attr(kDualClip);
  if (a < 0 && attr(kDualClip) > 0) {
    token.loss_slope = either(token.loss_slope, is_near(token.loss, most), size * slope.value);
    if (token.loss.value > most) token.loss_slope = either(exact(0), is_near(token.loss, most), size * slope.value);
    token.loss = clipped(token.loss, -INFINITY, most);
  }
}

/// Multiplies the loss by the weight of the mismatch between rollout and old policy.
void PolicyTokens::weigh(int64_t i, Token& token) const {
  const int mode = choice(kIsMode);
  if (mode == 0) return;
  const double low = attr(kIsLow), high = attr(kIsHigh);
  const Sequence& sequence = sequence_of(i);
  const GoldElement own = exponential(rounded(in_.old_logps.at(i) - in_.rollout_logps->at(i)));
  GoldElement weight = own;
  double jump = 0;
  if (mode <= 2) {
    weight = clipped(mode == 1 ? own : exponential(sequence.mismatch), low, high);
  } else {
    const GoldElement judged = mode == 3 ? own : exponential(sequence.mean(sequence.mismatch));
    if (!(judged.value >= low && judged.value <= high)) weight = exact(0);
    if (is_near(judged, low) || is_near(judged, high)) jump = own.value;
  }
  token.loss_jump = std::abs(token.loss.value) * jump;
  token.loss = token.loss * weight;
  const bool truncated = weight.value == low || weight.value == high;
  token.loss_attributes = token.loss_attributes * weight.value + (truncated ? std::abs(token.loss.value) : 0);
  token.loss_slope = token.loss_slope * either(weight, jump != 0, jump);
}

void PolicyTokens::set_kl(int64_t i, const GoldElement& ratio, const GoldElement& slope, Token& token) const {
  const Held x = held(logp(i) + exact(-in_.ref_logps->at(i)), attr(kKlClampIn));
  GoldElement value, derivative;
  switch (choice(kKlEstimator)) {
    case 1:
      value = x.value, derivative = exact(1);
      break;
    case 2:
      value = x.value * x.value * exact(0.5), derivative = x.value;
      break;
    default:
      value = third(x.value), derivative = third_slope(x.value);
  }
  const Held kept = held(value, attr(kKlClampOut));
  token.kl = kept.value, token.kl_slope = derivative * x.slope * kept.slope;
  if (x.slope.value == 0 || kept.slope.value == 0) token.kl_attributes = token.kl.rounding;
  if (choice(kKlGradient) == 1) token.kl_slope = x.value * x.slope;
  if (choice(kKlGradient) != 2) return;
  token.kl_slope = slope * token.kl + ratio * token.kl_slope;
  token.kl = ratio * token.kl, token.kl_attributes *= ratio.value;
}

PolicyTokens::Losses PolicyTokens::losses() const {
  // Tokens of a sequence share its ratio and its weight. Others err alike where their log-probabilities are equal.
  const bool by_sequence = choice(kRatioLevel) == 1 || choice(kIsMode) == 2 || choice(kIsMode) == 4;
  TokenMean of_policy, of_kl, of_entropy, of_clip;
  for (int64_t i = 0; i < count(); ++i) {
    if (!is_active(i)) continue;
    const Token of_token = token(i);
    const int64_t sequence = i / in_.seq;
    const double share = weight(i), key = by_sequence ? static_cast<double>(sequence) : logp(i).value;
    const auto lean = [&](const std::vector<double>& of) { return of.empty() ? 0 : of[static_cast<size_t>(i)]; };
    const double of_logp = lean(in_.logps_lean);
    of_policy.add(of_token.loss, share, key, of_token.loss_attributes + std::abs(of_token.loss_slope.value) * of_logp,
                  of_token.loss_jump / kUnit);
    of_kl.add(of_token.kl, share, key, of_token.kl_attributes + std::abs(of_token.kl_slope.value) * of_logp);
    of_clip.add(exact(of_token.clipped), 1, key, 0, of_token.may_clip / kUnit);
    if (!in_.entropy.empty()) of_entropy.add(in_.entropy[static_cast<size_t>(i)], share, key, lean(in_.entropy_lean));
  }
  const GoldElement policy = of_policy.over(denom_), kl = of_kl.over(denom_);
  GoldElement loss = policy;
  if (attr(kKlCoef) != 0) loss = loss + kl * rounded(attr(kKlCoef));
  if (attr(kEntropyCoef) != 0) loss = loss + of_entropy.over(denom_) * rounded(-attr(kEntropyCoef));
  return {loss, policy, kl, of_clip.over(std::max(n_active_, 1.0))};
}

GoldElement PolicyTokens::weighted(int64_t i, double g, const GoldElement& derivative) const {
  const double factor = g / denom_ * weight(i);
  return {factor * derivative.value, std::abs(factor) * derivative.magnitude,
          std::abs(factor) * (derivative.rounding + 4 * std::abs(derivative.value))};
}

GoldElement PolicyTokens::by_logp(int64_t i, double g) const {
  if (!is_active(i)) return {0, 0, 0};
  const Token of_token = token(i);
  return weighted(i, g, of_token.loss_slope + of_token.kl_slope * rounded(attr(kKlCoef)));
}

GoldElement PolicyTokens::by_entropy(int64_t i, double g) const {
  return is_active(i) ? weighted(i, g, rounded(-attr(kEntropyCoef))) : GoldElement{0, 0, 0};
}

void validate_policy_attrs(const CaseSizes& sizes) {
  const auto refuse = [&](PolicyAttr attr, const std::string& expected) {
    std::string flag = fmt::format("--{}", kPolicyAttrs[attr].name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    throw InputError(flag, fmt::format("expected {}, got {}", expected, sizes.attrs[attr]),
                     std::string(kPolicyAttrs[attr].meaning));
  };
  const auto choose = [&](PolicyAttr attr, int least, int most) {
    const double value = sizes.attrs[attr];
    if (!(value >= least && value <= most) || value != std::floor(value))
      refuse(attr, fmt::format("an integer from {} to {}", least, most));
  };
  choose(kRatioLevel, 0, 1), choose(kObjective, 0, 1), choose(kIsMode, 0, 4), choose(kKlEstimator, 1, 3);
  choose(kKlGradient, 0, 2), choose(kAggregation, 0, 3);
  for (const PolicyAttr attr :
       {kClipLow, kClipHigh, kDualClip, kDelta, kIsLow, kIsHigh, kRatioClamp, kKlClampIn, kKlClampOut})
    if (!(sizes.attrs[attr] >= 0)) refuse(attr, "0 or a number above it");
}

void fill_policy_batch(const FillArgs& args, const std::vector<double>& logps) {
  Tensor& old = *args.find("old_logps");
  Tensor *const ref = args.find("ref_logps"), *const rollout = args.find("rollout_logps");
  for (int64_t i = 0; i < old.count(); ++i) {
    const auto at = static_cast<uint64_t>(i);
    const double lp = logps[at], far = args.uniform("far", at);
    const double drift = 0.2 * args.normal("drift", at) + (far < 0.02 ? -12 : far > 0.98 ? 3 : 0);
    old.set(i, lp - drift);
    if (ref != nullptr) ref->set(i, lp - 0.3 * args.normal("reference", at));
    const double gap = args.uniform("gap", at) < 0.1 ? 0.7 : 1e-3;
    if (rollout != nullptr) rollout->set(i, lp - drift - gap * args.normal("rollout", at));
  }
  if (Tensor* const denom = args.find("denom"); denom != nullptr)
    denom->set(0, 1.5 * static_cast<double>(old.count()) + 1);
}

void plant_masked_policy_tokens(const FillArgs& args) {
  const std::vector<char> active = read_mask(*args.find("mask"));
  for (int64_t i = 0; i < std::ssize(active); ++i) {
    if (active[static_cast<size_t>(i)] != 0) continue;
    const uint64_t kind = payload_kind(args, static_cast<uint64_t>(i));
    for (const char* name : {"logps", "old_logps", "advantages", "ref_logps", "rollout_logps", "entropy"}) {
      constexpr double kLargest = 24;  // exp of a difference must stay finite in fp32
      if (Tensor* const tensor = args.find(name); tensor != nullptr) plant_payload(args, *tensor, 1, i, kind, kLargest);
    }
  }
}

}  // namespace checkop
