// SPDX-License-Identifier: Apache-2.0
// Finds the known fault of the operator that explains a wrong output.
#pragma once

#include <string>
#include <vector>

#include "case/case.hpp"
#include "judge/failures.hpp"

namespace checkop {

/// "as where the last tile of a sum is left out (last_tile_skipped)", if emulating that fault gives the failing
/// elements. "" if no fault does, or if emulation would take too long. In a large case with a per-row output, only the
/// batch row of one failing element is emulated.
std::string emulated_fault(const Case& c, const std::vector<Tensor>& inputs, size_t index,
                           const FailureSummary& failures, unsigned threads);

}  // namespace checkop
