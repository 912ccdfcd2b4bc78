// SPDX-License-Identifier: Apache-2.0
// Code that logp shares with tp_logp, which computes the same function.
#pragma once

#include <array>

#include "operator/operator.hpp"

namespace checkop {

/// The passes of logp with the faults of ranks added; defined in logp.cpp.
extern const std::array<Pass, 2> kTpLogpPasses;
void plant_in_logp(const FillArgs& args);  ///< plants rows to leave out

}  // namespace checkop
