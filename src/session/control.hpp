// SPDX-License-Identifier: Apache-2.0
// The positive control of a run: a candidate whose bits depend on the batch must be caught, or no pass counts.
#pragma once

#include <string>
#include <vector>

#include "report/report.hpp"

namespace checkop {

/// Runs the control on `device` ("cpu", "cuda:0") as the run's candidates were run, in a worker of its own.
Control run_control(const std::string& device, const AxisPlan& plan);

/// Makes errors of those passes of `report` that rely on the invariance check of a device whose control was not caught.
void void_passes(Report& report);

/// What only a run as a whole can tell of its checks: those above, and passes that are vacuous or insensitive where it
/// came to its end; what is missing, or runs elsewhere, might have told something.
void judge_as_a_whole(Report& report);

}  // namespace checkop
