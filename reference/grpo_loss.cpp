// SPDX-License-Identifier: Apache-2.0
// grpo_loss: clipped policy-gradient loss over groups of completions, plus beta times a KL estimate.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "groups.hpp"
#include "identity.hpp"
#include "left_out.hpp"
#include "operator/operator.hpp"
#include "policy.hpp"
#include "recipes.hpp"
#include "token_mean.hpp"

namespace checkop {

extern const Emulation kGrpoLossForward, kGrpoLossBackward;  // emulation/grpo_loss.cpp

namespace grpo_loss {
namespace {

constexpr std::string_view kRow = "batch seq", kRowVocab = "batch seq vocab";
constexpr TensorSpec kPolicy{"policy_logits", kRowVocab, Fill::logits, "vocab"};
constexpr TensorSpec kRef{"ref_logits", kRowVocab, Fill::logits, "vocab", {}, false, true};
constexpr TensorSpec kIds{"action_ids", kRow, Fill::ids, "vocab", DType::i64};
constexpr TensorSpec kMask{"attention_mask", kRow, Fill::mask, "", DType::u8};
constexpr TensorSpec kOld{"old_logps", kRow, Fill::normal, "", DType::f32, false, true};
constexpr TensorSpec kReward{"rewards", "batch", Fill::normal, "", DType::f32, false, true};
constexpr TensorSpec kCompletion{"completion_mask", kRow, Fill::mask, "", DType::u8};
constexpr TensorSpec kBoundaries{"group_boundaries", "group_bounds", Fill::positions, "", DType::i64, true};
constexpr TensorSpec kGradLoss{"grad_loss", "", Fill::upstream, "", DType::f32};
enum Input : int { kRewards = kOldLogps + 1, kCompletionMask, kGroupBoundaries, kUpstream };

constexpr std::array kForwardIn{kPolicy, kRef, kIds, kMask, kOld, kReward, kCompletion, kBoundaries};
constexpr std::string_view kSums = "batch*seq vocab";
constexpr std::array kForwardOut{
    OutputSpec{{"loss", "", Fill::normal, "", DType::f32}, Numerics::composite, kSums},
    OutputSpec{{"policy_loss", "", Fill::normal, "", DType::f32}, Numerics::composite, kSums},
    OutputSpec{{"kl", "", Fill::normal, "", DType::f32}, Numerics::composite, kSums},
};
constexpr std::array kBackwardIn{kPolicy, kRef, kIds, kMask, kOld, kReward, kCompletion, kBoundaries, kGradLoss};
constexpr std::array kBackwardOut{
    OutputSpec{{"dpolicy_logits", kRowVocab}, Numerics::composite, "batch vocab", /*sampled=*/true}};

enum Attr : size_t { kSamplesPerPrompt, kClipEps, kBeta, kEps };
constexpr std::array kAttrs{
    AttrSpec{"samples_per_prompt", 2, "completions per group, at least 2; has no effect with group_boundaries"},
    AttrSpec{"clip_eps", 0.2, "the ratio is clipped to [1 - clip_eps, 1 + clip_eps]"},
    AttrSpec{"beta", 0.0, "weight of the KL estimate in the loss"},
    AttrSpec{"eps", 1e-6, "least standard deviation of a group's rewards"},
};

/// The completions [begin, end), and the errors of their advantages in units of u: a common shift, a common factor
/// (`scale` times the size), and for each advantage kOwn times its size.
struct Group {
  static constexpr double kOwn = 2;
  int64_t begin, end;
  double shift = 0, scale = 0;
};

/// A = (r - mu)/s, s = sqrt(max(var, eps^2)), for the rewards of one group; population variance. If all rewards are
/// equal, A must be exactly 0: such a group must not change the policy. Sums over a group grow with its number of
/// completions, not with the output's chain; this growth is part of `rounding`.
void add_advantages(const Tensor& rewards, double eps, Group& group, std::vector<GoldElement>& to) {
  Moments moments;
  for (int64_t i = group.begin; i < group.end; ++i) moments.add(rewards.at(i));
  moments.finish(/*unbiased=*/false);
  const double s = std::sqrt(std::max(moments.variance, eps * eps));
  const double of_variance = moments.variance > eps * eps ? 0.5 : 0.0;
  const double growth = units_of_sum(static_cast<double>(group.end - group.begin));
  if (!moments.equal) {
    // Moments::standardised() adds up the same errors.
    group.shift = (growth * moments.size + std::abs(moments.whole_mean())) / s;
    group.scale = growth * of_variance + 3;
  }
  for (int64_t i = group.begin; i < group.end; ++i) {
    const GoldElement a = moments.standardised(rewards.at(i), s, of_variance);
    to.push_back(moments.equal ? GoldElement{0, 0, 0} : GoldElement{a.value, 0, a.rounding + growth * a.magnitude});
  }
}

/// 1 where both masks are nonzero.
std::vector<char> active_tokens(const Tensor& attention, const Tensor& completion) {
  std::vector<char> active = read_mask(attention);
  const std::vector<char> completed = read_mask(completion);
  for (size_t i = 0; i < active.size(); ++i) active[i] = active[i] != 0 && completed[i] != 0;
  return active;
}

/// Values that the tokens share.
struct Batch {
  std::vector<char> active;
  double n_active = 0;
  std::vector<int64_t> ids;
  std::vector<Group> groups;
  std::vector<GoldElement> advantages;  ///< per completion
  double clip, beta;
  int64_t seq, vocab;

  explicit Batch(const GoldArgs& args)
      : active(active_tokens(args.in(kAttentionMask), args.in(kCompletionMask))),
        clip(args.attrs[kClipEps]),
        beta(args.attrs[kBeta]),
        seq(args.in(kActionIds).shape.back()),
        vocab(args.in(kPolicyLogits).shape.back()) {
    for (const char token : active) n_active += token;
    ids = read_active_ids(args.in(kActionIds), active, vocab);
    const std::vector<int64_t> bounds =
        read_groups(args.inputs[kGroupBoundaries], args.in(kRewards).count(), args.attrs[kSamplesPerPrompt]);
    for (size_t g = 1; g < bounds.size(); ++g) {
      groups.push_back({bounds[g - 1], bounds[g]});
      add_advantages(args.in(kRewards), args.attrs[kEps], groups.back(), advantages);
    }
  }

  const GoldElement& advantage(int64_t row) const { return advantages[static_cast<size_t>(row / seq)]; }
  double divisor() const { return std::max(n_active, 1e-8); }
};

/// Which branch of min(ratio*A, clamp(ratio)*A) holds, and whether an equally accurate ratio could take the other one.
/// "Could" means within the bound of ratio in fp32 with a chain of 1024 and lambda 6, plus two roundings of the edge.
struct Branch {
  double edge;  ///< 1 + clip; 1 - clip for A < 0
  bool clipped, either;

  Branch(const PolicyToken& token, double advantage, double clip) : edge(advantage < 0 ? 1 - clip : 1 + clip) {
    constexpr double kUnit = 0x1p-24, kGrowth = 192 * kUnit;
    const GoldElement& r = token.ratio;
    clipped = advantage < 0 ? r.value < edge : r.value > edge;
    either = std::abs(r.value - edge) <= kGrowth * r.magnitude + kUnit * (r.rounding + 2 * edge);
  }
};

/// L = -min(ratio*A, clamp(ratio)*A). It is continuous and changes at most as fast as ratio*A.
struct TokenLoss {
  GoldElement own{0, 0, 0};  ///< with the token's own errors
  double factor = 0;         ///< of the advantage
  double attributes = 0;     ///< see TokenMean
  double key = 0;            ///< see TokenMean

  TokenLoss() = default;
  TokenLoss(const PolicyToken& token, const GoldElement& a, double clip) : key(token.logp) {
    const Branch branch(token, a.value, clip);
    factor = branch.clipped ? branch.edge : token.ratio.value;
    const double size = std::abs(a.value);
    own = {-factor * a.value, 0, 3 * size * factor};
    // The edge is the same in all tokens, and its product with the advantage in those of a completion.
    if (branch.clipped) attributes = 2 * size * factor;
    if (!branch.clipped || branch.either)
      own.magnitude = size * token.ratio.magnitude, own.rounding += size * token.ratio.rounding;
  }
};

/// Adds what the tokens of a group take from its advantages: `losses` has the tokens of all completions.
void add_shared(const Group& group, const std::vector<TokenLoss>& losses, int64_t seq, TokenMean& to) {
  double factors = 0, terms = 0;
  for (int64_t completion = group.begin; completion < group.end; ++completion) {
    double of_completion = 0;
    for (int64_t i = completion * seq; i < (completion + 1) * seq; ++i) {
      const TokenLoss& loss = losses[static_cast<size_t>(i)];
      factors += loss.factor, of_completion += loss.own.value;
    }
    to.add_shared(Group::kOwn * std::abs(of_completion));
    terms += of_completion;
  }
  to.add_shared(group.shift * factors + group.scale * std::abs(terms));
}

/// c of one token, where `g` is the upstream gradient over n and `unit` the roundoff of the arithmetic. Values that do
/// not enter c (a clipped ratio, a kl with weight 0) may be infinite.
GoldElement coefficient(PolicyToken& token, const Branch& branch, const GoldElement& a, double g, double beta,
                        double unit) {
  const double share = std::abs(g) * token.ratio.value;
  const bool counts = !branch.clipped || branch.either;
  if (!counts) token.ratio = {0, 0, 0};
  if (beta == 0) token.slope = {0, 0, 0};
  GoldElement c = policy_coefficient(token, -a.value * g, beta * g);
  c.rounding += 4 * std::abs(beta * g * token.slope.value);  // beta itself, products, the division by n
  if (!counts) return c;
  c.magnitude += share * a.magnitude;
  c.rounding += share * a.rounding + 3 * share * std::abs(a.value);
  if (branch.clipped) c.value = beta * g * token.slope.value;
  if (branch.either) c.rounding += share * std::abs(a.value) / unit;
  return c;
}

/// The part of c that comes from the ratio.
GoldElement of_ratio(const PolicyToken& token, const Branch& branch, const GoldElement& a, double g, double unit) {
  if (branch.clipped && !branch.either) return exact(0);
  const double size = std::abs(g);
  GoldElement e =
      GoldElement{-a.value * g, size * a.magnitude, size * (a.rounding + 3 * std::abs(a.value))} * token.ratio;
  if (branch.either) e.rounding += std::abs(e.value) / unit;
  if (branch.clipped) e.value = 0;
  return e;
}

/// Gold of grpo_loss. A token is active where attention_mask != 0 and completion_mask != 0.
///   in:  policy_logits, ref_logits[batch, seq, vocab], action_ids, attention_mask, old_logps[batch, seq],
///        rewards[batch], completion_mask[batch, seq], optional group_boundaries[group_bounds]
///   out: loss, policy_loss, kl: scalars
///   A = (r - mu)/sqrt(max(var, eps^2)) per group of completions,  L = -min(ratio*A, clamp(ratio, 1-c, 1+c)*A)
///   policy_loss = sum of L/max(n, 1e-8) over the n active tokens, kl likewise,  loss = policy_loss + beta*kl
/// ratio and kl of a token are those of ratio_kl. Inactive tokens are not read; without active tokens all three outputs
/// are 0.
/// Throws InputError for an active id outside [0, vocab) and for boundaries that do not partition the batch.
void forward(const GoldArgs& args) {
  const Batch batch(args);
  std::vector<TokenLoss> losses(batch.active.size());
  std::vector<GoldElement> kls(losses.size());
  args.parallel_for(std::ssize(batch.active), [&](int64_t row) {
    const auto i = static_cast<size_t>(row);
    if (batch.active[i] == 0) return;
    static thread_local std::vector<double> z;
    z.resize(static_cast<size_t>(batch.vocab));
    const PolicyToken token = policy_token(args, row, batch.ids[i], z);
    losses[i] = TokenLoss(token, batch.advantage(row), batch.clip);
    kls[i] = token.kl;
  });
  TokenMean of_losses, of_kls;
  for (size_t i = 0; i < losses.size(); ++i) {
    if (batch.active[i] == 0) continue;
    of_losses.add(losses[i].own, 1, losses[i].key, losses[i].attributes);
    of_kls.add(kls[i], 1, losses[i].key);
  }
  for (const Group& group : batch.groups) add_shared(group, losses, batch.seq, of_losses);
  const GoldElement policy = of_losses.over(batch.divisor()), kl = of_kls.over(batch.divisor());
  GoldElement loss = policy;
  const double weight = std::abs(batch.beta);
  if (weight != 0) {
    loss.value += batch.beta * kl.value, loss.magnitude += weight * kl.magnitude;
    loss.rounding += weight * kl.rounding + 2 * weight * std::abs(kl.value) + std::abs(loss.value);
  }
  int output = 0;
  for (const GoldElement& e : {loss, policy, kl}) {
    args.sink({output++, 0, 1, 1, &e.value, &e.magnitude, &e.rounding});
  }
}

/// Gold of grpo_loss's gradient. The outputs policy_loss and kl have no upstream gradient.
///   in:  as forward, then grad_loss, a scalar     out: dpolicy_logits[batch, seq, vocab]
///   dz_v = c*(1[v = t] - softmax(policy)_v),  c = g/n*(-A*ratio*[unclipped is the min] + beta*(1 - exp(lr - lp)))
/// If a token's ratio is so near the clip edge that either branch may be taken, its bound includes |A*ratio*g/n|, as
/// `rounding` over the unit roundoff.
/// Source: differentiated by hand; checked by gradient_test and grpo_loss_test.
void backward(const GoldArgs& args) {
  const Batch batch(args);
  const double g = args.in(kUpstream).at(0) / batch.divisor();
  const double unit = args.in(kPolicyLogits).dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  args.for_rows(0, args.in(kActionIds).count(), [&](int64_t row) {
    RowScratch& s = row_scratch(batch.vocab);
    if (batch.active[static_cast<size_t>(row)] == 0) {
      for (auto* array : {&s.value, &s.magnitude, &s.rounding}) array->assign(static_cast<size_t>(batch.vocab), 0.0);
    } else {
      const int64_t id = batch.ids[static_cast<size_t>(row)];
      PolicyToken token = policy_token(args, row, id, s.z);
      const GoldElement& a = batch.advantage(row);
      const Branch branch(token, a.value, batch.clip);
      const PolicyGradient gradient(args, token.policy,
                                    rounds_coefficient(args)
                                        ? rounded_coefficient(args, token, of_ratio(token, branch, a, g, unit),
                                                              {batch.beta * g, 0, 4 * std::abs(batch.beta * g)})
                                        : coefficient(token, branch, a, g, batch.beta, unit));
      for (int64_t v = 0; v < batch.vocab; ++v) {
        const auto at = static_cast<size_t>(v);
        const GoldElement e = gradient(s.z[at], v == id);
        s.value[at] = e.value, s.magnitude[at] = e.magnitude, s.rounding[at] = e.rounding;
      }
    }
    args.sink({0, row, 1, batch.vocab, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

/// Inactive tokens must have gradient 0.
void check_masked(const IdentityArgs& args) {
  check_zero_rows(args, 0, active_tokens(args.in(kAttentionMask), args.in(kCompletionMask)));
}

Work work(const GoldArgs& args) {
  const std::vector<char> active = active_tokens(args.in(kAttentionMask), args.in(kCompletionMask));
  return {0, bytes_left_out(args.in(kPolicyLogits), active) + bytes_left_out(args.in(kRefLogits), active)};
}

constexpr std::array kForwardRecipes{
    Recipe{recipe::kLogp, "loss policy_loss kl", k16Bit, /*exact=*/true,
           "ratio = exp(round(lp) - old_logps), kl of round(lp), round(lr)", kSelectiveLogSoftmax},
    Recipe{recipe::kKl, "loss kl", k16Bit, /*exact=*/true,
           "kl of a token = round(round(e - d) - 1), d = round(lr - lp), e = round(exp(d))", kKlOf16Bit}};
constexpr std::array kBackwardRecipes{
    Recipe{recipe::kLogp, "dpolicy_logits", k16Bit, /*exact=*/true,
           "c of round(lp), round(lr), dpolicy_logits_v = c (1[v = t] - exp(round(z_v - lse(z))))",
           kSelectiveLogSoftmax},
    Recipe{recipe::kKl, "dpolicy_logits", k16Bit, /*exact=*/true,
           "c = round(c of the ratio) - round(round(round(g beta/n) e) - round(g beta/n))", kKlOf16Bit},
    Recipe{recipe::kUpstream, "dpolicy_logits", k16Bit, /*exact=*/true,
           "dpolicy_logits_v = round(c) (1[v = t] - softmax(z)_v)", kGradientOf16Bit}};

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, work, &kGrpoLossForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, check_masked, work, &kGrpoLossBackward, nullptr,
         kBackwardRecipes}};

void validate(const CaseSizes& sizes) {
  validate_groups(sizes, sizes.attrs[kSamplesPerPrompt]);
  if (!(sizes.attrs[kClipEps] >= 0 && sizes.attrs[kClipEps] < 1)) {
    throw InputError("--clip-eps", fmt::format("expected a number in [0, 1), got {}", sizes.attrs[kClipEps]),
                     "0.2 is usual");
  }
  if (!(sizes.attrs[kEps] > 0)) {
    throw InputError("--eps", fmt::format("expected a number above 0, got {}", sizes.attrs[kEps]), "1e-6 is usual");
  }
}

/// Of every four groups of rewards, the second differs by about eps, and the third has equal rewards, whose FP32 sum
/// divided by their number need not be the reward.
void plant_rewards(Tensor& rewards, double eps, const std::vector<int64_t>& bounds) {
  constexpr double kReward = 0.001;
  for (size_t group = 0; group + 1 < bounds.size(); ++group) {
    for (int64_t i = bounds[group]; i < bounds[group + 1]; ++i) {
      if (group % 4 == 1) rewards.set(i, rewards.at(i) * eps);
      if (group % 4 == 2) rewards.set(i, kReward);
    }
  }
}

void refine(const FillArgs& args) {
  refine_old_logps(args);
  plant_masked_tokens(args, active_tokens(*args.find("attention_mask"), *args.find("completion_mask")));
  Tensor *const rewards = args.find("rewards"), *const boundaries = args.find("group_boundaries");
  plant_boundaries(args, rewards->count());
  plant_rewards(*rewards, args.attrs[kEps], read_groups(boundaries, rewards->count(), args.attrs[kSamplesPerPrompt]));
}

}  // namespace
}  // namespace grpo_loss

extern const Operator kGrpoLoss;
constexpr Operator kGrpoLoss{"grpo_loss",
                             "logprob",
                             "loss = mean of -min(ratio*A, clamp(ratio, 1-clip_eps, 1+clip_eps)*A) over active tokens "
                             "+ beta * mean kl; A: rewards normalised per group; ratio, kl: ratio_kl",
                             "",
                             grpo_loss::kAttrs,
                             grpo_loss::kPasses,
                             grpo_loss::validate,
                             grpo_loss::refine,
                             /*parallel_dim=*/"",
                             /*left_out=*/"masked tokens"};

}  // namespace checkop
