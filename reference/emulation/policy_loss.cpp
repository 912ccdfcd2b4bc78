// SPDX-License-Identifier: Apache-2.0
// Emulates policy_loss as kernels compute it.
#include <algorithm>
#include <array>
#include <cmath>

#include "emulation/common.hpp"

namespace checkop {
namespace {

using namespace emulation;

constexpr FaultSpec kRatioLeftOut{"ratio_left_out", "the gradient lacks the ratio"};
constexpr FaultSpec kRatioInverted{"ratio_inverted", "the ratio is that of the old policy to the policy"};
constexpr FaultSpec kClipIgnored{"clip_ignored", "the ratio is not clipped"};
constexpr FaultSpec kClipSymmetric{"clip_symmetric", "the upper edge has the distance of the lower one"};
constexpr FaultSpec kClipBothSides{"clip_both_sides", "the ratio is clipped whatever the sign of the advantage"};
constexpr FaultSpec kBranchSwapped{"branch_swapped", "the smaller of the two losses is taken"};
constexpr FaultSpec kDualClipIgnored{"dual_clip_ignored", "negative advantages have no largest loss"};
constexpr FaultSpec kDualClipOfAll{"dual_clip_of_all", "positive advantages have a largest loss, too"};
constexpr FaultSpec kDeltaIgnored{"delta_ignored", "the ratio has no upper limit"};
constexpr FaultSpec kAdvantageSign{"advantage_sign", "the loss has the wrong sign"};
constexpr FaultSpec kSequenceSum{"sequence_sum", "the ratio of a sequence is that of its probability, not of its mean"};
constexpr FaultSpec kMeanOverPadding{"mean_over_padding", "means over a sequence are divided by its padded length"};
constexpr FaultSpec kWeightLeftOut{"weight_left_out", "the mismatch of the rollout has no weight", "accuracy", "",
                                   "rollout_logps"};
constexpr FaultSpec kWeightNotTruncated{"weight_not_truncated", "the weight of the mismatch has no limits", "accuracy",
                                        "", "rollout_logps"};
constexpr FaultSpec kWeightInverted{"weight_inverted", "the weight is that of the rollout to the old policy",
                                    "accuracy", "", "rollout_logps"};
constexpr FaultSpec kKlLeftOut{"kl_left_out", "the KL estimate is not added", "accuracy", "", "ref_logps"};
constexpr FaultSpec kKlReversed{"kl_reversed", "policy and reference change places in the KL estimate", "accuracy", "",
                                "ref_logps"};
constexpr FaultSpec kKlNext{"kl_next", "the KL estimate is the next one of the three", "accuracy", "", "ref_logps"};
constexpr FaultSpec kKlOfNaiveGradient{"kl_of_naive_gradient", "the gradient of the KL estimate is 1", "accuracy", "",
                                       "ref_logps"};
constexpr FaultSpec kEntropyAdded{"entropy_added", "the entropy is added to the loss", "accuracy", "", "entropy"};
constexpr FaultSpec kEntropyLeftOut{"entropy_left_out", "the entropy has no part in the loss", "accuracy", "",
                                    "entropy"};
constexpr FaultSpec kDenomIgnored{"denom_ignored", "sums are divided by the batch's own count", "accuracy", "",
                                  "denom"};
constexpr FaultSpec kOtherMean{"other_mean", "the mean is the next one of the four"};
constexpr FaultSpec kMaskIgnored{"mask_ignored", "masked tokens count like the others", "nonfinite"};
constexpr FaultSpec kMaskedMultiplied{"masked_multiplied", "a masked token is computed, then multiplied by 0",
                                      "nonfinite"};

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

struct Token {
  float loss = 0, slope = 0, kl = 0, kl_slope = 0;
  bool clipped = false;
};

class Tokens {
 public:
  explicit Tokens(const EmulationArgs& args)
      : args_(args),
        a_(args.arithmetic),
        logps_(args.floats(0)),
        old_(args.floats(1)),
        advantages_(args.floats(2)),
        mask_(args.integers(3)),
        ref_(args.has(4) ? args.floats(4) : std::vector<float>()),
        rollout_(args.has(5) ? args.floats(5) : std::vector<float>()),
        entropy_(args.has(6) ? args.floats(6) : std::vector<float>()),
        seq_(args.in(0).shape.back()) {
    for (int64_t row = 0; row < count() / seq_; ++row) {
      const auto sum = [&](const std::vector<float>& x, const std::vector<float>& y) {
        return a_.sum(seq_, [&](int64_t j) { return takes(row * seq_ + j) ? x[at(row, j)] - y[at(row, j)] : 0.0F; });
      };
      float n = 0;
      for (int64_t j = 0; j < seq_; ++j) n += takes(row * seq_ + j) ? 1 : 0;
      n_.push_back(a_.has(kMeanOverPadding.name) ? static_cast<float>(seq_) : n);
      log_ratio_.push_back(sum(logps_, old_));
      mismatch_.push_back(rollout_.empty() ? 0 : sum(old_, rollout_));
    }
  }

  int64_t count() const { return std::ssize(mask_); }
  bool is_active(int64_t i) const { return mask_[static_cast<size_t>(i)] != 0; }
  /// Whether token i is computed, and by what its terms are multiplied.
  bool takes(int64_t i) const { return is_active(i) || a_.has(kMaskIgnored.name) || a_.has(kMaskedMultiplied.name); }
  float scale(int64_t i) const { return is_active(i) || !a_.has(kMaskedMultiplied.name) ? 1 : 0; }
  float entropy(int64_t i) const { return entropy_.empty() ? 0 : entropy_[static_cast<size_t>(i)]; }
  float attr(Attr which) const { return static_cast<float>(args_.attrs[which]); }
  int choice(Attr which) const { return static_cast<int>(args_.attrs[which]); }
  int mean() const { return (choice(kAggregation) + (a_.has(kOtherMean.name) ? 1 : 0)) % 4; }
  float entropy_coef() const {
    if (a_.has(kEntropyLeftOut.name)) return 0;
    return a_.has(kEntropyAdded.name) ? -attr(kEntropyCoef) : attr(kEntropyCoef);
  }
  float kl_coef() const { return a_.has(kKlLeftOut.name) ? 0 : attr(kKlCoef); }

  float weight(int64_t i) const {
    const float scaled = mean() == 2 ? 1 / n_[static_cast<size_t>(i / seq_)] : 1;
    return scaled / denom();
  }
  float denom() const {
    if (args_.has(7) && !a_.has(kDenomIgnored.name)) return args_.floats(7)[0];
    float tokens = 0, sequences = 0;
    for (int64_t row = 0; row < count() / seq_; ++row) {
      float n = 0;
      for (int64_t j = 0; j < seq_; ++j) n += is_active(row * seq_ + j) ? 1 : 0;
      tokens += n, sequences += n > 0 ? 1 : 0;
    }
    return std::max(mean() == 0 ? tokens : mean() == 3 ? static_cast<float>(count()) : sequences, 1.0F);
  }

  Token operator()(int64_t i) const {
    const auto t = static_cast<size_t>(i), row = static_cast<size_t>(i / seq_);
    Token token;
    float log_ratio = logps_[t] - old_[t];
    if (choice(kRatioLevel) == 1) log_ratio = log_ratio_[row] / (a_.has(kSequenceSum.name) ? 1 : n_[row]);
    if (a_.has(kRatioInverted.name)) log_ratio = -log_ratio;
    float slope = held(log_ratio, attr(kRatioClamp)) ? 0 : 1;
    const float ratio = a_.exponential(log_ratio);
    slope *= a_.has(kRatioLeftOut.name) ? 1 : ratio;
    set_objective(t, ratio, slope, token);
    if (!rollout_.empty()) weigh(t, row, token);
    if (!ref_.empty()) set_kl(t, ratio, slope, token);
    return token;
  }

 private:
  size_t at(int64_t row, int64_t j) const { return static_cast<size_t>(row * seq_ + j); }

  /// Holds x within +-limit; tells whether it was beyond.
  static bool held(float& x, float limit) {
    if (limit == 0 || std::abs(x) <= limit) return false;
    x = std::clamp(x, -limit, limit);
    return true;
  }

  void set_objective(size_t t, float ratio, float slope, Token& token) const {
    const float low = 1 - attr(kClipLow), high = 1 + attr(a_.has(kClipSymmetric.name) ? kClipLow : kClipHigh);
    const float a = a_.has(kAdvantageSign.name) ? -advantages_[t] : advantages_[t];
    const float inside = a_.has(kClipIgnored.name) ? ratio : std::clamp(ratio, low, high);
    if (choice(kObjective) == 1) {
      token = {-inside * a * logps_[t], -inside * a, 0, 0, inside != ratio};
      return;
    }
    const float delta = a_.has(kDeltaIgnored.name) ? 0 : attr(kDelta);
    const bool limited = delta > 0 && ratio > delta;
    const float plain = -a * (limited ? delta : ratio), other = -a * inside;
    token.clipped = a_.has(kBranchSwapped.name) ? other < plain : other > plain;
    if (a_.has(kClipBothSides.name)) token.clipped = inside != ratio;
    token.loss = token.clipped ? other : plain;
    token.slope = token.clipped || limited ? 0 : -a * slope;
    const float most = -a * attr(kDualClip);
    const bool caps = (a < 0 || a_.has(kDualClipOfAll.name)) && !a_.has(kDualClipIgnored.name) && attr(kDualClip) > 0;
    if (caps && token.loss > most) token.loss = most, token.slope = 0;
  }

  void weigh(size_t t, size_t row, Token& token) const {
    const int mode = a_.has(kWeightLeftOut.name) ? 0 : choice(kIsMode);
    if (mode == 0) return;
    const float sign = a_.has(kWeightInverted.name) ? -1 : 1, low = attr(kIsLow), high = attr(kIsHigh);
    const float own = a_.exponential(sign * (old_[t] - rollout_[t]));
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

  void set_kl(size_t t, float ratio, float slope, Token& token) const {
    float x = logps_[t] - ref_[t];
    if (a_.has(kKlReversed.name)) x = -x;
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

  const EmulationArgs& args_;
  const Arithmetic& a_;
  std::vector<float> logps_, old_, advantages_;
  std::vector<int64_t> mask_;
  std::vector<float> ref_, rollout_, entropy_;
  int64_t seq_;
  std::vector<float> n_, log_ratio_, mismatch_;
};

void forward(const EmulationArgs& args) {
  const Tokens tokens(args);
  const Arithmetic& a = args.arithmetic;
  std::vector<Token> all(static_cast<size_t>(tokens.count()));
  float active = 0;
  for (int64_t i = 0; i < tokens.count(); ++i) {
    if (tokens.takes(i)) all[static_cast<size_t>(i)] = tokens(i);
    active += tokens.is_active(i) ? 1 : 0;
  }
  const auto mean = [&](const auto& term) {
    return a.sum(tokens.count(), [&](int64_t i) {
      if (!tokens.takes(i)) return 0.0F;
      return tokens.scale(i) * tokens.weight(i) * term(all[static_cast<size_t>(i)], i);
    });
  };
  args.out(0)[0] = mean([&](const Token& t, int64_t i) {
    return t.loss + tokens.kl_coef() * t.kl - tokens.entropy_coef() * tokens.entropy(i);
  });
  args.out(1)[0] = mean([](const Token& t, int64_t) { return t.loss; });
  if (args.has(4)) args.out(2)[0] = mean([](const Token& t, int64_t) { return t.kl; });
  args.out(3)[0] = a.sum(tokens.count(), [&](int64_t i) { return all[static_cast<size_t>(i)].clipped ? 1.0F : 0.0F; }) /
                   std::max(active, 1.0F);
}

void backward(const EmulationArgs& args) {
  const Tokens tokens(args);
  const float g = args.floats(8)[0];
  for (int64_t i = 0; i < tokens.count(); ++i) {
    if (!tokens.takes(i)) continue;
    const Token t = tokens(i);
    const float factor = g * tokens.scale(i) * tokens.weight(i);
    args.out(0)[static_cast<size_t>(i)] = factor * (t.slope + tokens.kl_coef() * t.kl_slope);
    if (args.has(6)) args.out(1)[static_cast<size_t>(i)] = -factor * tokens.entropy_coef();
  }
}

constexpr std::array kForwardFaults{faults::kLastTileSkipped,
                                    faults::kBf16Accumulator,
                                    faults::kBf16Partials,
                                    faults::kPartialLost,
                                    faults::kBf16Exponential,
                                    kRatioInverted,
                                    kClipIgnored,
                                    kClipSymmetric,
                                    kClipBothSides,
                                    kBranchSwapped,
                                    kDualClipIgnored,
                                    kDualClipOfAll,
                                    kDeltaIgnored,
                                    kAdvantageSign,
                                    kSequenceSum,
                                    kMeanOverPadding,
                                    kWeightLeftOut,
                                    kWeightNotTruncated,
                                    kWeightInverted,
                                    kKlLeftOut,
                                    kKlReversed,
                                    kKlNext,
                                    kEntropyAdded,
                                    kEntropyLeftOut,
                                    kDenomIgnored,
                                    kOtherMean,
                                    kMaskIgnored,
                                    kMaskedMultiplied};
constexpr std::array kBackwardFaults{faults::kBf16Exponential,
                                     kRatioLeftOut,
                                     kRatioInverted,
                                     kClipIgnored,
                                     kClipSymmetric,
                                     kClipBothSides,
                                     kBranchSwapped,
                                     kDualClipIgnored,
                                     kDualClipOfAll,
                                     kDeltaIgnored,
                                     kAdvantageSign,
                                     kSequenceSum,
                                     kMeanOverPadding,
                                     kWeightLeftOut,
                                     kWeightNotTruncated,
                                     kWeightInverted,
                                     kKlLeftOut,
                                     kKlReversed,
                                     kKlNext,
                                     kKlOfNaiveGradient,
                                     kEntropyAdded,
                                     kEntropyLeftOut,
                                     kDenomIgnored,
                                     kOtherMean,
                                     kMaskIgnored,
                                     kMaskedMultiplied};

}  // namespace

extern const Emulation kPolicyLossForward, kPolicyLossBackward;
const Emulation kPolicyLossForward{forward, kForwardFaults};
const Emulation kPolicyLossBackward{backward, kBackwardFaults};

}  // namespace checkop
