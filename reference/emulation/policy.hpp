// SPDX-License-Identifier: Apache-2.0
// Code shared by the emulations of ratio_kl and grpo_loss: ratio and KL estimate of one token, and their faults.
#pragma once

#include "emulation/common.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kMaskIgnored{"mask_ignored", "masked tokens count like the others", "nonfinite"};
inline constexpr FaultSpec kMaskedMultiplied{"masked_multiplied", "a masked token is computed, then multiplied by 0",
                                             "nonfinite"};
inline constexpr FaultSpec kOldIgnored{"old_ignored", "the ratio is that of the policy to itself, 1"};
inline constexpr FaultSpec kRefForOld{"ref_for_old", "the ratio is that of the policy to the reference"};
inline constexpr FaultSpec kRatioInverted{"ratio_inverted", "the ratio is that of the old policy to the policy"};
inline constexpr FaultSpec kBf16Logps{"bf16_logps",
                                      "log-probabilities are rounded to bf16 before differences are taken"};
inline constexpr FaultSpec kKlReversed{"kl_reversed", "policy and reference change places in the KL estimate"};
inline constexpr FaultSpec kKlLinear{"kl_linear", "the KL estimate is lp - lr, its first order: k1"};
inline constexpr FaultSpec kKlSquare{"kl_square", "the KL estimate is half the square of lr - lp: k2"};
inline constexpr FaultSpec kKlTermDropped{"kl_term_dropped", "the KL estimate has no gradient"};
inline constexpr FaultSpec kKlSignFlipped{"kl_sign_flipped", "the gradient of the KL estimate has the wrong sign"};
inline constexpr FaultSpec kRefSoftmax{"ref_softmax", "the gradient has the softmax of the reference"};

/// How a token is treated. An inactive token is left out, unless a fault is planted.
enum class Fate : uint8_t { left_out, multiplied, computed };
inline Fate fate_of(const Arithmetic& arithmetic, bool active) {
  if (active) return Fate::computed;
  return arithmetic.has(kMaskedMultiplied.name) ? Fate::multiplied : Fate::left_out;
}

/// Inputs that both operators read, masked tokens included.
struct PolicyInputs {
  Matrix policy, ref;
  std::vector<int64_t> ids, mask;
  std::vector<float> old_logps;

  explicit PolicyInputs(const EmulationArgs& args)
      : policy(matrix(args, 0)),
        ref(matrix(args, 1)),
        ids(args.integers(2)),
        mask(args.integers(3)),
        old_logps(args.floats(4)) {}
  int64_t tokens() const { return std::ssize(ids); }

  /// The token's id in the emulated kernel. Masked tokens may have ids outside the vocabulary; these are clamped into
  /// it.
  int64_t id(const Arithmetic& arithmetic, int64_t token) const {
    const int64_t given = std::clamp<int64_t>(ids[static_cast<size_t>(token)], 0, policy.columns - 1);
    return label(arithmetic, given, policy.columns);
  }
};

/// With lp, lr the log-probabilities of the token's action under policy and reference, and d = lr - lp:
///   log_ratio = lp - old     ratio = exp(log_ratio)     kl = exp(d) - d - 1     kl_slope = dkl/dlp = 1 - exp(d)
struct PolicyToken {
  float log_ratio, ratio, kl, kl_slope;
};
PolicyToken policy_token(const Arithmetic& arithmetic, const PolicyInputs& in, int64_t token);
/// The derivative c of a function of lp, of which `of_ratio` comes from the ratio: of_ratio + g_kl kl_slope.
float policy_coefficient(const Arithmetic& arithmetic, const PolicyToken& token, float of_ratio, float g_kl);

/// Stores c (1[v = id] - softmax(policy)_v) in to[0 ... vocab): the gradient of a function of lp with derivative c.
void policy_gradient_row(const Arithmetic& arithmetic, const PolicyInputs& in, int64_t token, float c, double* to);

}  // namespace checkop::emulation
