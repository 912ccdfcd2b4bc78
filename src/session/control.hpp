// SPDX-License-Identifier: Apache-2.0
// The positive control of a run: a candidate whose bits depend on the batch. If it is not caught, no pass counts.
#pragma once

#include <string>
#include <vector>

#include "report/report.hpp"

namespace checkop {

/// The control's plugin for "cpu" or "cuda".
std::string control_plugin(const std::string& kind);

/// Runs the control on `device` ("cpu", "cuda:0") like the run's candidates, in its own worker.
Control run_control(const std::string& device, const AxisPlan& plan);

/// Turns passes into errors if they rely on the invariance check of a device whose control was not caught.
void void_passes(Report& report);

/// Applies results of the whole run to its checks: void_passes(); and, if the run is complete and not a run shard,
/// mark_vacuous() and mark_insensitive(). In an incomplete run, a missing check might have proved something.
void judge_as_a_whole(Report& report);

}  // namespace checkop
