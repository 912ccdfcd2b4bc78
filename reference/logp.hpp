// SPDX-License-Identifier: Apache-2.0
// What logp shares with tp_logp, whose mathematics it has.
#pragma once

#include <array>

#include "operator/operator.hpp"

namespace checkop {

/// logp's, with the faults of ranks; defined in logp.cpp.
extern const std::array<Pass, 2> kTpLogpPasses;
void plant_in_logp(const FillArgs& args);  ///< rows to leave out

}  // namespace checkop
