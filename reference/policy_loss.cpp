// SPDX-License-Identifier: Apache-2.0
// policy_loss: the losses of PPO and its kin over log-probabilities, with their gradient.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "gold_element.hpp"
#include "left_out.hpp"
#include "operator/operator.hpp"
#include "policy.hpp"
#include "softmax.hpp"

namespace checkop {

extern const Emulation kPolicyLossForward, kPolicyLossBackward;  // emulation/policy_loss.cpp

namespace {

constexpr std::string_view kToken = "batch seq";

constexpr TensorSpec of_tokens(std::string_view name, bool optional, bool constant) {
  return {name, kToken, Fill::normal, "", DType::f32, optional, constant};
}
constexpr TensorSpec kLogps = of_tokens("logps", false, false), kOldLogps = of_tokens("old_logps", false, true),
                     kAdvantages = of_tokens("advantages", false, true), kRefLogps = of_tokens("ref_logps", true, true),
                     kRolloutLogps = of_tokens("rollout_logps", true, true),
                     kEntropy = of_tokens("entropy", true, false);
constexpr TensorSpec kMask{"mask", kToken, Fill::mask, "", DType::u8};
constexpr TensorSpec kDenom{"denom", "", Fill::normal, "", DType::f32, /*optional=*/true, /*constant=*/true};
constexpr TensorSpec kGradLoss{"grad_loss", "", Fill::upstream, "", DType::f32};

enum Input : int { kOfLogps, kOfOld, kOfAdvantages, kOfMask, kOfRef, kOfRollout, kOfEntropy, kOfDenom, kOfGrad };
constexpr std::array kForwardIn{kLogps, kOldLogps, kAdvantages, kMask, kRefLogps, kRolloutLogps, kEntropy, kDenom};
constexpr std::array kBackwardIn{kLogps,        kOldLogps, kAdvantages, kMask,    kRefLogps,
                                 kRolloutLogps, kEntropy,  kDenom,      kGradLoss};

constexpr OutputSpec of_scalar(std::string_view name) {
  return {{name, "", Fill::normal, "", DType::f32}, Numerics::composite, "batch*seq"};
}
constexpr OutputSpec kKlOutput{
    {"kl", "", Fill::normal, "", DType::f32, /*optional=*/true, false, "", /*follows=*/kRefLogps.name},
    Numerics::composite,
    "batch*seq"};
constexpr std::array kForwardOut{of_scalar("loss"), of_scalar("policy_loss"), kKlOutput, of_scalar("clip_fraction")};
constexpr std::array kBackwardOut{
    OutputSpec{{"dlogps", kToken, Fill::normal, "", DType::f32}, Numerics::composite, "batch*seq"},
    OutputSpec{{"dentropy", kToken, Fill::normal, "", DType::f32, /*optional=*/true}, Numerics::composite, "batch*seq"},
};

enum Attr : size_t {
  kRatioLevel,
  kObjective,
  kClipLow,
  kClipHigh,
  kDualClip,
  kDelta,
  kIsMode,
  kIsLow,
  kIsHigh,
  kKlEstimator,
  kKlCoef,
  kKlGradient,
  kRatioClamp,
  kKlClampIn,
  kKlClampOut,
  kEntropyCoef,
  kAggregation
};
constexpr std::array kAttrs{
    AttrSpec{"ratio_level", 0, "the ratio is 0: each token's own, 1: the sequence's, its geometric mean (GSPO)"},
    AttrSpec{"objective", 0, "0: PPO, the larger of the losses of the ratio and of the clipped ratio; 1: CISPO"},
    AttrSpec{"clip_low", 0.2, "the ratio is clipped below at 1 - clip_low"},
    AttrSpec{"clip_high", 0.2, "the ratio is clipped above at 1 + clip_high"},
    AttrSpec{"dual_clip", 0, "PPO: with a negative advantage A the loss is at most -A dual_clip; 0: no limit"},
    AttrSpec{"delta", 0, "PPO: the ratio that is not clipped is at most delta; 0: no limit"},
    AttrSpec{
        "is_mode", 0,
        "weight by w = exp(old_logps - rollout_logps): 0 none, 1 each token's truncated, 2 the sequence's truncated, "
        "3 each token's, or 0 outside of the limits, 4 each token's, or 0 where the geometric mean is outside"},
    AttrSpec{"is_low", 0, "lower limit of is_mode"},
    AttrSpec{"is_high", 2, "upper limit of is_mode"},
    AttrSpec{"kl_estimator", 3, "of x = logps - ref_logps: 1: x, 2: x^2/2, 3: exp(-x) - 1 + x"},
    AttrSpec{"kl_coef", 0, "weight of the KL estimate in the loss"},
    AttrSpec{"kl_gradient", 0, "gradient of the KL estimate: 0 its own, 1 that of x^2/2, 2 of ratio times estimate"},
    AttrSpec{"ratio_clamp", 0, "logarithms of ratios beyond it are set to it, without gradient; 0: none are"},
    AttrSpec{"kl_clamp_in", 0, "x beyond it is set to it, without gradient; 0: none is"},
    AttrSpec{"kl_clamp_out", 0, "KL estimates beyond it are set to it, without gradient; 0: none are"},
    AttrSpec{"entropy_coef", 0, "weight of the entropy that the loss is reduced by"},
    AttrSpec{
        "aggregation", 0,
        "mean 0: over tokens, 1: over sequences of their sums, 2: over sequences of their means, 3: over all tokens, "
        "masked ones included"},
};

// --- values with errors of first order
// ---------------------------------------------------------------------------------

constexpr double kUnit = 0x1p-24;  // of fp32, in which all of this is computed

GoldElement exact(double value) { return {value, 0, 0}; }
GoldElement rounded(double value) { return {value, 0, std::abs(value)}; }  // an attribute in fp32, or a difference

GoldElement operator+(const GoldElement& a, const GoldElement& b) {
  const double value = a.value + b.value;
  return {value, a.magnitude + b.magnitude, a.rounding + b.rounding + std::abs(value)};
}
GoldElement operator-(const GoldElement& a) { return {-a.value, a.magnitude, a.rounding}; }
GoldElement exponential(const GoldElement& x) {
  const double value = std::exp(x.value);
  return {value, value * x.magnitude, value * (x.rounding + kExpUnits + kArgumentUnits * std::abs(x.value))};
}

/// What a value may be off by in fp32: with a chain of 1024 and lambda 6, as for the branches of grpo_loss.
double error_of(const GoldElement& x) { return kUnit * (192 * x.magnitude + x.rounding); }
bool is_near(const GoldElement& x, double edge) {
  return std::abs(x.value - edge) <= error_of(x) + kUnit * std::abs(edge);
}

/// x within [low, high]; it errs as x does, unless it is well outside.
GoldElement clipped(const GoldElement& x, double low, double high) {
  const double value = std::clamp(x.value, low, high), edge = value == low ? low : high;
  if (value == x.value) return x;
  return is_near(x, edge) ? GoldElement{value, x.magnitude, x.rounding + std::abs(value)} : rounded(value);
}
/// A value that an equally accurate kernel may have moved by `jump`, since it took the other branch.
GoldElement either(GoldElement x, bool is_either, double jump) {
  if (is_either) x.rounding += std::abs(jump) / kUnit;
  return x;
}

// --- one token
// -----------------------------------------------------------------------------------------------------------

/// Sums over the active tokens of a sequence.
struct Sequence {
  double n = 0;
  GoldElement log_ratio{0, 0, 0}, mismatch{0, 0, 0};  ///< sums of logps - old_logps and of old_logps - rollout_logps

  static void add(GoldElement& sum, double term) {
    sum.value += term, sum.magnitude += std::abs(term), sum.rounding += std::abs(term);
  }
  GoldElement mean(const GoldElement& sum) const {
    return {sum.value / n, sum.magnitude / n, (sum.rounding + std::abs(sum.value)) / n};
  }
};

/// Loss and KL estimate of a token, their derivatives by its log-probability, and whether its ratio is clipped.
struct Token {
  GoldElement loss, loss_slope, kl, kl_slope, clipped;
};

struct Settings {
  std::span<const double> attrs;
  double operator[](Attr attr) const { return attrs[attr]; }
  int choice(Attr attr) const { return static_cast<int>(attrs[attr]); }
};

/// A logarithm held within +-limit, or any if limit is 0; `slope` is 1 where it is free and 0 where it is held.
struct Held {
  GoldElement value, slope{1, 0, 0};

  Held(const GoldElement& x, double limit) : value(x) {
    if (limit == 0) return;
    value = clipped(x, -limit, limit);
    slope = either(exact(std::abs(x.value) <= limit ? 1 : 0), is_near(x, limit) || is_near(x, -limit), 1);
  }
};

/// Computes tokens from the stored inputs.
class Tokens {
 public:
  explicit Tokens(const GoldArgs& args)
      : args_(args), set_{args.attrs}, active_(read_mask(args.in(kOfMask))), seq_(args.in(kOfLogps).shape.back()) {
    const auto rows = args.in(kOfLogps).shape[0];
    sequences_.resize(static_cast<size_t>(rows));
    for (int64_t i = 0; i < args.in(kOfLogps).count(); ++i) {
      if (!is_active(i)) continue;
      Sequence& s = sequences_[static_cast<size_t>(i / seq_)];
      s.n += 1;
      Sequence::add(s.log_ratio, of(kOfLogps, i) - of(kOfOld, i));
      if (args.has(kOfRollout)) Sequence::add(s.mismatch, of(kOfOld, i) - of(kOfRollout, i));
    }
  }

  int64_t count() const { return std::ssize(active_); }
  bool is_active(int64_t i) const { return active_[static_cast<size_t>(i)] != 0; }
  double of(Input input, int64_t i) const { return args_.in(input).at(i); }
  double n_active() const {
    double n = 0;
    for (const Sequence& s : sequences_) n += s.n;
    return n;
  }

  /// a: the weight of token i in the means, before the division by denom().
  double weight(int64_t i) const { return set_.choice(kAggregation) == 2 ? 1 / sequence_of(i).n : 1; }
  double denom() const {
    if (args_.has(kOfDenom)) return args_.in(kOfDenom).at(0);
    double n = 0;
    switch (set_.choice(kAggregation)) {
      case 0:
        n = n_active();
        break;
      case 3:
        n = static_cast<double>(count());
        break;
      default:
        for (const Sequence& s : sequences_) n += s.n > 0 ? 1 : 0;
    }
    return std::max(n, 1.0);
  }

  Token operator()(int64_t i) const {
    Token token{};
    const Held log_ratio(set_.choice(kRatioLevel) == 1 ? sequence_of(i).mean(sequence_of(i).log_ratio)
                                                       : rounded(of(kOfLogps, i) - of(kOfOld, i)),
                         set_[kRatioClamp]);
    const GoldElement ratio = exponential(log_ratio.value), slope = ratio * log_ratio.slope;
    set_objective(i, ratio, slope, token);
    if (args_.has(kOfRollout)) weigh(i, token);
    if (args_.has(kOfRef)) set_kl(i, ratio, slope, token);
    return token;
  }

 private:
  const Sequence& sequence_of(int64_t i) const { return sequences_[static_cast<size_t>(i / seq_)]; }

  /// The loss without its weight. The branch that a ratio takes near an edge, where both have the same loss, changes
  /// the derivative alone.
  void set_objective(int64_t i, const GoldElement& ratio, const GoldElement& slope, Token& token) const {
    const double low = 1 - set_[kClipLow], high = 1 + set_[kClipHigh], a = of(kOfAdvantages, i), size = std::abs(a);
    const GoldElement inside = clipped(ratio, low, high);
    const bool at_edge = is_near(ratio, low) || is_near(ratio, high);
    if (set_.choice(kObjective) == 1) {
      token.loss_slope = -(inside * exact(a));
      token.loss = token.loss_slope * exact(of(kOfLogps, i));
      token.clipped = either(exact(inside.value != ratio.value ? 1 : 0), at_edge, 1);
      return;
    }
    const double delta = set_[kDelta];
    const bool is_limited = delta > 0 && ratio.value > delta;
    const GoldElement limited = delta > 0 ? clipped(ratio, -INFINITY, delta) : ratio;
    const GoldElement plain = -(limited * exact(a)), other = -(inside * exact(a));
    const bool is_clipped = other.value > plain.value;
    token.loss = is_clipped ? other : plain;
    // Only the edge on the advantage's side decides between the two.
    const bool at_own_edge = a != 0 && is_near(ratio, a > 0 ? high : low);
    const bool at_delta = delta > 0 && is_near(ratio, delta);
    token.clipped = either(exact(is_clipped ? 1 : 0), at_own_edge, 1);
    token.loss_slope = is_clipped || is_limited ? exact(0) : -(slope * exact(a));
    token.loss_slope = either(token.loss_slope, at_own_edge || at_delta, size * slope.value);
    const double most = -a * set_[kDualClip];
    if (a < 0 && set_[kDualClip] > 0) {
      token.loss_slope = either(token.loss_slope, is_near(token.loss, most), size * slope.value);
      if (token.loss.value > most) token.loss_slope = either(exact(0), is_near(token.loss, most), size * slope.value);
      token.loss = clipped(token.loss, -INFINITY, most);
    }
  }

  /// Multiplies the loss by the weight of the mismatch between rollout and old policy.
  void weigh(int64_t i, Token& token) const {
    const int mode = set_.choice(kIsMode);
    if (mode == 0) return;
    const double low = set_[kIsLow], high = set_[kIsHigh];
    const Sequence& sequence = sequence_of(i);
    const GoldElement own = exponential(rounded(of(kOfOld, i) - of(kOfRollout, i)));
    GoldElement weight = own;
    if (mode <= 2) {
      weight = clipped(mode == 1 ? own : exponential(sequence.mismatch), low, high);
    } else {
      const GoldElement judged = mode == 3 ? own : exponential(sequence.mean(sequence.mismatch));
      if (!(judged.value >= low && judged.value <= high)) weight = exact(0);
      weight = either(weight, is_near(judged, low) || is_near(judged, high), own.value);
    }
    token.loss = token.loss * weight;
    token.loss_slope = token.loss_slope * weight;
  }

  /// exp(-x) - 1 + x near x = 0 cancels in the definition, so that its bound is absolute; as PolicyToken::kl.
  static GoldElement third(const GoldElement& x) {
    const double below = std::abs(std::expm1(-x.value));
    return {std::expm1(-x.value) + x.value, below * x.magnitude,
            below * x.rounding + kExpUnits * std::exp(-x.value) + std::abs(x.value) + 1};
  }
  static GoldElement third_slope(const GoldElement& x) {
    const double e = std::exp(-x.value), value = -std::expm1(-x.value);
    return {value, e * x.magnitude, e * (x.rounding + kExpUnits) + std::abs(value)};
  }

  void set_kl(int64_t i, const GoldElement& ratio, const GoldElement& slope, Token& token) const {
    const Held x(rounded(of(kOfLogps, i) - of(kOfRef, i)), set_[kKlClampIn]);
    GoldElement value, derivative;
    switch (set_.choice(kKlEstimator)) {
      case 1:
        value = x.value, derivative = exact(1);
        break;
      case 2:
        value = x.value * x.value * exact(0.5), derivative = x.value;
        break;
      default:
        value = third(x.value), derivative = third_slope(x.value);
    }
    const Held held(value, set_[kKlClampOut]);
    token.kl = held.value, token.kl_slope = derivative * x.slope * held.slope;
    if (set_.choice(kKlGradient) == 1) token.kl_slope = x.value * x.slope;
    if (set_.choice(kKlGradient) != 2) return;
    token.kl_slope = slope * token.kl + ratio * token.kl_slope;
    token.kl = ratio * token.kl;
  }

  const GoldArgs& args_;
  Settings set_;
  std::vector<char> active_;
  int64_t seq_;
  std::vector<Sequence> sequences_;
};

/// The mean of terms, each with its weight: its chain of additions, and three roundings a term: of the weight, of its
/// product, and of the addition.
struct Mean {
  GoldElement sum{0, 0, 0};

  void add(const GoldElement& term, double weight) {
    sum.value += weight * term.value;
    sum.magnitude += weight * (term.magnitude + std::abs(term.value));
    sum.rounding += weight * (term.rounding + 3 * std::abs(term.value));
  }
  GoldElement over(double denom) const {
    return {sum.value / denom, sum.magnitude / denom, (sum.rounding + 2 * std::abs(sum.value)) / denom};
  }
};

/// Gold of policy_loss.
///   in:  logps, old_logps, advantages, mask[batch, seq]; optional ref_logps, rollout_logps, entropy[batch, seq], denom
///   out: loss, policy_loss, kl, clip_fraction: scalars; kl with the input ref_logps
///   With r = exp(logps - old_logps), or the exponential of its mean over the sequence's active tokens, A the
///   advantage, c = clip(r, 1 - clip_low, 1 + clip_high) and w the weight of is_mode:
///     PPO    L = w max(-A min(r, delta), -A c), at most -A dual_clip where A < 0      CISPO  L = -w c A logps
///   policy_loss = sum of a L,  kl = sum of a k,  loss = policy_loss + kl_coef kl - entropy_coef sum of a entropy
///   clip_fraction = share of the active tokens where the clipped loss is the larger; CISPO: where c is not r
///   a = 1/denom, or 1/(n denom) for means over sequences of n active tokens. Without the input denom it is the number
///   of active tokens, of sequences that have one, or of all tokens, and 1 at least.
/// Where the mask is 0 nothing is read. Without active tokens all outputs are 0.
/// Sources: PPO (Schulman et al. 2017), dual clip (Ye et al. 2020), GSPO (arXiv 2507.18071), CISPO (arXiv 2506.13585),
/// DAPO (arXiv 2503.14476), estimators of KL (Schulman 2020).
void forward(const GoldArgs& args) {
  const Tokens tokens(args);
  const Settings set{args.attrs};
  const double denom = tokens.denom();
  Mean policy, kl, loss, clip;
  for (int64_t i = 0; i < tokens.count(); ++i) {
    if (!tokens.is_active(i)) continue;
    const Token token = tokens(i);
    const double weight = tokens.weight(i);
    policy.add(token.loss, weight);
    kl.add(token.kl, weight);
    clip.add(token.clipped, 1);
    loss.add(token.loss, weight);
    loss.add(token.kl * rounded(set[kKlCoef]), weight);
    if (args.has(kOfEntropy)) loss.add(exact(tokens.of(kOfEntropy, i)) * rounded(-set[kEntropyCoef]), weight);
  }
  const std::array results{loss.over(denom), policy.over(denom), kl.over(denom),
                           clip.over(std::max(tokens.n_active(), 1.0))};
  for (int output = 0; output < 4; ++output) {
    if (output == 2 && !args.has(kOfRef)) continue;
    const GoldElement& e = results[static_cast<size_t>(output)];
    args.sink({output, 0, 1, 1, &e.value, &e.magnitude, &e.rounding});
  }
}

/// Gold of policy_loss's gradient. The outputs policy_loss, kl and clip_fraction have no upstream gradient.
///   in:  as forward, then grad_loss, a scalar     out: dlogps, and dentropy with the input entropy: [batch, seq]
///   dlogps = g a (dL/dlogps + kl_coef dk/dlogps),  dentropy = -g a entropy_coef;  0 where the mask is 0
///   The ratio of a sequence is differentiated as that of each of its tokens. Weights w, and CISPO's c, are constants.
///   At an edge where either branch may be taken the bound includes the difference, as `rounding` over the unit
///   roundoff.
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const Tokens tokens(args);
  const Settings set{args.attrs};
  const double g = args.in(kOfGrad).at(0) / tokens.denom();
  const int64_t seq = args.in(kOfLogps).shape.back();
  for (int64_t first = 0; first < tokens.count(); first += seq) {
    for (int output = 0; output < (args.has(kOfEntropy) ? 2 : 1); ++output) {
      std::vector<double> value, magnitude, rounding;
      for (int64_t i = first; i < first + seq; ++i) {
        GoldElement e{0, 0, 0};
        if (tokens.is_active(i)) {
          const Token token = tokens(i);
          e = output == 0 ? token.loss_slope + token.kl_slope * rounded(set[kKlCoef]) : rounded(-set[kEntropyCoef]);
          const double factor = g * tokens.weight(i);
          e = {factor * e.value, std::abs(factor) * e.magnitude,
               std::abs(factor) * (e.rounding + 4 * std::abs(e.value))};
        }
        value.push_back(e.value), magnitude.push_back(e.magnitude), rounding.push_back(e.rounding);
      }
      args.sink({output, first / seq, 1, seq, value.data(), magnitude.data(), rounding.data()});
    }
  }
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kPolicyLossForward},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kPolicyLossBackward}};

void validate(const CaseSizes& sizes) {
  const auto refuse = [&](Attr attr, const std::string& expected) {
    std::string flag = fmt::format("--{}", kAttrs[attr].name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    throw InputError(flag, fmt::format("expected {}, got {}", expected, sizes.attrs[attr]),
                     std::string(kAttrs[attr].meaning));
  };
  const auto choose = [&](Attr attr, int least, int most) {
    const double value = sizes.attrs[attr];
    if (!(value >= least && value <= most) || value != std::floor(value))
      refuse(attr, fmt::format("an integer from {} to {}", least, most));
  };
  choose(kRatioLevel, 0, 1), choose(kObjective, 0, 1), choose(kIsMode, 0, 4), choose(kKlEstimator, 1, 3);
  choose(kKlGradient, 0, 2), choose(kAggregation, 0, 3);
  for (const Attr attr :
       {kClipLow, kClipHigh, kDualClip, kDelta, kIsLow, kIsHigh, kRatioClamp, kKlClampIn, kKlClampOut})
    if (!(sizes.attrs[attr] >= 0)) refuse(attr, "0 or a number above it");
}

/// Log-probabilities of a policy that has moved since its tokens were sampled: ratios of which about a third lie beyond
/// a clip of 0.2, some far ones, a reference some way off, and a rollout that differs by rounding, with outliers.
/// Masked tokens hold payloads.
void refine(const FillArgs& args) {
  Tensor &logps = *args.find("logps"), &old = *args.find("old_logps");
  Tensor *const ref = args.find("ref_logps"), *const rollout = args.find("rollout_logps");
  for (int64_t i = 0; i < logps.count(); ++i) {
    const auto at = static_cast<uint64_t>(i);
    const double lp = -4 * args.uniform("logps", at), far = args.uniform("far", at);
    const double drift = 0.2 * args.normal("drift", at) + (far < 0.02 ? -12 : far > 0.98 ? 3 : 0);
    logps.set(i, lp), old.set(i, lp - drift);
    if (ref != nullptr) ref->set(i, lp - 0.3 * args.normal("reference", at));
    const double gap = args.uniform("gap", at) < 0.1 ? 0.7 : 1e-3;
    if (rollout != nullptr) rollout->set(i, lp - drift - gap * args.normal("rollout", at));
  }
  if (Tensor* const entropy = args.find("entropy"); entropy != nullptr) {
    for (int64_t i = 0; i < entropy->count(); ++i)
      entropy->set(i, 3 * args.uniform("entropy", static_cast<uint64_t>(i)));
  }
  const std::vector<char> active = read_mask(*args.find("mask"));
  if (Tensor* const denom = args.find("denom"); denom != nullptr)
    denom->set(0, 1.5 * static_cast<double>(active.size()) + 1);
  for (int64_t i = 0; i < std::ssize(active); ++i) {
    if (active[static_cast<size_t>(i)] != 0) continue;
    const uint64_t kind = payload_kind(args, static_cast<uint64_t>(i));
    for (const char* name : {"logps", "old_logps", "advantages", "ref_logps", "rollout_logps", "entropy"}) {
      constexpr double kLargest = 24;  // exp of a difference must stay finite in fp32
      if (Tensor* const tensor = args.find(name); tensor != nullptr) plant_payload(args, *tensor, 1, i, kind, kLargest);
    }
  }
}

}  // namespace

extern const Operator kPolicyLoss;
constexpr Operator kPolicyLoss{
    "policy_loss",
    "logprob",
    "loss = mean of max(-A r, -A clip(r)) + kl_coef * mean kl - entropy_coef * mean entropy over "
    "active tokens, r = exp(logps - old_logps); masked tokens are left out",
    "",
    kAttrs,
    kPasses,
    validate,
    refine,
    /*parallel_dim=*/"",
    /*left_out=*/"masked tokens"};

}  // namespace checkop
