// SPDX-License-Identifier: Apache-2.0
// moe_route: chooses the experts of each token by their scores, and computes their weights.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "moe.hpp"
#include "operator/operator.hpp"
#include "recipes.hpp"
#include "sigmoid.hpp"
#include "softmax.hpp"

namespace checkop {

extern const Emulation kMoeRouteForward, kMoeRouteBackward;  // emulation/moe_route.cpp

namespace moe_route {
namespace {

constexpr std::string_view kRow = "batch seq", kTokenExperts = "batch seq experts", kTokenSlots = "batch seq topk";
constexpr TensorSpec kLogits{"logits", kTokenExperts, Fill::scores, "experts"};
constexpr TensorSpec kBias{"bias", "experts", Fill::normal, "", DType::f32, /*optional=*/true, /*constant=*/true};
constexpr TensorSpec kIds{"ids", kTokenSlots, Fill::positions, "", DType::i32};
constexpr TensorSpec kGradWeights{"grad_weights", kTokenSlots, Fill::upstream, "", DType::f32};
enum Input : int { kOfLogits, kOfBias, kOfIds, kOfGradWeights };

constexpr std::array kForwardIn{kLogits, kBias};
constexpr std::array kForwardOut{
    OutputSpec{kIds, Numerics::exact, ""},
    OutputSpec{{"weights", kTokenSlots, Fill::normal, "", DType::f32}, Numerics::composite, "experts"},
    OutputSpec{{"counts", "experts", Fill::normal, "", DType::i32}, Numerics::exact, ""},
};
// No gradient depends on the bias, since ids say what it decided.
constexpr std::array kBackwardIn{kLogits, kBias, kIds, kGradWeights};
constexpr std::array kBackwardOut{
    OutputSpec{{"dlogits", kTokenExperts}, Numerics::composite, "experts", /*sampled=*/true}};

enum Attr : size_t { kOfScore, kOfGroups, kOfGroupsKept, kOfGroupTop, kOfRenorm, kOfNormEps, kOfRouteScale };
constexpr std::array kAttrs{
    AttrSpec{"score", 0, "0: softmax of all logits, 1: sigmoid, 2: the logits choose, then softmax of those chosen"},
    AttrSpec{"n_group", 1, "groups of successive experts"},
    AttrSpec{"topk_group", 1, "groups that a token may choose from"},
    AttrSpec{"group_top", 2, "a group's score is the sum of this many of its largest scores"},
    AttrSpec{"renorm", 1, "1: divides the weights by their sum; has no effect with score 2"},
    AttrSpec{"norm_eps", 1e-20, "is added to that sum"},
    AttrSpec{"route_scale", 1, "factor of the weights"},
};

enum class Score : uint8_t { softmax, sigmoid, logit };

/// Margin of generated data: scores that decide the choice differ by this many of their errors; see separate().
constexpr double kMarginOfData = 8;

/// The experts of a token in their order; pairs of experts that are too close to say which comes first.
struct Choice {
  std::vector<int64_t> ids;
  std::vector<std::array<int64_t, 2>> unclear = {};
};

class Router {
 public:
  Router(std::span<const double> attrs, int64_t topk, DType dtype)
      : score(static_cast<Score>(attrs[kOfScore])),
        renorm(attrs[kOfRenorm] != 0),
        norm_eps(attrs[kOfNormEps]),
        route_scale(attrs[kOfRouteScale]),
        topk_(topk),
        groups_(static_cast<int64_t>(attrs[kOfGroups])),
        groups_kept_(static_cast<int64_t>(attrs[kOfGroupsKept])),
        group_top_(static_cast<size_t>(attrs[kOfGroupTop])),
        unit_(dtype == DType::f64 ? 0x1p-53 : 0x1p-24) {}

  /// The scores of a row of logits. Errors of a softmax are those of LogitGradient.
  std::vector<GoldElement> scores(const std::vector<double>& z) const {
    std::vector<GoldElement> s;
    switch (score) {
      case Score::softmax:
        return softmax(z);
      case Score::sigmoid:
        for (const double x : z) {
          const Sigmoid sigmoid(x);
          s.push_back({sigmoid.value, 0, sigmoid.error});
        }
        break;
      case Score::logit:
        for (const double x : z) s.push_back({x, 0, 0});
        break;
    }
    return s;
  }

  static std::vector<GoldElement> softmax(const std::vector<double>& z) {
    SoftmaxRow row;
    row.add(z.data(), std::ssize(z));
    const LogitGradient gradient(row, 1);
    std::vector<GoldElement> p;
    for (const double x : z) {
      const GoldElement e = gradient(exact(x), false);
      p.push_back({-e.value, e.magnitude, e.rounding});
    }
    return p;
  }

  /// Chooses experts. The order of two experts is clear if their scores err by less than 1/margin of their distance.
  /// With `ties` the order of experts with equal logits and equal biases is clear, too: every kernel gives them equal
  /// scores, and the lower index comes first.
  Choice choose(const std::vector<double>& z, const std::vector<double>& bias, double margin, bool ties = true) const;

  const Score score;
  const bool renorm;
  const double norm_eps, route_scale;

 private:
  /// What experts or groups are chosen by, and its error, with the logits and biases behind it, which lie elsewhere.
  struct Rank {
    int64_t index;
    double value, error;
    std::span<const double> behind;
  };
  static bool comes_before(const Rank& a, const Rank& b) {
    if (std::isnan(a.value) != std::isnan(b.value)) return std::isnan(b.value);
    if (a.value != b.value && !std::isnan(a.value)) return a.value > b.value;
    return a.index < b.index;
  }
  static bool is_clear(const Rank& a, const Rank& b, double margin, bool ties) {
    if (std::isnan(a.value) || std::isnan(b.value)) return true;
    if (std::equal(a.behind.begin(), a.behind.end(), b.behind.begin(), b.behind.end())) return ties;
    if (a.value == b.value) return ties && a.error + b.error == 0;
    return std::abs(a.value - b.value) > margin * (a.error + b.error);
  }

  int64_t topk_, groups_, groups_kept_;
  size_t group_top_;
  double unit_;
};

Choice Router::choose(const std::vector<double>& z, const std::vector<double>& bias, double margin, bool ties) const {
  const std::vector<GoldElement> s = scores(z);
  const double growth = 192 * unit_;  // of a chain of 1024 additions with lambda 6
  std::vector<std::vector<Rank>> groups(static_cast<size_t>(groups_));
  std::vector<std::array<double, 2>> behind_experts(s.size());
  for (size_t e = 0; e < s.size(); ++e) {
    const double own_bias = bias.empty() ? 0 : bias[e], value = s[e].value + own_bias;
    double error = growth * s[e].magnitude + unit_ * (s[e].rounding + (bias.empty() ? 0 : std::abs(value)));
    if (std::isinf(value)) error = 0;
    behind_experts[e] = {z[e], own_bias};
    groups[e * static_cast<size_t>(groups_) / s.size()].push_back(
        {static_cast<int64_t>(e), value, error, behind_experts[e]});
  }
  std::vector<Rank> of_groups;
  std::vector<std::vector<double>> behind_groups(groups.size());
  for (std::vector<Rank>& group : groups) {
    std::sort(group.begin(), group.end(), comes_before);
    std::vector<double>& behind = behind_groups[of_groups.size()];
    Rank& rank = of_groups.emplace_back(Rank{std::ssize(of_groups), 0, 0, {}});
    for (size_t i = 0; groups_ > 1 && i < group_top_; ++i) {
      rank.value += group[i].value, rank.error += group[i].error + unit_ * std::abs(rank.value);
      behind.insert(behind.end(), group[i].behind.begin(), group[i].behind.end());
    }
    rank.behind = behind;
    if (std::isinf(rank.value)) rank.error = 0;
  }
  std::sort(of_groups.begin(), of_groups.end(), comes_before);
  Choice choice;
  const auto note = [&](const Rank& a, const Rank& b, int64_t expert_of_a, int64_t expert_of_b) {
    if (!is_clear(a, b, margin, ties)) choice.unclear.push_back({expert_of_a, expert_of_b});
  };
  std::vector<Rank> candidates;
  for (size_t g = 0; g < of_groups.size(); ++g) {
    const std::vector<Rank>& group = groups[static_cast<size_t>(of_groups[g].index)];
    if (g < static_cast<size_t>(groups_kept_)) {
      candidates.insert(candidates.end(), group.begin(), group.end());
      continue;
    }
    for (size_t kept = 0; kept < static_cast<size_t>(groups_kept_); ++kept)
      note(of_groups[kept], of_groups[g], groups[static_cast<size_t>(of_groups[kept].index)].front().index,
           group.front().index);
  }
  std::sort(candidates.begin(), candidates.end(), comes_before);
  for (size_t i = 0; i < candidates.size(); ++i) {
    const size_t before = std::min(i, static_cast<size_t>(topk_)) - (i == 0 ? 0 : 1);
    if (i > 0) note(candidates[before], candidates[i], candidates[before].index, candidates[i].index);
    if (i < static_cast<size_t>(topk_)) choice.ids.push_back(candidates[i].index);
  }
  return choice;
}

/// The weights of the experts `ids` and what they consist of.
struct Weights {
  std::vector<GoldElement> scores;  ///< of all experts; empty for Score::logit
  std::vector<GoldElement> chosen;  ///< of `ids`; for Score::logit their softmax
  GoldElement divisor{1, 0, 0};     ///< the sum of the chosen scores and norm_eps
  std::vector<GoldElement> weights;

  Weights(const Router& router, const std::vector<double>& z, const std::vector<int64_t>& ids) {
    if (router.score == Score::logit) {
      std::vector<double> of_chosen;
      for (const int64_t id : ids) of_chosen.push_back(z[static_cast<size_t>(id)]);
      chosen = Router::softmax(of_chosen);
    } else {
      scores = router.scores(z);
      for (const int64_t id : ids) chosen.push_back(scores[static_cast<size_t>(id)]);
      if (router.renorm) divisor = sum_of(chosen) + exact(router.norm_eps);
    }
    for (const GoldElement& s : chosen) {
      const GoldElement scaled = exact(router.route_scale) * s;
      weights.push_back(router.renorm && router.score != Score::logit ? scaled / divisor : scaled);
    }
  }
};

std::vector<double> read_bias(const Tensor* bias) {
  std::vector<double> values(bias == nullptr ? 0 : static_cast<size_t>(bias->count()));
  if (bias != nullptr) decode_row(*bias, 0, values);
  return values;
}

/// Gold of moe_route.
///   in:  logits[batch, seq, experts], bias[experts] optional
///   out: ids[batch, seq, topk], weights[batch, seq, topk], counts[experts]: slots of each expert
///   s = softmax(logits), sigmoid(logits) or logits,  b = s + bias
///   of n_group groups, the topk_group with the largest sums of their group_top largest b stay
///   ids: the topk largest b of these groups, the largest first; of equal ones the lowest index; NaN comes last
///   weights = route_scale s/(sum of the chosen s + norm_eps), or route_scale s without renorm;  score 2: route_scale
///             times the softmax of the chosen logits
/// Throws InputError if two b are closer than their errors, so that either could come first.
/// Source: DeepSeek-V3, arXiv 2412.19437; gpt-oss for score 2.
void forward(const GoldArgs& args) {
  const Tensor& logits = args.in(kOfLogits);
  const int64_t experts = logits.shape.back(), topk = args.output_shapes[0].back(), tokens = logits.count() / experts;
  const Router router(args.attrs, topk, logits.dtype);
  const std::vector<double> bias = read_bias(args.inputs[kOfBias]);
  std::vector<int64_t> ids(static_cast<size_t>(tokens * topk)), counts(static_cast<size_t>(experts));
  args.parallel_for(tokens, [&](int64_t token) {
    std::vector<double> z(static_cast<size_t>(experts));
    decode_row(logits, token, z);
    const Choice choice = router.choose(z, bias, 1);
    if (!choice.unclear.empty()) {
      throw InputError("input 'logits'",
                       fmt::format("token {}: the scores of experts {} and {} are closer than they err in fp32", token,
                                   choice.unclear[0][0], choice.unclear[0][1]),
                       "give data whose choice does not depend on rounding");
    }
    std::copy(choice.ids.begin(), choice.ids.end(), ids.begin() + token * topk);
    const Weights found(router, z, choice.ids);
    RowScratch& row = row_scratch(topk);
    for (size_t i = 0; i < found.weights.size(); ++i) {
      const GoldElement w = rounded_if(args.recipes.has(recipe::kWeights), args, 1, found.weights[i]);
      row.value[i] = w.value, row.magnitude[i] = w.magnitude, row.rounding[i] = w.rounding;
    }
    args.sink({1, token, 1, topk, row.value.data(), row.magnitude.data(), row.rounding.data()});
  });
  for (const int64_t id : ids) ++counts[static_cast<size_t>(id)];
  emit_integers(args, 0, ids, topk);
  emit_integers(args, 2, counts);
}

/// The distinct experts of every token.
std::vector<int64_t> read_ids_of_tokens(const Tensor& ids, int64_t experts) {
  std::vector<int64_t> values = read_slots(ids, experts);
  const int64_t topk = ids.shape.back();
  for (size_t i = 0; i < values.size(); ++i) {
    const auto first = values.begin() + static_cast<int64_t>(i) / topk * topk,
               own = values.begin() + static_cast<int64_t>(i);
    if (*own != kNoExpert && std::find(first, own, *own) == own) continue;
    throw InputError("input 'ids'", fmt::format("element {} is {}, which is no expert or one twice", i, *own),
                     "give each token different experts");
  }
  return values;
}

/// Gold of moe_route's gradient, where ids stay as they are.
///   in:  as forward, then ids[batch, seq, topk], grad_weights[batch, seq, topk]     out: dlogits[batch, seq, experts]
///   ds = (route_scale g - sum over the chosen of g w)/(sum of the chosen s + norm_eps) for a chosen expert, or
///        route_scale g without renorm;  0 for the others
///   dlogits = s(ds - sum of s ds) of a softmax, s(1 - s) ds of a sigmoid
///             score 2: route_scale p(g - sum of p g) of the softmax p of the chosen logits, 0 for the others
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const Tensor& logits = args.in(kOfLogits);
  const int64_t experts = logits.shape.back(), topk = args.in(kOfIds).shape.back();
  const Router router(args.attrs, topk, logits.dtype);
  const std::vector<int64_t> all_ids = read_ids_of_tokens(args.in(kOfIds), experts);
  args.for_rows(0, logits.count() / experts, [&](int64_t token) {
    RowScratch& row = row_scratch(experts);
    row.clear_results();
    decode_row(logits, token, row.z);
    const std::vector<int64_t> ids(all_ids.begin() + token * topk, all_ids.begin() + (token + 1) * topk);
    const Weights found(router, row.z, ids);
    const GoldElement scale{router.route_scale, 0, 0};
    const auto upstream = [&](size_t i) {
      const double g = args.in(kOfGradWeights).at(token * topk + static_cast<int64_t>(i));
      return exact(args.recipes.has(recipe::kUpstream) ? args.recipes.round(g) : g);
    };
    const auto put = [&](size_t expert, const GoldElement& e) {
      row.value[expert] = e.value, row.magnitude[expert] = e.magnitude, row.rounding[expert] = e.rounding;
    };
    std::vector<GoldElement> terms, ds;
    const bool divides = router.renorm && router.score != Score::logit;
    for (size_t i = 0; i < ids.size(); ++i)
      terms.push_back(upstream(i) * (divides ? found.weights[i] : found.chosen[i]));
    const GoldElement of_chosen = sum_of(terms);
    for (size_t i = 0; i < ids.size(); ++i) {
      const GoldElement scaled = scale * upstream(i);
      ds.push_back(divides ? (scaled - of_chosen) / found.divisor : scaled);
    }
    if (router.score == Score::softmax) {
      terms.clear();
      for (size_t i = 0; i < ids.size(); ++i) terms.push_back(found.chosen[i] * ds[i]);
      const GoldElement mean = sum_of(terms);
      for (size_t e = 0; e < found.scores.size(); ++e) put(e, found.scores[e] * -mean);
      for (size_t i = 0; i < ids.size(); ++i) put(static_cast<size_t>(ids[i]), found.chosen[i] * (ds[i] - mean));
    } else {
      for (size_t i = 0; i < ids.size(); ++i) {
        const auto expert = static_cast<size_t>(ids[i]);
        const GoldElement& s = found.chosen[i];
        const Sigmoid sigmoid(row.z[expert]);
        put(expert, router.score == Score::sigmoid
                        ? ds[i] * (s * GoldElement{sigmoid.complement, 0, s.rounding + sigmoid.complement})
                        : scale * (s * (upstream(i) - of_chosen)));
      }
    }
    args.sink({0, token, 1, experts, row.value.data(), row.magnitude.data(), row.rounding.data()});
  });
}

constexpr std::array kForwardRecipes{
    Recipe{recipe::kWeights, "weights", k16Bit, /*exact=*/true, "weights = round(route_scale s/(sum of s + norm_eps))",
           "Hugging Face's Mixtral and Qwen MoE cast the weights to the dtype of the hidden states"}};
constexpr std::array kBackwardRecipes{
    Recipe{recipe::kUpstream, "dlogits", k16Bit, /*exact=*/true, "dlogits of round(grad_weights)",
           "autograd of weights that were cast to 16 bits: their gradient is a 16-bit tensor"}};

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kMoeRouteForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kMoeRouteBackward, nullptr,
         kBackwardRecipes}};

void validate(const CaseSizes& sizes) {
  validate_topk(sizes);
  const auto integer_in = [&](Attr attr, int64_t least, int64_t most, const char* flag, const char* hint) {
    const double value = sizes.attrs[attr];
    if (value >= static_cast<double>(least) && value <= static_cast<double>(most) && value == std::floor(value)) return;
    throw InputError(flag, fmt::format("expected an integer from {} to {}, got {}", least, most, value), hint);
  };
  const int64_t experts = sizes.dim("experts"), topk = sizes.dim("topk");
  integer_in(kOfScore, 0, 2, "--score", "0: softmax, 1: sigmoid, 2: softmax of the chosen logits");
  integer_in(kOfRenorm, 0, 1, "--renorm", "0: weights are scores, 1: they are divided by their sum");
  integer_in(kOfGroups, 1, experts, "--n-group", "1: any experts may be chosen");
  const auto groups = static_cast<int64_t>(sizes.attrs[kOfGroups]);
  integer_in(kOfGroupsKept, 1, groups, "--topk-group", "give at most the number of groups");
  const int64_t of_group = experts / groups, open = of_group * static_cast<int64_t>(sizes.attrs[kOfGroupsKept]);
  if (experts % groups != 0) {
    throw InputError("--n-group", fmt::format("{} groups cannot share {} experts", groups, experts),
                     "give a divisor of the number of experts");
  }
  if (groups > 1) integer_in(kOfGroupTop, 1, of_group, "--group-top", "give at most the experts of a group");
  if (topk > open) {
    throw InputError("--topk", fmt::format("the groups that are kept have {} experts, fewer than {}", open, topk),
                     "keep more groups");
  }
  if (!(sizes.attrs[kOfNormEps] >= 0) || !std::isfinite(sizes.attrs[kOfNormEps])) {
    throw InputError("--norm-eps", fmt::format("expected a finite number >= 0, got {}", sizes.attrs[kOfNormEps]),
                     "1e-20 is usual");
  }
  if (!std::isfinite(sizes.attrs[kOfRouteScale])) {
    throw InputError("--route-scale", fmt::format("expected a finite number, got {}", sizes.attrs[kOfRouteScale]),
                     "1 is usual");
  }
}

/// Mode extreme, by row: all logits equal; every second expert at -inf, but the first topk; 1e4 added; for a sigmoid
/// one NaN, and one logit whose exponential overflows; the others as they are.
void plant_extremes(const FillArgs& args, int64_t token, int64_t topk, std::vector<double>& z) {
  constexpr double kOffset = 1e4, kOverflows = 100;
  const bool sigmoid = static_cast<Score>(args.attrs[kOfScore]) == Score::sigmoid;
  for (size_t e = 0; e < z.size(); ++e) {
    if (token % 6 == 0) z[e] = z[0];
    if (token % 6 == 1 && e % 2 == 1 && static_cast<int64_t>(e) >= topk) z[e] = -INFINITY;
    if (token % 6 == 2 && !sigmoid) z[e] += kOffset;
  }
  const auto nan_at = static_cast<size_t>(token) % z.size();
  if (token % 6 == 4 && sigmoid) z[nan_at] = kOverflows;
  if (token % 6 == 3 && sigmoid && topk < std::ssize(z)) z[nan_at] = std::numeric_limits<double>::quiet_NaN();
}

/// Changes logits until the choice is clear by a margin. In modes whose values are often equal, near experts get equal
/// logits. In other modes the lower of two near experts loses 1 or more. If 16 bits can't tell so many experts apart,
/// some logits stay equal.
void separate(const FillArgs& args, const Router& router, const std::vector<double>& bias, int64_t token,
              Tensor& logits, std::vector<double>& z) {
  constexpr int kMost = 50, kEqualFirst = 10;
  const bool ties = args.mode != InputMode::random && args.mode != InputMode::wide && args.mode != InputMode::peaked;
  for (int attempt = 0; attempt < kMost; ++attempt) {
    const auto unclear = router.choose(z, bias, kMarginOfData, ties).unclear;
    if (unclear.empty()) return;
    double step = 0;
    for (const auto& [upper, lower] : unclear) {
      const auto at = static_cast<size_t>(lower);
      step = step < 8 ? step + 1 : 1;
      z[at] = ties && attempt < kEqualFirst ? z[static_cast<size_t>(upper)] : z[at] - step;
      logits.set(token * std::ssize(z) + lower, z[at]);
      z[at] = logits.at(token * std::ssize(z) + lower);
    }
  }
}

/// Biases that differ clearly and lie far below 0. So a kernel that recovers a score as biased score minus bias loses
/// its digits, and a padding of 0 lies above the biased score of every expert.
void draw_bias(const FillArgs& args, Tensor& bias) {
  constexpr double kOffset = -1000, kWidth = 4;
  const int64_t experts = bias.count();
  int64_t step = experts * 5 / 8 + 1;
  while (std::gcd(step, experts) != 1) ++step;
  for (int64_t e = 0; e < experts; ++e) {
    const double place =
        static_cast<double>(e * step % experts) + 0.25 * args.uniform("bias", static_cast<uint64_t>(e));
    bias.set(e, kOffset + kWidth * place / static_cast<double>(experts));
  }
}

/// Makes the choice of every token clear, and sets ids to it.
void refine(const FillArgs& args) {
  Tensor &logits = *args.find("logits"), *const bias = args.find("bias"), *const ids = args.find("ids");
  const int64_t experts = args.dim("experts"), topk = args.dim("topk");
  if (bias != nullptr && (args.mode == InputMode::random || args.mode == InputMode::wide)) draw_bias(args, *bias);
  const std::vector<double> biases = read_bias(bias);
  const Router router(args.attrs, topk, logits.dtype);
  GoldArgs parallel;
  parallel.threads = args.threads;
  parallel.parallel_for(logits.count() / experts, [&](int64_t token) {
    std::vector<double> z(static_cast<size_t>(experts));
    decode_row(logits, token, z);
    if (args.mode == InputMode::extreme) {
      plant_extremes(args, token, topk, z);
      for (int64_t e = 0; e < experts; ++e) logits.set(token * experts + e, z[static_cast<size_t>(e)]);
      decode_row(logits, token, z);
    }
    separate(args, router, biases, token, logits, z);
    if (ids == nullptr) return;
    const std::vector<int64_t> chosen = router.choose(z, biases, 1).ids;
    for (int64_t s = 0; s < topk; ++s) ids->set(token * topk + s, static_cast<double>(chosen[static_cast<size_t>(s)]));
  });
}

}  // namespace
}  // namespace moe_route

extern const Operator kMoeRoute;
constexpr Operator kMoeRoute{"moe_route",
                             "reduction",
                             "ids = top k of score(logits) + bias in the best groups, of equal ones the lowest first; "
                             "weights = route_scale score/(sum of those chosen + norm_eps); counts of each expert",
                             moe_route::kRow,
                             moe_route::kAttrs,
                             moe_route::kPasses,
                             moe_route::validate,
                             moe_route::refine};

}  // namespace checkop
