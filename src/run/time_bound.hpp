// SPDX-License-Identifier: Apache-2.0
// Bounds the times that a candidate's process reports by the judge's clock. Events of a GPU are exact but can be
// forged; the judge's clock can't be forged but also measures what surrounds a launch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace checkop {

/// Passes timed by the judge's clock, with launches and without, each from the same preparations until the device was
/// idle.
struct SeenPasses {
  int64_t launches = 1;               ///< of the candidate, in each pass
  std::vector<double> own_ms = {};    ///< of passes with launches
  std::vector<double> empty_ms = {};  ///< of a process that launches nothing, taken in turns with own_ms
  double written_ms = 0;              ///< how long a launch waits until the outputs before it have reached memory
};

/// What the passes say about one launch.
struct TimeBound {
  double least_ms;       ///< the least that an honest candidate reports
  double ms;             ///< by the judge's clock: what a pass with launches takes more than one without
  double most_ms;        ///< the same, if in a pass with launches kAroundMs of what surrounds them ran beside them
  bool is_lost = false;  ///< there is no least time: something else used the device, longer than the launches took
};
TimeBound time_bound_of(const SeenPasses& passes);

/// How much two times of a pass may differ apart from their launches.
inline constexpr double kAroundMs = 0.02;

/// Replaces each claimed time that is below a bound by the most that the launch took by the judge's clock: where a
/// process reports its end too early, the judge's last steps of a pass run beside its work, and the pass is shorter.
/// Returns how many were replaced.
int64_t overrule(std::vector<double>& claimed_ms, const std::vector<TimeBound>& bounds);

/// If all bounds are lost, and the median of the claimed times is not even half of what the judge's clock saw: that.
std::optional<double> contradicted(const std::vector<double>& claimed_ms, const std::vector<TimeBound>& bounds);

}  // namespace checkop
