// SPDX-License-Identifier: Apache-2.0
// The losses of PPO and its variants over tokens with log-probabilities: attributes, the loss and its derivatives,
// generated data. Shared by policy_loss and linear_policy_loss.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "gold_element.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// Indices of the attributes, which are the first ones of either operator.
enum PolicyAttr : size_t {
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
inline constexpr std::array kPolicyAttrs{
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

/// Throws InputError for attributes that no loss has.
void validate_policy_attrs(const CaseSizes& sizes);

/// What the loss of a batch of tokens is computed from.
struct PolicyInputs {
  std::vector<GoldElement> logps;    ///< of every token; masked ones may be anything
  std::vector<GoldElement> entropy;  ///< likewise; empty for none
  int64_t seq;                       ///< tokens of a sequence
  const Tensor &old_logps, &advantages, &mask;
  const Tensor *ref_logps, *rollout_logps, *denom;  ///< nullptr for none
  /// How far sums may be off before a branch is taken, in units of u: growth of the chain behind a log-probability.
  double growth;
  /// By how much logps and entropy may be off to the same side for all tokens, in units of u; a part of their rounding.
  /// Empty: by nothing.
  std::vector<double> logps_lean = {}, entropy_lean = {};
};

/// Computes the tokens of a batch.
class PolicyTokens {
 public:
  PolicyTokens(PolicyInputs inputs, std::span<const double> attrs);

  int64_t count() const { return std::ssize(active_); }
  bool is_active(int64_t i) const { return active_[static_cast<size_t>(i)] != 0; }

  struct Losses {
    GoldElement loss, policy_loss, kl, clip_fraction;
  };
  Losses losses() const;
  /// The derivatives of the loss by a log-probability and by an entropy, times g; 0 for masked tokens.
  GoldElement by_logp(int64_t i, double g) const;
  GoldElement by_entropy(int64_t i, double g) const;

 private:
  /// Sums over the active tokens of a sequence.
  struct Sequence {
    double n = 0;
    GoldElement log_ratio{0, 0, 0}, mismatch{0, 0, 0};  ///< sums of logps - old_logps, of old_logps - rollout_logps

    GoldElement mean(const GoldElement& sum) const {
      return {sum.value / n, sum.magnitude / n, (sum.rounding + std::abs(sum.value)) / n};
    }
  };
  /// Loss and KL estimate of a token, their derivatives with respect to its log-probability, and whether its ratio is
  /// clipped (1 or 0).
  struct Token {
    GoldElement loss{0, 0, 0}, loss_slope{0, 0, 0}, kl{0, 0, 0}, kl_slope{0, 0, 0};
    double loss_attributes = 0, kl_attributes = 0;  ///< roundings that all tokens at one limit share; see TokenMean
    double loss_jump = 0;  ///< by how much the loss differs if its weight takes the other branch, which it may
    double clipped = 0, may_clip = 0;  ///< may_clip: 1 where a kernel may take the other branch
  };
  /// A logarithm held within limits; `slope` is 1 where it is free and 0 where it is held.
  struct Held {
    GoldElement value, slope{1, 0, 0};
  };

  double attr(PolicyAttr which) const { return attrs_[which]; }
  int choice(PolicyAttr which) const { return static_cast<int>(attrs_[which]); }
  const GoldElement& logp(int64_t i) const { return in_.logps[static_cast<size_t>(i)]; }
  const Sequence& sequence_of(int64_t i) const { return sequences_[static_cast<size_t>(i / in_.seq)]; }
  /// a: the weight of token i in the means, before the division by denom_.
  double weight(int64_t i) const { return choice(kAggregation) == 2 ? 1 / sequence_of(i).n : 1; }
  /// The input denom, or what the aggregation divides by.
  double count_for_mean() const;
  /// A derivative by a value of token i, as it is stored.
  GoldElement weighted(int64_t i, double g, const GoldElement& derivative) const;

  /// Whether an equally accurate kernel may have x on the other side of the edge.
  bool is_near(const GoldElement& x, double edge) const;
  /// x within [low, high]; it errs as x does, unless it is well outside.
  GoldElement clipped(const GoldElement& x, double low, double high) const;
  /// x within +-limit, or x if limit is 0.
  Held held(const GoldElement& x, double limit) const;

  Token token(int64_t i) const;
  void set_objective(int64_t i, const GoldElement& ratio, const GoldElement& slope, Token& token) const;
  void weigh(int64_t i, Token& token) const;
  void set_kl(int64_t i, const GoldElement& ratio, const GoldElement& slope, Token& token) const;

  PolicyInputs in_;
  std::span<const double> attrs_;
  std::vector<char> active_;
  std::vector<Sequence> sequences_;
  double n_active_ = 0, denom_ = 1;
};

/// The other inputs of a generated batch with log-probabilities `logps`. The policy has moved since the tokens were
/// sampled: about a third of the ratios lie beyond a clip of 0.2, some of them far. The reference differs more, and the
/// rollout differs by rounding, with outliers.
void fill_policy_batch(const FillArgs& args, const std::vector<double>& logps);
/// Masked tokens of these inputs hold payloads.
void plant_masked_policy_tokens(const FillArgs& args);

}  // namespace checkop
