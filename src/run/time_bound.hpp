// SPDX-License-Identifier: Apache-2.0
// Times that a candidate's process tells itself, held against the judge's clock: events of a GPU are exact and can be
// forged, the judge's clock sees also what lies around a launch and can't.
#pragma once

#include <cstdint>
#include <vector>

namespace checkop {

/// Passes that the judge's clock took: of launches, and of none, each with the same preparations and until the device
/// was idle.
struct SeenPasses {
  int64_t launches = 1;               ///< of the candidate, in each pass
  std::vector<double> own_ms = {};    ///< with them
  std::vector<double> empty_ms = {};  ///< of a process that launches nothing, in turns with those
  double written_ms = 0;              ///< that a launch waits for what the one before it wrote to reach memory
};

/// What follows from them for one launch.
struct TimeBound {
  double least_ms;  ///< that an honest candidate tells
  double ms;        ///< by the judge's clock
};
TimeBound time_bound_of(const SeenPasses& passes);

/// What two times of a pass may differ by, besides their launches.
inline constexpr double kAroundMs = 0.02;

/// Puts the judge's time in the place of each one that is below a bound. Returns of how many.
int64_t overrule(std::vector<double>& claimed_ms, const std::vector<TimeBound>& bounds);

}  // namespace checkop
