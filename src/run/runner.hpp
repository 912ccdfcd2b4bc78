// SPDX-License-Identifier: Apache-2.0
// Runs one candidate on one case: on copies of the inputs, with poisoned outputs and guard bands, twice, and in
// contexts.
#pragma once

#include <string>
#include <vector>

#include "case/case.hpp"
#include "device/device.hpp"
#include "device/plugin.hpp"
#include "run/invariance/contexts.hpp"
#include "run/run_result.hpp"

namespace checkop {

/// Runs `candidate` on copies of `inputs` and stores the outputs of its first launch in `outputs`, which make_outputs()
/// made. Then launches it again, and in the contexts of `checks`. Errors of the candidate are in the result; they are
/// never thrown.
RunResult run_candidate(Device& device, const Candidate& candidate, const Case& c, const std::vector<Tensor>& inputs,
                        std::vector<Tensor>& outputs, const RunChecks& checks);

}  // namespace checkop
