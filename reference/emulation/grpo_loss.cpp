// SPDX-License-Identifier: Apache-2.0
// Emulates grpo_loss as kernels compute it.
#include <array>

#include "emulation/policy.hpp"

namespace checkop {
namespace grpo_loss {
namespace {

using namespace emulation;

constexpr FaultSpec kCompletionMaskIgnored{"completion_mask_ignored", "tokens of the prompt count too", "nonfinite"};
constexpr FaultSpec kSampleVariance{"sample_variance", "the variance of n rewards is divided by n - 1"};
constexpr FaultSpec kVarianceForDeviation{"variance_for_deviation", "advantages are divided by the variance"};
constexpr FaultSpec kMeanNotSubtracted{"mean_not_subtracted", "advantages are rewards over their deviation"};
constexpr FaultSpec kNotScaled{"not_scaled", "advantages are not divided by the deviation"};
// Not with group_boundaries: they create a group of one, which would divide 0 by 0.
constexpr FaultSpec kEpsLeftOut{"eps_left_out", "the deviation has no least value", "nonfinite", "",
                                "-group_boundaries"};
constexpr FaultSpec kEpsAdded{"eps_added", "eps is added to the deviation, not its least value"};
constexpr FaultSpec kNeighbourGroup{"neighbour_group", "advantages are taken by the statistics of the next group"};
constexpr FaultSpec kGroupsIgnored{"groups_ignored", "advantages are taken by the statistics of the whole batch"};
constexpr FaultSpec kNeighboursAdvantage{"neighbours_advantage", "completions have the advantage of the next one"};
constexpr FaultSpec kAdvantageSign{"advantage_sign", "the loss has the wrong sign"};
constexpr FaultSpec kMeanOverAllTokens{"mean_over_all_tokens", "sums are divided by the number of all tokens"};
constexpr FaultSpec kMeanPerCompletion{"mean_per_completion",
                                       "means over completions are averaged, whatever their length"};
constexpr FaultSpec kClipIgnored{"clip_ignored", "the ratio is not clipped"};
constexpr FaultSpec kClipBothSides{"clip_both_sides", "the ratio is clipped whatever the sign of the advantage"};
constexpr FaultSpec kClipBranchSwapped{"clip_branch_swapped", "the larger of the two products is taken"};
constexpr FaultSpec kBetaLeftOut{"beta_left_out", "the KL estimate is added with weight 1"};

enum Input : int { kRewards = 5, kCompletionMask, kGroupBoundaries, kUpstream };
enum Attr : size_t { kSamplesPerPrompt, kClipEps, kBeta, kEps };

/// First completion of every group, then the number of completions.
std::vector<int64_t> group_bounds(const EmulationArgs& args, int64_t completions) {
  if (args.arithmetic.has(kGroupsIgnored.name)) return {0, completions};
  if (args.has(kGroupBoundaries)) return args.integers(kGroupBoundaries);
  const auto samples = static_cast<int64_t>(args.attrs[kSamplesPerPrompt]);
  std::vector<int64_t> bounds;
  for (int64_t first = 0; first <= completions; first += samples) bounds.push_back(first);
  return bounds;
}

/// Mean and deviation of a group's rewards, computed relative to the first reward, so that the mean of equal rewards is
/// exact.
struct Group {
  float first, mean, deviation;

  Group(const EmulationArgs& args, const float* rewards, int64_t n) : first(rewards[0]) {
    const Arithmetic& a = args.arithmetic;
    const auto count = static_cast<float>(n), eps = static_cast<float>(args.attrs[kEps]);
    mean = a.sum(n, [&](int64_t i) { return rewards[i] - first; }) / count;
    const auto square = [&](int64_t i) { return away(rewards[i]) * away(rewards[i]); };
    const float variance = a.sum(n, square) / (a.has(kSampleVariance.name) ? std::max(count - 1, 1.0F) : count);
    deviation = std::sqrt(std::max(variance, eps * eps));
    if (a.has(kEpsLeftOut.name)) deviation = std::sqrt(variance);
    if (a.has(kEpsAdded.name)) deviation = std::sqrt(variance) + eps;
    if (a.has(kVarianceForDeviation.name)) deviation *= deviation;
    if (a.has(kNotScaled.name)) deviation = 1;
    if (a.has(kMeanNotSubtracted.name)) mean = -first;
  }

  float away(float reward) const { return (reward - first) - mean; }
  float advantage(float reward) const { return away(reward) / deviation; }
};

std::vector<float> advantages(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<float> rewards = args.floats(kRewards);
  const std::vector<int64_t> bounds = group_bounds(args, std::ssize(rewards));
  std::vector<Group> groups;
  for (size_t g = 1; g < bounds.size(); ++g)
    groups.emplace_back(args, rewards.data() + bounds[g - 1], bounds[g] - bounds[g - 1]);
  if (a.has(kNeighbourGroup.name)) std::rotate(groups.begin(), groups.begin() + 1, groups.end());
  std::vector<float> result(rewards.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    for (auto i = static_cast<size_t>(bounds[g]); i < static_cast<size_t>(bounds[g + 1]); ++i)
      result[i] = groups[g].advantage(rewards[i]) * (a.has(kAdvantageSign.name) ? -1.0F : 1.0F);
  }
  if (a.has(kNeighboursAdvantage.name)) std::rotate(result.begin(), result.begin() + 1, result.end());
  return result;
}

/// Values that the tokens share.
struct Batch {
  PolicyInputs in;
  std::vector<float> advantage;  ///< per completion
  std::vector<Fate> fates;       ///< per token
  std::vector<float> divisors;   ///< per completion: divisor that turns sums over tokens into means
  float clip, beta;
  bool both_sides, swapped;
  int64_t seq;

  explicit Batch(const EmulationArgs& args)
      : in(args),
        advantage(advantages(args)),
        clip(static_cast<float>(args.attrs[kClipEps])),
        beta(static_cast<float>(args.attrs[kBeta])),
        both_sides(args.arithmetic.has(kClipBothSides.name)),
        swapped(args.arithmetic.has(kClipBranchSwapped.name)),
        seq(args.in(2).shape.back()) {
    if (args.arithmetic.has(kClipIgnored.name)) clip = INFINITY;
    if (args.arithmetic.has(kBetaLeftOut.name)) beta = 1;
    choose_tokens(args);
    count_tokens(args.arithmetic);
  }

  size_t completion(int64_t token) const { return static_cast<size_t>(token / seq); }
  float divisor(int64_t token) const { return divisors[completion(token)]; }

  /// The factor of the advantage `a`: the ratio, or the bound at which it is clipped.
  struct Factor {
    float value;
    bool is_ratio;
  };
  Factor factor(float ratio, float a) const {
    const float low = 1 - clip, high = 1 + clip;
    const bool negative = (a < 0) != swapped;
    if ((negative || both_sides) && ratio < low) return {low, false};
    if ((!negative || both_sides) && ratio > high) return {high, false};
    return {ratio, true};
  }

 private:
  void choose_tokens(const EmulationArgs& args) {
    const Arithmetic& a = args.arithmetic;
    const std::vector<int64_t> completed = args.integers(kCompletionMask);
    for (size_t i = 0; i < completed.size(); ++i) {
      const bool kept = in.mask[i] != 0 || a.has(kMaskIgnored.name);
      fates.push_back(fate_of(a, kept && (completed[i] != 0 || a.has(kCompletionMaskIgnored.name))));
    }
  }

  void count_tokens(const Arithmetic& a) {
    std::vector<float> counts(advantage.size());
    for (int64_t t = 0; t < in.tokens(); ++t)
      counts[completion(t)] += fates[static_cast<size_t>(t)] == Fate::computed ? 1 : 0;
    float n = 0;
    for (const float count : counts) n += count;
    if (a.has(kMeanOverAllTokens.name)) n = static_cast<float>(in.tokens());
    divisors.assign(counts.size(), std::max(n, 1.0F));  // without active tokens, every sum is 0
    for (size_t i = 0; i < counts.size() && a.has(kMeanPerCompletion.name); ++i)
      divisors[i] = std::max(counts[i], 1.0F) * static_cast<float>(counts.size());
  }
};

void forward(const EmulationArgs& args) {
  const Arithmetic& arithmetic = args.arithmetic;
  const Batch batch(args);
  std::vector<float> losses(batch.fates.size()), kls(losses.size());  // each token's terms of the means
  args.parallel_for(batch.in.tokens(), [&](int64_t t) {
    const auto i = static_cast<size_t>(t);
    if (batch.fates[i] == Fate::left_out) return;
    const PolicyToken token = policy_token(arithmetic, batch.in, t);
    if (is_rare_token(arithmetic, kTokenLost, t)) return;
    const size_t next = is_rare_token(arithmetic, kTokenAdvantage, t) ? 1 : 0;
    const float a = batch.advantage[(batch.completion(t) + next) % batch.advantage.size()];
    losses[i] = -batch.factor(token.ratio, a).value * a / batch.divisor(t);
    kls[i] = token.kl / batch.divisor(t);
    if (batch.fates[i] == Fate::multiplied) losses[i] *= 0, kls[i] *= 0;
  });
  const auto sum = [&](const std::vector<float>& terms) {
    return arithmetic.sum(std::ssize(terms), [&](int64_t t) { return terms[static_cast<size_t>(t)]; });
  };
  const float policy_loss = sum(losses), kl = sum(kls);
  args.out(0)[0] = batch.beta == 0 ? policy_loss : policy_loss + batch.beta * kl;
  args.out(1)[0] = policy_loss;
  args.out(2)[0] = kl;
}

/// c = g/n (-A ratio [not clipped] + beta (1 - exp(d)))
void backward(const EmulationArgs& args) {
  const Batch batch(args);
  const float g = args.floats(kUpstream)[0];
  const int64_t vocab = batch.in.policy.columns;
  args.parallel_for(batch.in.tokens(), [&](int64_t t) {
    const Fate fate = batch.fates[static_cast<size_t>(t)];
    if (fate == Fate::left_out) return;
    const PolicyToken token = policy_token(args.arithmetic, batch.in, t);
    const float a = batch.advantage[batch.completion(t)];
    const float of_loss = batch.factor(token.ratio, a).is_ratio ? -a * token.ratio : 0, share = g / batch.divisor(t);
    float c = policy_coefficient(args.arithmetic, token, share * of_loss, share * batch.beta);
    if (fate == Fate::multiplied) c *= 0;
    policy_gradient_row(args.arithmetic, batch.in, t, c, &args.out(0)[static_cast<size_t>(t * vocab)]);
  });
}

constexpr std::array kForwardFaults{faults::kLastTileSkipped,
                                    faults::kBf16Accumulator,
                                    faults::kBf16Partials,
                                    faults::kPartialLost,
                                    faults::kBf16Exponential,
                                    kPaddedColumnCounted,
                                    kMaximumNotSubtracted,
                                    kMaximumOfFirstTile,
                                    kTileOfInfinities,
                                    kWrongLabel,
                                    kMaskIgnored,
                                    kCompletionMaskIgnored,
                                    kMaskedMultiplied,
                                    kOldIgnored,
                                    kRefForOld,
                                    kRatioInverted,
                                    kBf16Logps,
                                    kKlReversed,
                                    kKlLinear,
                                    kKlSquare,
                                    kSampleVariance,
                                    kVarianceForDeviation,
                                    kMeanNotSubtracted,
                                    kNotScaled,
                                    kEpsLeftOut,
                                    kEpsAdded,
                                    kNeighbourGroup,
                                    kGroupsIgnored,
                                    kNeighboursAdvantage,
                                    kAdvantageSign,
                                    kMeanOverAllTokens,
                                    kMeanPerCompletion,
                                    kClipIgnored,
                                    kClipBothSides,
                                    kClipBranchSwapped,
                                    kBetaLeftOut,
                                    kTokenLost,
                                    kTokenAdvantage};
constexpr std::array kBackwardFaults{faults::kLastTileSkipped,
                                     faults::kBf16Accumulator,
                                     faults::kBf16Partials,
                                     faults::kPartialLost,
                                     faults::kBf16Exponential,
                                     kPaddedColumnCounted,
                                     kMaximumNotSubtracted,
                                     kMaximumOfFirstTile,
                                     kTileOfInfinities,
                                     kWrongLabel,
                                     kSoftmaxTermDropped,
                                     kSoftmaxSignFlipped,
                                     kRefSoftmax,
                                     kMaskIgnored,
                                     kCompletionMaskIgnored,
                                     kMaskedMultiplied,
                                     kOldIgnored,
                                     kRefForOld,
                                     kRatioInverted,
                                     kBf16Logps,
                                     kKlReversed,
                                     kKlLinear,
                                     kKlSquare,
                                     kKlTermDropped,
                                     kKlSignFlipped,
                                     kSampleVariance,
                                     kVarianceForDeviation,
                                     kMeanNotSubtracted,
                                     kNotScaled,
                                     kEpsLeftOut,
                                     kEpsAdded,
                                     kNeighbourGroup,
                                     kGroupsIgnored,
                                     kNeighboursAdvantage,
                                     kAdvantageSign,
                                     kMeanOverAllTokens,
                                     kMeanPerCompletion,
                                     kClipIgnored,
                                     kClipBothSides,
                                     kClipBranchSwapped,
                                     kBetaLeftOut};

}  // namespace
}  // namespace grpo_loss

extern const Emulation kGrpoLossForward, kGrpoLossBackward;
const Emulation kGrpoLossForward{grpo_loss::forward, grpo_loss::kForwardFaults};
const Emulation kGrpoLossBackward{grpo_loss::backward, grpo_loss::kBackwardFaults};

}  // namespace checkop
