// SPDX-License-Identifier: Apache-2.0
// The losses of tokens with log-probabilities as kernels compute them, and the faults in them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "emulation/common.hpp"
#include "policy_tokens.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kRatioLeftOut{"ratio_left_out", "the gradient lacks the ratio"};
inline constexpr FaultSpec kLossRatioInverted{"ratio_inverted", "the ratio is that of the old policy to the policy"};
inline constexpr FaultSpec kClipIgnored{"clip_ignored", "the ratio is not clipped"};
inline constexpr FaultSpec kClipSymmetric{"clip_symmetric", "the upper edge has the distance of the lower one"};
inline constexpr FaultSpec kClipBothSides{"clip_both_sides", "the ratio is clipped whatever the sign of the advantage"};
inline constexpr FaultSpec kBranchSwapped{"branch_swapped", "the smaller of the two losses is taken"};
inline constexpr FaultSpec kDualClipIgnored{"dual_clip_ignored", "negative advantages have no largest loss"};
inline constexpr FaultSpec kDualClipOfAll{"dual_clip_of_all", "positive advantages have a largest loss, too"};
inline constexpr FaultSpec kDualClipGradient{"dual_clip_gradient",
                                             "the largest loss of a negative advantage has a slope"};
inline constexpr FaultSpec kDeltaOfNegative{"delta_of_negative", "delta limits the ratio of negative advantages alone"};
inline constexpr FaultSpec kClampsAbove{"clamps_above",
                                        "ratio_clamp and the clamps of the KL estimate hold from above alone"};
inline constexpr FaultSpec kHeldRatioSlope{"held_ratio_slope", "a ratio that ratio_clamp holds has a gradient"};
inline constexpr FaultSpec kDeltaIgnored{"delta_ignored", "the ratio has no upper limit"};
inline constexpr FaultSpec kAdvantageSign{"advantage_sign", "the loss has the wrong sign"};
inline constexpr FaultSpec kSequenceSum{"sequence_sum",
                                        "the ratio of a sequence is that of its probability, not of its mean"};
inline constexpr FaultSpec kMeanOverPadding{"mean_over_padding",
                                            "means over a sequence are divided by its padded length"};
inline constexpr FaultSpec kMismatchLeftOut{"weight_left_out", "the mismatch of the rollout has no weight", "accuracy",
                                            "", "rollout_logps"};
inline constexpr FaultSpec kWeightNotTruncated{"weight_not_truncated", "the weight of the mismatch has no limits",
                                               "accuracy", "", "rollout_logps"};
inline constexpr FaultSpec kWeightNotRaised{"weight_not_raised", "the weight of the mismatch has no lower limit",
                                            "accuracy", "", "rollout_logps"};
inline constexpr FaultSpec kWeightUnasked{"weight_unasked", "the mismatch has a weight though is_mode is 0", "accuracy",
                                          "", "rollout_logps"};
inline constexpr FaultSpec kWeightInverted{"weight_inverted", "the weight is that of the rollout to the old policy",
                                           "accuracy", "", "rollout_logps"};
inline constexpr FaultSpec kKlLeftOut{"kl_left_out", "the KL estimate is not added", "accuracy", "", "ref_logps"};
inline constexpr FaultSpec kLossKlReversed{"kl_reversed", "policy and reference change places in the KL estimate",
                                           "accuracy", "", "ref_logps"};
inline constexpr FaultSpec kKlNext{"kl_next", "the KL estimate is the next one of the three", "accuracy", "",
                                   "ref_logps"};
inline constexpr FaultSpec kKlOfNaiveGradient{"kl_of_naive_gradient", "the gradient of the KL estimate is 1",
                                              "accuracy", "", "ref_logps"};
inline constexpr FaultSpec kEntropyAdded{"entropy_added", "the entropy is added to the loss", "accuracy", "",
                                         "entropy"};
inline constexpr FaultSpec kEntropyLeftOut{"entropy_left_out", "the entropy has no part in the loss", "accuracy", "",
                                           "entropy"};
inline constexpr FaultSpec kDenomIgnored{"denom_ignored", "sums are divided by the batch's own count", "accuracy", "",
                                         "denom"};
inline constexpr FaultSpec kOtherMean{"other_mean", "the mean is the next one of the four"};
inline constexpr FaultSpec kMaskedCounted{"mask_ignored", "masked tokens count like the others", "nonfinite"};
inline constexpr FaultSpec kMaskedTokenMultiplied{"masked_multiplied",
                                                  "a masked token is computed, then multiplied by 0", "nonfinite"};
// Not seen in every batch of 4096 tokens, so it needs several; those are of fp32.
inline constexpr FaultSpec kTokenRounded{"token_rounded", "the ratio of one token in a thousand is rounded to bf16",
                                         "accuracy", "fp32"};

inline constexpr std::array kPolicyFaults{
    kLossRatioInverted, kClipIgnored,     kClipSymmetric,         kClipBothSides,  kBranchSwapped,
    kDualClipIgnored,   kDualClipOfAll,   kDeltaIgnored,          kAdvantageSign,  kSequenceSum,
    kMeanOverPadding,   kMismatchLeftOut, kWeightNotTruncated,    kWeightInverted, kKlLeftOut,
    kLossKlReversed,    kKlNext,          kEntropyAdded,          kEntropyLeftOut, kDenomIgnored,
    kOtherMean,         kMaskedCounted,   kMaskedTokenMultiplied, kTokenLost,      kTokenAdvantage,
    kDeltaOfNegative,   kClampsAbove,     kWeightNotRaised,       kWeightUnasked};
inline constexpr std::array kPolicyGradientFaults{
    kRatioLeftOut,          kLossRatioInverted,  kClipIgnored,     kClipSymmetric, kClipBothSides,  kBranchSwapped,
    kDualClipIgnored,       kDualClipOfAll,      kDeltaIgnored,    kAdvantageSign, kSequenceSum,    kMeanOverPadding,
    kMismatchLeftOut,       kWeightNotTruncated, kWeightInverted,  kKlLeftOut,     kLossKlReversed, kKlNext,
    kKlOfNaiveGradient,     kEntropyAdded,       kEntropyLeftOut,  kDenomIgnored,  kOtherMean,      kMaskedCounted,
    kMaskedTokenMultiplied, kDualClipGradient,   kDeltaOfNegative, kClampsAbove,   kHeldRatioSlope, kWeightNotRaised,
    kWeightUnasked};

struct LossToken {
  float loss = 0, slope = 0, kl = 0, kl_slope = 0;
  bool clipped = false;
};

/// What the loss is computed from. Empty where absent.
struct PolicyBatch {
  std::vector<float> logps, old_logps, advantages;
  std::vector<int64_t> mask;
  std::vector<float> ref_logps, rollout_logps, entropy, denom;
  int64_t seq;
};

class PolicyTokens {
 public:
  PolicyTokens(const Arithmetic& arithmetic, std::span<const double> attrs, PolicyBatch batch)
      : a_(arithmetic), attrs_(attrs), in_(std::move(batch)) {
    for (int64_t row = 0; row < count() / in_.seq; ++row) {
      const auto sum = [&](const std::vector<float>& x, const std::vector<float>& y) {
        return a_.sum(in_.seq,
                      [&](int64_t j) { return takes(row * in_.seq + j) ? x[at(row, j)] - y[at(row, j)] : 0.0F; });
      };
      float n = 0;
      for (int64_t j = 0; j < in_.seq; ++j) n += takes(row * in_.seq + j) ? 1 : 0;
      n_.push_back(a_.has(kMeanOverPadding.name) ? static_cast<float>(in_.seq) : n);
      log_ratio_.push_back(sum(in_.logps, in_.old_logps));
      mismatch_.push_back(in_.rollout_logps.empty() ? 0 : sum(in_.old_logps, in_.rollout_logps));
    }
    denom_ = count_for_mean();
  }

  int64_t count() const { return std::ssize(in_.mask); }
  bool is_active(int64_t i) const { return in_.mask[static_cast<size_t>(i)] != 0; }
  /// Whether token i is computed, and by what its terms are multiplied.
  bool takes(int64_t i) const {
    return is_active(i) || a_.has(kMaskedCounted.name) || a_.has(kMaskedTokenMultiplied.name);
  }
  float scale(int64_t i) const { return is_active(i) || !a_.has(kMaskedTokenMultiplied.name) ? 1 : 0; }
  float entropy(int64_t i) const { return in_.entropy.empty() ? 0 : in_.entropy[static_cast<size_t>(i)]; }
  float attr(PolicyAttr which) const { return static_cast<float>(attrs_[which]); }
  int choice(PolicyAttr which) const { return static_cast<int>(attrs_[which]); }
  int mean() const { return (choice(kAggregation) + (a_.has(kOtherMean.name) ? 1 : 0)) % 4; }
  float entropy_coef() const {
    if (a_.has(kEntropyLeftOut.name)) return 0;
    return a_.has(kEntropyAdded.name) ? -attr(kEntropyCoef) : attr(kEntropyCoef);
  }
  float kl_coef() const { return a_.has(kKlLeftOut.name) ? 0 : attr(kKlCoef); }

  /// The loss of a token, with its part of the KL estimates and of the entropy.
  float loss(const LossToken& token, int64_t i) const {
    return token.loss + kl_coef() * token.kl - entropy_coef() * entropy(i);
  }
  /// The weighted mean of term(token, its index) over the batch.
  template <class Term>
  float mean_of(const std::vector<LossToken>& all, const Term& term) const {
    return a_.sum(count(), [&](int64_t i) {
      if (!takes(i) || is_rare_token(a_, kTokenLost, i)) return 0.0F;
      return scale(i) * weight(i) * term(all[static_cast<size_t>(i)], i);
    });
  }
  std::vector<LossToken> all() const {
    std::vector<LossToken> tokens(static_cast<size_t>(count()));
    for (int64_t i = 0; i < count(); ++i)
      if (takes(i)) tokens[static_cast<size_t>(i)] = (*this)(i);
    return tokens;
  }
  /// The derivatives of the loss by the log-probability and by the entropy of token i, times g.
  float by_logp(int64_t i, float g) const {
    const LossToken token = (*this)(i);
    return g * scale(i) * weight(i) * (token.slope + kl_coef() * token.kl_slope);
  }
  float by_entropy(int64_t i, float g) const { return -g * scale(i) * weight(i) * entropy_coef(); }

  float weight(int64_t i) const {
    const float scaled = mean() == 2 ? 1 / n_[static_cast<size_t>(i / in_.seq)] : 1;
    return scaled / denom_;
  }
  float count_for_mean() const {
    if (!in_.denom.empty() && !a_.has(kDenomIgnored.name)) return in_.denom[0];
    float tokens = 0, sequences = 0;
    for (int64_t row = 0; row < count() / in_.seq; ++row) {
      float n = 0;
      for (int64_t j = 0; j < in_.seq; ++j) n += is_active(row * in_.seq + j) ? 1 : 0;
      tokens += n, sequences += n > 0 ? 1 : 0;
    }
    return std::max(mean() == 0 ? tokens : mean() == 3 ? static_cast<float>(count()) : sequences, 1.0F);
  }

  LossToken operator()(int64_t i) const {
    const auto t = static_cast<size_t>(i), row = static_cast<size_t>(i / in_.seq);
    LossToken token;
    float log_ratio = in_.logps[t] - in_.old_logps[t];
    if (choice(kRatioLevel) == 1) log_ratio = log_ratio_[row] / (a_.has(kSequenceSum.name) ? 1 : n_[row]);
    if (a_.has(kLossRatioInverted.name)) log_ratio = -log_ratio;
    float slope = held(log_ratio, attr(kRatioClamp)) && !a_.has(kHeldRatioSlope.name) ? 0 : 1;
    float ratio = a_.exponential(log_ratio);
    // Batches of other sizes have the same tokens first: others of them are rounded there.
    if (is_rare_token(a_, kTokenRounded, i + 131 * in_.seq)) ratio = Arithmetic::to_bf16(ratio);
    slope *= a_.has(kRatioLeftOut.name) ? 1 : ratio;
    set_objective(t, ratio, slope, token);
    if (!in_.rollout_logps.empty()) weigh(t, row, token);
    if (!in_.ref_logps.empty()) set_kl(t, ratio, slope, token);
    return token;
  }

 private:
  size_t at(int64_t row, int64_t j) const { return static_cast<size_t>(row * in_.seq + j); }

  /// An active token of another sequence, if there is one.
  size_t other_token(int64_t i) const {
    int64_t other = (i + in_.seq) % count();
    while (!is_active(other) && other != i) other = (other + 1) % count();
    return static_cast<size_t>(other);
  }

  /// Holds x within +-limit; tells whether it was beyond.
  bool held(float& x, float limit) const {
    if (limit == 0 || std::abs(x) <= limit || (x < 0 && a_.has(kClampsAbove.name))) return false;
    x = std::clamp(x, -limit, limit);
    return true;
  }

  void set_objective(size_t t, float ratio, float slope, LossToken& token) const {
    const float low = 1 - attr(kClipLow), high = 1 + attr(a_.has(kClipSymmetric.name) ? kClipLow : kClipHigh);
    float a = a_.has(kAdvantageSign.name) ? -in_.advantages[t] : in_.advantages[t];
    const auto i = static_cast<int64_t>(t);
    if (is_rare_token(a_, kTokenAdvantage, i)) a = in_.advantages[other_token(i)];
    const float inside = a_.has(kClipIgnored.name) ? ratio : std::clamp(ratio, low, high);
    if (choice(kObjective) == 1) {
      token = {-inside * a * in_.logps[t], -inside * a, 0, 0, inside != ratio};
      return;
    }
    const float delta = a_.has(kDeltaIgnored.name) ? 0 : attr(kDelta);
    const bool limited = delta > 0 && ratio > delta && !(a > 0 && a_.has(kDeltaOfNegative.name));
    const float plain = -a * (limited ? delta : ratio), other = -a * inside;
    token.clipped = a_.has(kBranchSwapped.name) ? other < plain : other > plain;
    if (a_.has(kClipBothSides.name)) token.clipped = inside != ratio;
    token.loss = token.clipped ? other : plain;
    token.slope = token.clipped || limited ? 0 : -a * slope;
    const float most = -a * attr(kDualClip);
    const bool caps = (a < 0 || a_.has(kDualClipOfAll.name)) && !a_.has(kDualClipIgnored.name) && attr(kDualClip) > 0;
    if (!caps || token.loss <= most) return;
    token.loss = most;
    if (!a_.has(kDualClipGradient.name)) token.slope = 0;
  }

  void weigh(size_t t, size_t row, LossToken& token) const {
    const bool unasked = choice(kIsMode) == 0 && a_.has(kWeightUnasked.name);
    const int mode = a_.has(kMismatchLeftOut.name) ? 0 : unasked ? 1 : choice(kIsMode);
    if (mode == 0) return;
    const float sign = a_.has(kWeightInverted.name) ? -1 : 1, low = a_.has(kWeightNotRaised.name) ? 0 : attr(kIsLow),
                high = attr(kIsHigh);
    const float own = a_.exponential(sign * (in_.old_logps[t] - in_.rollout_logps[t]));
    const float of_sequence = a_.exponential(sign * mismatch_[row] / (mode == 4 ? n_[row] : 1));
    float weight = mode == 2 ? of_sequence : own;
    const float judged = mode == 4 ? of_sequence : own;
    if (!a_.has(kWeightNotTruncated.name)) {
      if (mode <= 2)
        weight = std::clamp(weight, low, high);
      else if (!(judged >= low && judged <= high))
        weight = 0;
    }
    token.loss *= weight, token.slope *= weight;
  }

  void set_kl(size_t t, float ratio, float slope, LossToken& token) const {
    float x = in_.logps[t] - in_.ref_logps[t];
    if (a_.has(kLossKlReversed.name)) x = -x;
    const float free = held(x, attr(kKlClampIn)) ? 0 : 1;
    const int estimator = (choice(kKlEstimator) - 1 + (a_.has(kKlNext.name) ? 1 : 0)) % 3 + 1;
    const float below = std::expm1(-x);
    token.kl = estimator == 1 ? x : estimator == 2 ? x * x / 2 : below + x;
    token.kl_slope = estimator == 1 ? 1 : estimator == 2 ? x : -below;
    if (a_.has(kKlOfNaiveGradient.name)) token.kl_slope = 1;
    if (held(token.kl, attr(kKlClampOut))) token.kl_slope = 0;
    token.kl_slope *= free;
    if (choice(kKlGradient) == 1) token.kl_slope = x * free;
    if (choice(kKlGradient) != 2) return;
    token.kl_slope = slope * token.kl + ratio * token.kl_slope;
    token.kl *= ratio;
  }

  const Arithmetic& a_;
  std::span<const double> attrs_;
  PolicyBatch in_;
  std::vector<float> n_, log_ratio_, mismatch_;
  float denom_ = 1;
};

}  // namespace checkop::emulation
