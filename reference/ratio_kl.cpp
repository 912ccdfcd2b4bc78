// SPDX-License-Identifier: Apache-2.0
// ratio_kl: probability ratio of policy to old policy, and the k3 estimate of KL to a reference, of one token per row.
#include <array>
#include <vector>

#include "identity.hpp"
#include "left_out.hpp"
#include "operator/operator.hpp"
#include "policy.hpp"
#include "recipes.hpp"

namespace checkop {

extern const Emulation kRatioKlForward, kRatioKlBackward;  // emulation/ratio_kl.cpp

namespace ratio_kl {
namespace {

constexpr std::string_view kRow = "batch seq", kRowVocab = "batch seq vocab";
constexpr TensorSpec kPolicy{"policy_logits", kRowVocab, Fill::logits, "vocab"};
constexpr TensorSpec kRef{"ref_logits", kRowVocab, Fill::logits, "vocab", {}, false, true};
constexpr TensorSpec kIds{"action_ids", kRow, Fill::ids, "vocab", DType::i64};
constexpr TensorSpec kMask{"attention_mask", kRow, Fill::mask, "", DType::u8};
constexpr TensorSpec kOld{"old_logps", kRow, Fill::normal, "", DType::f32, false, true};
constexpr TensorSpec kGradRatio{"grad_ratio", kRow, Fill::upstream, "", DType::f32};
constexpr TensorSpec kGradKl{"grad_kl", kRow, Fill::upstream, "", DType::f32};

constexpr std::array kForwardIn{kPolicy, kRef, kIds, kMask, kOld};
constexpr std::array kForwardOut{
    OutputSpec{{"ratio", kRow, Fill::normal, "", DType::f32}, Numerics::logprob, "vocab", /*sampled=*/true},
    OutputSpec{{"kl", kRow, Fill::normal, "", DType::f32}, Numerics::logprob, "vocab", /*sampled=*/true},
};
constexpr std::array kBackwardIn{kPolicy, kRef, kIds, kMask, kOld, kGradRatio, kGradKl};
constexpr std::array kBackwardOut{
    OutputSpec{{"dpolicy_logits", kRowVocab}, Numerics::logprob, "vocab", /*sampled=*/true}};

/// Gold of ratio_kl.
///   in:  policy_logits, ref_logits[batch, seq, vocab], action_ids, attention_mask, old_logps[batch, seq]
///   out: ratio, kl[batch, seq]
///   ratio = exp(lp - old),  kl = exp(lr - lp) - (lr - lp) - 1;  lp, lr: log-probability of the action
/// Where the mask is 0: ratio 1 and kl 0, and the logits, id and old_logps are not read.
/// Throws InputError for an active id outside [0, vocab).
void forward(const GoldArgs& args) {
  const int64_t vocab = args.in(kPolicyLogits).shape.back();
  const std::vector<char> active = read_mask(args.in(kAttentionMask));
  const std::vector<int64_t> ids = read_active_ids(args.in(kActionIds), active, vocab);
  args.for_rows(0, args.in(kActionIds).count(), [&](int64_t row) {
    GoldElement ratio{1, 0, 0}, kl{0, 0, 0};
    if (active[static_cast<size_t>(row)] != 0) {
      const PolicyToken token = policy_token(args, row, ids[static_cast<size_t>(row)], row_scratch(vocab).z);
      ratio = token.ratio, kl = token.kl;
    }
    args.sink({0, row, 1, 1, &ratio.value, &ratio.magnitude, &ratio.rounding});
    args.sink({1, row, 1, 1, &kl.value, &kl.magnitude, &kl.rounding});
  });
}

/// Gold of ratio_kl's gradient.
///   in:  as forward, then grad_ratio, grad_kl[batch, seq]     out: dpolicy_logits[batch, seq, vocab]
///   c = g_ratio*ratio + g_kl*(1 - exp(lr - lp)),  dz_v = c*(1[v = t] - softmax(policy)_v);  0 where the mask is 0
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const int64_t vocab = args.in(kPolicyLogits).shape.back();
  const std::vector<char> active = read_mask(args.in(kAttentionMask));
  const std::vector<int64_t> ids = read_active_ids(args.in(kActionIds), active, vocab);
  args.for_rows(0, args.in(kActionIds).count(), [&](int64_t row) {
    RowScratch& s = row_scratch(vocab);
    if (active[static_cast<size_t>(row)] == 0) {
      s.clear_results();
    } else {
      const auto target = static_cast<size_t>(ids[static_cast<size_t>(row)]);
      const PolicyToken token = policy_token(args, row, ids[static_cast<size_t>(row)], s.z);
      const double of_ratio = args.in(5).at(row), of_kl = args.in(6).at(row);
      const PolicyGradient gradient(args, token.policy,
                                    rounds_coefficient(args)
                                        ? rounded_coefficient(args, token, exact(of_ratio) * token.ratio, exact(of_kl))
                                        : policy_coefficient(token, of_ratio, of_kl));
      for (size_t v = 0; v < s.z.size(); ++v) {
        const GoldElement e = gradient(s.z[v], v == target);
        s.value[v] = e.value, s.magnitude[v] = e.magnitude, s.rounding[v] = e.rounding;
      }
    }
    args.sink({0, row, 1, vocab, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

/// Masked tokens must have gradient 0.
void check_masked(const IdentityArgs& args) { check_zero_rows(args, 0, read_mask(args.in(kAttentionMask))); }

Work work(const GoldArgs& args) {
  const std::vector<char> active = read_mask(args.in(kAttentionMask));
  return {0, bytes_left_out(args.in(kPolicyLogits), active) + bytes_left_out(args.in(kRefLogits), active)};
}

constexpr std::array kForwardRecipes{
    Recipe{recipe::kLogp, "ratio kl", k16Bit, /*exact=*/true,
           "ratio = exp(round(lp) - old_logps), kl of round(lp), round(lr)", kSelectiveLogSoftmax},
    Recipe{recipe::kKl, "kl", k16Bit, /*exact=*/true,
           "kl = round(round(e - d) - 1), d = round(lr - lp), e = round(exp(d))", kKlOf16Bit}};
constexpr std::array kBackwardRecipes{
    Recipe{recipe::kLogp, "dpolicy_logits", k16Bit, /*exact=*/true,
           "c of round(lp), round(lr), dpolicy_logits_v = c (1[v = t] - exp(round(z_v - lse(z))))",
           kSelectiveLogSoftmax},
    Recipe{recipe::kKl, "dpolicy_logits", k16Bit, /*exact=*/true,
           "c = round(g_ratio ratio) - round(round(round(g_kl) e) - round(g_kl))", kKlOf16Bit},
    Recipe{recipe::kUpstream, "dpolicy_logits", k16Bit, /*exact=*/true,
           "dpolicy_logits_v = round(c) (1[v = t] - softmax(z)_v)", kGradientOf16Bit}};

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, work, &kRatioKlForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, check_masked, work, &kRatioKlBackward, nullptr,
         kBackwardRecipes}};

void refine(const FillArgs& args) {
  refine_old_logps(args);
  plant_masked_tokens(args, read_mask(*args.find("attention_mask")));
}

}  // namespace
}  // namespace ratio_kl

extern const Operator kRatioKl;
constexpr Operator kRatioKl{"ratio_kl",
                            "logprob",
                            "ratio = exp(lp - old_logps), kl = exp(lr - lp) - (lr - lp) - 1, lp = policy logp of the "
                            "action, lr = ref logp; masked: 1 and 0",
                            ratio_kl::kRow,
                            {},
                            ratio_kl::kPasses,
                            nullptr,
                            ratio_kl::refine,
                            /*parallel_dim=*/"",
                            /*left_out=*/"masked tokens"};

}  // namespace checkop
