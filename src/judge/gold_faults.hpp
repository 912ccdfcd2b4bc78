// SPDX-License-Identifier: Apache-2.0
// Which of the operator's known faults a wrong output is the result of.
#pragma once

#include <string>
#include <vector>

#include "case/case.hpp"
#include "judge/failures.hpp"

namespace checkop {

/// "as where the last tile of a sum is left out (last_tile_skipped)", when emulating that fault gives the failing
/// elements; "" when none does, or when it would take too long. Of a large case and a per-row output one failing row of
/// the batch is looked at.
std::string emulated_fault(const Case& c, const std::vector<Tensor>& inputs, size_t index,
                           const FailureSummary& failures, unsigned threads);

}  // namespace checkop
