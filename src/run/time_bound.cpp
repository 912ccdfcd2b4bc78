// SPDX-License-Identifier: Apache-2.0
// The arithmetic of bounds.
#include "run/time_bound.hpp"

#include <algorithm>

#include "run/bench.hpp"

namespace checkop {

TimeBound time_bound_of(const SeenPasses& passes) {
  constexpr double kTolerance = 0.1;  // launches back to back run at slightly lower clocks of the GPU and its memory
  const auto launches = static_cast<double>(passes.launches);
  const double noise = quantile(passes.empty_ms, 0.8) - quantile(passes.empty_ms, 0.2);
  // A machine that is busy with something else only adds to a time. So the least of both say what the launches take,
  // but not what they take at least: it may have added to each of the few passes with launches.
  const double own = std::ranges::min(passes.own_ms), seen = own - std::ranges::min(passes.empty_ms);
  const double sure = own - quantile(passes.empty_ms, 0.5) - kAroundMs - noise;
  constexpr double kBusyMs = 0.1;  // more than an idle device's times spread
  return {(1 - kTolerance) * sure / launches - passes.written_ms, seen / launches, (seen + kAroundMs) / launches,
          noise >= kBusyMs && !(sure > 0)};
}

int64_t overrule(std::vector<double>& claimed_ms, const std::vector<TimeBound>& bounds) {
  int64_t n = 0;
  for (double& ms : claimed_ms) {
    std::optional<double> judged;
    for (const TimeBound& bound : bounds)
      if (!(ms >= bound.least_ms)) judged = std::max(judged.value_or(bound.most_ms), bound.most_ms);
    if (!judged) continue;
    ms = *judged;
    ++n;
  }
  return n;
}

std::optional<double> contradicted(const std::vector<double>& claimed_ms, const std::vector<TimeBound>& bounds) {
  if (bounds.empty() || !std::ranges::all_of(bounds, &TimeBound::is_lost)) return {};
  const double ms = std::ranges::min(bounds, {}, &TimeBound::ms).ms;
  return quantile(claimed_ms, 0.5) >= ms / 2 ? std::nullopt : std::optional(ms);
}

}  // namespace checkop
