// SPDX-License-Identifier: Apache-2.0
// policy_loss: the losses of PPO and its kin over log-probabilities, with their gradient.
#include <array>
#include <vector>

#include "gold_element.hpp"
#include "operator/operator.hpp"
#include "policy_tokens.hpp"
#include "rearranged.hpp"

namespace checkop {

extern const Emulation kPolicyLossForward, kPolicyLossBackward;  // emulation/policy_loss.cpp

namespace policy_loss {
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

PolicyTokens tokens_of(const GoldArgs& args) {
  const auto read = [&](Input input) {
    std::vector<GoldElement> values;
    for (int64_t i = 0; args.has(input) && i < args.in(input).count(); ++i)
      values.push_back(exact(args.in(input).at(i)));
    return values;
  };
  constexpr double kGrowth = 192;  // a chain of 1024 and lambda 6, as for the branches of grpo_loss
  return {{read(kOfLogps), read(kOfEntropy), args.in(kOfLogps).shape.back(), args.in(kOfOld), args.in(kOfAdvantages),
           args.in(kOfMask), args.inputs[kOfRef], args.inputs[kOfRollout], args.inputs[kOfDenom], kGrowth},
          args.attrs};
}

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
  const PolicyTokens::Losses losses = tokens_of(args).losses();
  const std::array results{losses.loss, losses.policy_loss, losses.kl, losses.clip_fraction};
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
  const PolicyTokens tokens = tokens_of(args);
  const double g = args.in(kOfGrad).at(0);
  const int64_t seq = args.in(kOfLogps).shape.back();
  for (int64_t first = 0; first < tokens.count(); first += seq) {
    for (int output = 0; output < (args.has(kOfEntropy) ? 2 : 1); ++output) {
      std::vector<double> value, magnitude, rounding;
      for (int64_t i = first; i < first + seq; ++i) {
        const GoldElement e = output == 0 ? tokens.by_logp(i, g) : tokens.by_entropy(i, g);
        value.push_back(e.value), magnitude.push_back(e.magnitude), rounding.push_back(e.rounding);
      }
      args.sink({output, first / seq, 1, seq, value.data(), magnitude.data(), rounding.data()});
    }
  }
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kPolicyLossForward},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kPolicyLossBackward}};

void refine(const FillArgs& args) {
  Tensor& logps = *args.find("logps");
  std::vector<double> values;
  for (int64_t i = 0; i < logps.count(); ++i) {
    values.push_back(-4 * args.uniform("logps", static_cast<uint64_t>(i)));
    logps.set(i, values.back());
  }
  fill_policy_batch(args, values);
  if (Tensor* const entropy = args.find("entropy"); entropy != nullptr) {
    for (int64_t i = 0; i < entropy->count(); ++i)
      entropy->set(i, 3 * args.uniform("entropy", static_cast<uint64_t>(i)));
  }
  plant_masked_policy_tokens(args);
}

}  // namespace
}  // namespace policy_loss

extern const Operator kPolicyLoss;
constexpr Operator kPolicyLoss{
    "policy_loss",
    "logprob",
    "loss = mean of max(-A r, -A clip(r)) + kl_coef * mean kl - entropy_coef * mean entropy over "
    "active tokens, r = exp(logps - old_logps); masked tokens are left out",
    "",
    kPolicyAttrs,
    policy_loss::kPasses,
    validate_policy_attrs,
    policy_loss::refine,
    /*parallel_dim=*/"",
    /*left_out=*/"masked tokens",
    kMicroBatches};

}  // namespace checkop
