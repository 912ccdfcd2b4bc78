// SPDX-License-Identifier: Apache-2.0
// Runs one candidate on one case: own copies, poisoned outputs, guard bands, two runs, other contexts.
#pragma once

#include <string>
#include <vector>

#include "case/case.hpp"
#include "device/device.hpp"
#include "device/plugin.hpp"
#include "run/invariance/invariance.hpp"
#include "run/run_result.hpp"

namespace checkop {

/// Runs `candidate` on copies of `inputs` and stores what it wrote first into `outputs`, made by make_outputs(); then
/// again, then in the contexts of `checks`.
/// Never throws for what the candidate does: that is in the result.
RunResult run_candidate(Device& device, const Candidate& candidate, const Case& c, const std::vector<Tensor>& inputs,
                        std::vector<Tensor>& outputs, const RunChecks& checks);

}  // namespace checkop
