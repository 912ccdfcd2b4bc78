// SPDX-License-Identifier: Apache-2.0
// Emulates moe_route as kernels compute it.
#include <array>
#include <cmath>
#include <numeric>

#include "emulation/common.hpp"
#include "recipes.hpp"

namespace checkop {
namespace moe_route {
namespace {

using namespace emulation;

constexpr FaultSpec kBiasedWeights{"biased_weights", "weights are of biased scores", "accuracy", "", "bias"};
constexpr FaultSpec kBiasSubtracted{"bias_subtracted", "a score is the biased one minus the bias", "accuracy", "",
                                    "bias"};
constexpr FaultSpec kBiasUnused{"bias_unused", "the bias does not enter the choice", "accuracy", "", "bias"};
constexpr FaultSpec kDroppedGroupsZero{"dropped_groups_zero", "scores of groups that are dropped are 0, not -inf"};
constexpr FaultSpec kGroupByLargest{"group_by_largest", "a group's score is its largest alone"};
constexpr FaultSpec kGroupsIgnored{"groups_ignored", "experts of all groups may be chosen"};
constexpr FaultSpec kLastOfEqual{"last_of_equal", "of equal scores, the highest index comes first"};
constexpr FaultSpec kSortedByIndex{"sorted_by_index", "ids are in the order of experts, not of scores"};
constexpr FaultSpec kSmallestFirst{"smallest_first", "ids are right, but the smallest score comes first"};
constexpr FaultSpec kNanFirst{"nan_first", "NaN ranks above every number", "accuracy", "", "", "", "extreme"};
constexpr FaultSpec kSigmoidOverflows{
    "sigmoid_overflows", "a sigmoid is exp(x)/(1 + exp(x)), NaN for large x", "accuracy", "", "", "", "extreme"};
constexpr FaultSpec kIdsOf8Bits{"ids_of_8_bits", "ids are stored in 8 bits"};
constexpr FaultSpec kOtherScore{"other_score", "a sigmoid is taken for the softmax, the softmax for others"};
constexpr FaultSpec kBf16Scores{"bf16_scores", "scores are rounded to bf16"};
constexpr FaultSpec kRenormLeftOut{"renorm_left_out", "weights are not divided by their sum"};
constexpr FaultSpec kNormEpsLeftOut{"norm_eps_left_out", "norm_eps is not added to the sum of the weights"};
constexpr FaultSpec kSumOfAll{"sum_of_all", "weights are divided by the sum of all experts' scores"};
constexpr FaultSpec kScaleLeftOut{"scale_left_out", "route_scale is not applied"};
constexpr FaultSpec kScaleInSum{"scale_in_sum",
                                "route_scale is applied to the scores before they are divided by their sum"};
constexpr FaultSpec kCountsOfFirst{"counts_of_first", "counts has only the first expert of each token"};
constexpr FaultSpec kCountsSummed{"counts_summed", "counts has where each expert's slots begin"};
constexpr FaultSpec kNormTermDropped{"norm_term_dropped", "the divisor has no gradient"};
constexpr FaultSpec kChosenAlone{"chosen_alone", "experts that are not chosen have no gradient"};
constexpr FaultSpec kSlopeLeftOut{"slope_left_out", "a sigmoid's gradient lacks 1 - s"};
constexpr FaultSpec kGradientsByExpert{"gradients_by_expert", "gradients of weights are taken in the order of experts"};

enum class Score : uint8_t { softmax, sigmoid, logit };

/// The attributes, as the emulated kernel reads them.
struct Settings {
  Score score;
  int64_t groups, groups_kept, group_top;
  bool renorm;
  float norm_eps, scale;

  explicit Settings(const EmulationArgs& args)
      : score(static_cast<Score>(args.attrs[0])),
        groups(static_cast<int64_t>(args.attrs[1])),
        groups_kept(static_cast<int64_t>(args.attrs[2])),
        group_top(args.arithmetic.has(kGroupByLargest.name) ? 1 : static_cast<int64_t>(args.attrs[3])),
        renorm(args.attrs[4] != 0 && score != Score::logit && !args.arithmetic.has(kRenormLeftOut.name)),
        norm_eps(args.arithmetic.has(kNormEpsLeftOut.name) ? 0 : static_cast<float>(args.attrs[5])),
        scale(args.arithmetic.has(kScaleLeftOut.name) ? 1 : static_cast<float>(args.attrs[6])) {
    if (args.arithmetic.has(kGroupsIgnored.name)) groups_kept = groups;
    if (args.arithmetic.has(kOtherScore.name)) score = score == Score::softmax ? Score::sigmoid : Score::softmax;
  }
};

float sigmoid(const Arithmetic& a, float x) {
  const float e = a.exponential(a.has(kSigmoidOverflows.name) ? x : -x);
  return (a.has(kSigmoidOverflows.name) ? e : 1) / (1 + e);
}

std::vector<float> softmax(const Arithmetic& a, const std::vector<float>& z) {
  const SoftmaxRow row = softmax_row(a, z.data(), std::ssize(z));
  std::vector<float> p;
  for (const float x : z) p.push_back(a.exponential(x - row.max) / row.sum);
  return p;
}

/// The experts, sorted by `b` from the largest on.
std::vector<int64_t> sorted(const Arithmetic& a, const std::vector<float>& b) {
  std::vector<int64_t> order(b.size());
  std::iota(order.begin(), order.end(), 0);
  const bool last = a.has(kLastOfEqual.name), nan_first = a.has(kNanFirst.name);
  std::sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
    const float x = b[static_cast<size_t>(i)], y = b[static_cast<size_t>(j)];
    if (std::isnan(x) != std::isnan(y)) return std::isnan(nan_first ? x : y);
    return x > y || (!(x < y) && (last ? i > j : i < j));
  });
  return order;
}

/// The experts of a token by their biased scores `b`.
std::vector<int64_t> chosen(const Arithmetic& a, const Settings& settings, std::vector<float> b, int64_t topk) {
  const int64_t of_group = std::ssize(b) / settings.groups;
  std::vector<float> of_groups;
  for (int64_t g = 0; g < settings.groups && settings.groups > 1; ++g) {
    const std::vector<float> own(b.begin() + g * of_group, b.begin() + (g + 1) * of_group);
    const std::vector<int64_t> order = sorted(a, own);
    float sum = 0;
    for (int64_t i = 0; i < settings.group_top; ++i) sum += own[static_cast<size_t>(order[static_cast<size_t>(i)])];
    of_groups.push_back(sum);
  }
  const std::vector<int64_t> groups = sorted(a, of_groups);
  std::vector<int64_t> order;
  const float dropped = a.has(kDroppedGroupsZero.name) ? 0 : -INFINITY;
  std::vector<char> is_dropped(b.size());
  for (size_t i = static_cast<size_t>(settings.groups_kept); i < groups.size(); ++i) {
    std::fill_n(b.begin() + groups[i] * of_group, of_group, dropped);
    std::fill_n(is_dropped.begin() + groups[i] * of_group, of_group, 1);
  }
  for (const int64_t expert : sorted(a, b))
    if (is_dropped[static_cast<size_t>(expert)] == 0 || a.has(kDroppedGroupsZero.name)) order.push_back(expert);
  order.resize(static_cast<size_t>(topk));
  if (a.has(kSortedByIndex.name)) std::sort(order.begin(), order.end());
  if (a.has(kSmallestFirst.name)) std::reverse(order.begin(), order.end());
  return order;
}

/// The scores of a token and the weights of its experts.
struct Token {
  std::vector<float> scores, of_chosen, weights;
  float divisor = 1;

  Token(const Arithmetic& a, const Settings& settings, const float* z, int64_t experts) {
    const std::vector<float> row(z, z + experts);
    if (settings.score == Score::softmax) scores = softmax(a, row);
    if (settings.score == Score::logit) scores = row;
    for (int64_t e = 0; e < experts && settings.score == Score::sigmoid; ++e) scores.push_back(sigmoid(a, z[e]));
    if (!a.has(kBf16Scores.name)) return;
    for (float& s : scores) s = Arithmetic::to_bf16(s);
  }

  void weigh(const Arithmetic& a, const Settings& settings, const std::vector<float>& from,
             const std::vector<int64_t>& ids) {
    for (const int64_t id : ids) of_chosen.push_back(from[static_cast<size_t>(id)]);
    if (settings.score == Score::logit) of_chosen = softmax(a, of_chosen);
    const float scale_in_sum = a.has(kScaleInSum.name) ? settings.scale : 1;
    if (settings.renorm) {
      const std::vector<float>& summed = a.has(kSumOfAll.name) ? scores : of_chosen;
      divisor = a.sum(std::ssize(summed), [&](int64_t i) { return summed[static_cast<size_t>(i)] * scale_in_sum; }) +
                settings.norm_eps;
    }
    for (const float s : of_chosen) weights.push_back(settings.scale * s / divisor);
  }
};

void forward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Matrix z = matrix(args, 0);
  const Settings settings(args);
  const std::vector<float> bias = args.has(1) ? args.floats(1) : std::vector<float>();
  const int64_t tokens = z.rows(), topk = tokens == 0 ? 1 : std::ssize(args.out(0)) / tokens;
  for (int64_t t = 0; t < tokens; ++t) {
    Token token(a, settings, z.row(t), z.columns);
    std::vector<float> biased = token.scores;
    for (size_t e = 0; e < bias.size() && !a.has(kBiasUnused.name); ++e) biased[e] += bias[e];
    const std::vector<int64_t> ids = chosen(a, settings, biased, topk);
    std::vector<float> from = a.has(kBiasedWeights.name) ? biased : token.scores;
    for (size_t e = 0; e < bias.size() && a.has(kBiasSubtracted.name); ++e) from[e] = biased[e] - bias[e];
    token.weigh(a, settings, from, ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto at = static_cast<size_t>(t * topk) + i;
      args.out(0)[at] = static_cast<double>(a.has(kIdsOf8Bits.name) ? ids[i] & 255 : ids[i]);
      args.out(1)[at] = a.rounded_if(a.rounds(recipe::kWeights), token.weights[i]);
      if (i == 0 || !a.has(kCountsOfFirst.name)) ++args.out(2)[static_cast<size_t>(ids[i])];
    }
  }
  if (a.has(kCountsSummed.name)) std::exclusive_scan(args.out(2).begin(), args.out(2).end(), args.out(2).begin(), 0.0);
}

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Matrix z = matrix(args, 0);
  const Settings settings(args);
  const std::vector<int64_t> all_ids = args.integers(2);
  const std::vector<float> upstream = args.floats(3);
  const int64_t topk = args.in(2).shape.back(), experts = z.columns;
  args.parallel_for(z.rows(), [&](int64_t t) {
    std::vector<int64_t> ids(all_ids.begin() + t * topk, all_ids.begin() + (t + 1) * topk);
    std::vector<float> g(upstream.begin() + t * topk, upstream.begin() + (t + 1) * topk);
    for (float& each : g) each = a.rounded_if(a.rounds(recipe::kUpstream), each);
    if (a.has(kGradientsByExpert.name)) std::sort(ids.begin(), ids.end());
    for (int64_t& id : ids) id = label(a, id, experts);
    Token token(a, settings, z.row(t), experts);
    token.weigh(a, settings, token.scores, ids);
    const std::vector<float>& factor = settings.renorm ? token.weights : token.of_chosen;
    float inner = a.dot(topk, g.data(), 1, factor.data(), 1);
    if (a.has(kNormTermDropped.name)) inner = 0;
    double* const to = &args.out(0)[static_cast<size_t>(t * experts)];
    std::vector<float> ds;
    for (const float each : g)
      ds.push_back(settings.renorm ? (settings.scale * each - inner) / token.divisor : settings.scale * each);
    float mean = a.dot(topk, ds.data(), 1, token.of_chosen.data(), 1);
    if (a.has(kSoftmaxTermDropped.name)) mean = 0;
    if (a.has(kSoftmaxSignFlipped.name)) mean = -mean;
    for (int64_t e = 0; e < experts && settings.score == Score::softmax && !a.has(kChosenAlone.name); ++e)
      to[e] = token.scores[static_cast<size_t>(e)] * -mean;
    for (size_t i = 0; i < ids.size(); ++i) {
      const float s = token.of_chosen[i];
      float dz = s * (ds[i] - mean);
      if (settings.score == Score::sigmoid) dz = a.has(kSlopeLeftOut.name) ? ds[i] * s : ds[i] * s * (1 - s);
      if (settings.score == Score::logit) dz = settings.scale * s * (g[i] - inner);
      to[ids[i]] = dz;
    }
  });
}

constexpr std::array kForwardFaults{faults::kLastTileSkipped,
                                    faults::kBf16Accumulator,
                                    faults::kBf16Partials,
                                    faults::kPartialLost,
                                    faults::kBf16Exponential,
                                    kPaddedColumnCounted,
                                    kSumNotRescaled,
                                    kBiasedWeights,
                                    kBiasSubtracted,
                                    kBiasUnused,
                                    kDroppedGroupsZero,
                                    kGroupByLargest,
                                    kGroupsIgnored,
                                    kLastOfEqual,
                                    kSortedByIndex,
                                    kSmallestFirst,
                                    kNanFirst,
                                    kSigmoidOverflows,
                                    kIdsOf8Bits,
                                    kOtherScore,
                                    kBf16Scores,
                                    kRenormLeftOut,
                                    kNormEpsLeftOut,
                                    kSumOfAll,
                                    kScaleLeftOut,
                                    kScaleInSum,
                                    kCountsOfFirst,
                                    kCountsSummed};
constexpr std::array kBackwardFaults{faults::kLastTileSkipped,
                                     faults::kBf16Accumulator,
                                     faults::kBf16Partials,
                                     faults::kPartialLost,
                                     faults::kBf16Exponential,
                                     kWrongLabel,
                                     kSoftmaxTermDropped,
                                     kSoftmaxSignFlipped,
                                     kOtherScore,
                                     kBf16Scores,
                                     kRenormLeftOut,
                                     kNormEpsLeftOut,
                                     kSumOfAll,
                                     kScaleLeftOut,
                                     kNormTermDropped,
                                     kChosenAlone,
                                     kSlopeLeftOut,
                                     kGradientsByExpert};

}  // namespace
}  // namespace moe_route

extern const Emulation kMoeRouteForward, kMoeRouteBackward;
const Emulation kMoeRouteForward{moe_route::forward, moe_route::kForwardFaults};
const Emulation kMoeRouteBackward{moe_route::backward, moe_route::kBackwardFaults};

}  // namespace checkop
