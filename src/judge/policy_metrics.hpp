// SPDX-License-Identifier: Apache-2.0
// Metrics for the effect of log-probability errors on policy-gradient training.
#pragma once

#include <cstdint>
#include <span>

#include "contract/gate.hpp"

namespace checkop {

/// The log-probability of one token, or its ratio of probabilities, and the bound of its error.
struct Token {
  double got, gold, bound;
};

/// Metrics over tokens. For logp outputs d = got - gold; for ratio outputs d = log(got) - log(gold), the error of the
/// ratio's logp. If a trainer takes old and new log-probabilities from different kernels, it sees the ratio exp(d)
/// where it should see 1.
///   max_abs_dlogp    max |d|
///   k3_mean, k3_max  of exp(d) - 1 - d >= 0: the k3 estimate of the KL divergence between both kernels' policies; 0
///                    for a log-probability below -104 that is finite in both
///   ratio_deviation  max |exp(d) - 1|
///   clip_flips       share of tokens whose clipping by PPO changes.
///                    logp: exp(d) is outside of [1 - eps, 1 + eps].
///                    ratio: got and gold are on different sides of an edge of that interval, and the gold is further
///                    from the edge than its bound (closer to it, both sides are right).
/// If an error is within its bound B, |d| <= B and k3 <= exp(B) - 1 - B, about B^2/2. The metrics are infinite if got
/// or gold is not finite, unless both are equal.
/// Source: Schulman, "Approximating KL divergence", 2020; Schulman et al., "Proximal policy optimization", 2017.
struct PolicyMetrics {
  int64_t tokens = 0;
  double max_abs_dlogp = 0, k3_mean = 0, k3_max = 0, ratio_deviation = 0, clip_flips = 0;
  double clip_eps = 0.2;
};
PolicyMetrics policy_metrics(TokenQuantity quantity, std::span<const Token> tokens, double clip_eps);

}  // namespace checkop
