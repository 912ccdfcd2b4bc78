// SPDX-License-Identifier: Apache-2.0
// What errors of log-probabilities do to policy-gradient training.
#pragma once

#include <cstdint>
#include <span>

#include "contract/gate.hpp"

namespace checkop {

/// One token's log-probability, or ratio of probabilities, and what an error of it may be.
struct Token {
  double got, gold, bound;
};

/// Of tokens with d = got - gold of logp; of a ratio, d = log(got) - log(gold), the error of its logp. A trainer that
/// takes old log-probabilities from another kernel than new ones sees the ratio exp(d) where it should see 1.
///   max_abs_dlogp    max |d|
///   k3_mean, k3_max  of exp(d) - 1 - d >= 0: the k3 estimate of the KL divergence between both kernels' policies
///   ratio_deviation  max |exp(d) - 1|
///   clip_flips       share of tokens that PPO's clip treats otherwise: of logp, those with exp(d) outside of
///                    [1 - eps, 1 + eps]; of a ratio, those on another side of an edge of that interval than the gold,
///                    unless the gold is within its bound of that edge, where either side is right
/// Where an error is within its bound B, |d| <= B, and k3 <= exp(B) - 1 - B, about B^2/2. Infinite where either value
/// is not finite, except where both are the same. Source: Schulman, "Approximating KL divergence", 2020; Schulman et
/// al., "Proximal policy optimization", 2017.
struct PolicyMetrics {
  int64_t tokens = 0;
  double max_abs_dlogp = 0, k3_mean = 0, k3_max = 0, ratio_deviation = 0, clip_flips = 0;
  double clip_eps = 0.2;

  double of(Metric metric) const;  ///< that is_of_tokens()
};
PolicyMetrics policy_metrics(TokenQuantity quantity, std::span<const Token> tokens, double clip_eps);

}  // namespace checkop
