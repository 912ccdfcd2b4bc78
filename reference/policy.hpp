// SPDX-License-Identifier: Apache-2.0
// Code shared by ratio_kl and grpo_loss: probability ratio and KL estimate of one token in FP64, with their error
// coefficients; the logit gradient; the old log-probabilities of generated inputs.
#pragma once

#include <string_view>
#include <vector>

#include "gold_element.hpp"
#include "operator/operator.hpp"
#include "softmax.hpp"

namespace checkop {

/// Indices of these inputs in both operators.
enum PolicyInput : int { kPolicyLogits, kRefLogits, kActionIds, kAttentionMask, kOldLogps };

/// One active token. With lp, lr the log-probabilities of its action under policy and reference:
///   delta = lp - old,  ratio = exp(delta)     d = lr - lp,  kl = exp(d) - d - 1     slope = dkl/dlp = 1 - exp(d)
/// To first order, with E(.) the error of its argument and E(lp) that of logp:
///   E(delta) = E(lp) + u|delta|                E(ratio) = ratio*(E(delta) + kExpUnits u)
///   E(d) = E(lp) + E(lr) + u|d|                E(kl) = |exp(d) - 1|*E(d) + u*(kExpUnits exp(d) + |d| + 1)
///                                              E(slope) = exp(d)*(E(d) + kExpUnits u) + u|slope|
/// The bound of kl is absolute: near d = 0 the definition cancels, and a kl of 0 is as accurate as any other.
///
/// In kernels that round to the dtype of the case, by recipe:
///   logp_in_16_bit   lp and lr
///   kl_in_16_bit     every step of kl: d, exp(d), exp(d) - d, and exp(d) - d - 1
/// Where a rounding may go to either side, E(lp) is a whole step, and E(exp(lp)) = exp(E(lp)) - 1.
struct PolicyToken {
  SoftmaxRow policy;
  double logp, delta, d;  ///< lp, lp - old, lr - lp
  GoldElement ratio, kl, slope;
  GoldElement growth;  ///< exp(d)
};

/// Computes token `row` with action `id`. Leaves the policy's logits in `z`.
PolicyToken policy_token(const GoldArgs& args, int64_t row, int64_t id, std::vector<double>& z);

/// Gradient of a function of lp by the logit z of the same row: dz = c*(1[z selected] - softmax). Both operands have
/// errors. With logp_in_16_bit the softmax is exp(round(z - lse)).
class PolicyGradient {
 public:
  PolicyGradient(const GoldArgs& args, const SoftmaxRow& row, const GoldElement& c);
  GoldElement operator()(double z, bool selected) const;

 private:
  LogitGradient unit_;
  RoundedLogitGradient rounded_unit_;
  bool rounds_logp_;
  GoldElement c_;
};

/// c = g_ratio*dratio/dlp + g_kl*dkl/dlp for the log-probability of a token.
GoldElement policy_coefficient(const PolicyToken& token, double g_ratio, double g_kl);

/// Whether a kernel with the active recipes rounds c.
bool rounds_coefficient(const GoldArgs& args);
/// c in a kernel with these recipes, where `of_ratio` = g_ratio*dratio/dlp:
///   kl_in_16_bit                  c = round(of_ratio) - round(round(round(g_kl) e) - round(g_kl)),  e = exp(d) as it
///                                 was rounded: each step of autograd makes a 16-bit tensor
///   upstream_gradient_in_16_bit   round(c)
GoldElement rounded_coefficient(const GoldArgs& args, const PolicyToken& token, const GoldElement& of_ratio,
                                const GoldElement& g_kl);

/// Kernels that have the recipes of both operators.
inline constexpr std::string_view
    kSelectiveLogSoftmax = "selective_log_softmax of TRL, and F.log_softmax of 16-bit logits in verl and OpenRLHF",
    kKlOf16Bit = "GRPOTrainer of TRL: exp(lr - lp) - (lr - lp) - 1 of 16-bit log-probabilities",
    kGradientOf16Bit = "autograd of a 16-bit log-probability: its gradient is a 16-bit tensor";

/// The ids of rows with active[row] != 0; 0 for other rows, whose ids may be anything.
/// Throws InputError that names the first active id outside [0, vocab).
std::vector<int64_t> read_active_ids(const Tensor& ids, const std::vector<char>& active, int64_t vocab);

/// 1 where the mask is nonzero.
std::vector<char> read_mask(const Tensor& mask);

/// Fills some tokens with active[row] == 0 with payloads that must not be read: NaN, infinities, ids out of range.
/// Other inactive tokens stay as they are.
void plant_masked_tokens(const FillArgs& args, const std::vector<char>& active);

/// Sets old_logps to the log-probability of each row's own action plus N(0, 0.02), and plus or minus 5 in 0.1 % of the
/// rows: the policy has moved a little since the tokens were sampled. Computed from the stored logits in FP64, rounded
/// once.
void refine_old_logps(const FillArgs& args);

}  // namespace checkop
