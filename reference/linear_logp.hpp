// SPDX-License-Identifier: Apache-2.0
// Code that linear_logp shares with tp_linear_logp, which computes the same function.
#pragma once

#include <array>

#include "operator/operator.hpp"

namespace checkop {

/// The passes of linear_logp with the faults of ranks added; defined in linear_logp.cpp.
extern const std::array<Pass, 2> kTpLinearLogpPasses;
void validate_linear_logp(const CaseSizes& sizes);  ///< checks ignore_index, and which carries are given together
void plant_in_linear_logp(const FillArgs& args);    ///< plants rows to leave out

}  // namespace checkop
