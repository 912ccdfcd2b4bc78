// SPDX-License-Identifier: Apache-2.0
// The part of the JSON report that tells what became of bits.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "report.hpp"

namespace checkop {

/// What repetition and each axis did to each output's bits, and what the data could show; kept also where the contract
/// does not demand it.
nlohmann::json bit_checks(const CaseRecord& record);

}  // namespace checkop
