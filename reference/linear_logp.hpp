// SPDX-License-Identifier: Apache-2.0
// What linear_logp shares with tp_linear_logp, whose mathematics it has.
#pragma once

#include <array>

#include "operator/operator.hpp"

namespace checkop {

/// linear_logp's, with the faults of ranks; defined in linear_logp.cpp.
extern const std::array<Pass, 2> kTpLinearLogpPasses;
void validate_linear_logp(const CaseSizes& sizes);  ///< ignore_index, and which carries go together
void plant_in_linear_logp(const FillArgs& args);    ///< rows to leave out

}  // namespace checkop
