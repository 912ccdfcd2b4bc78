// SPDX-License-Identifier: Apache-2.0
// The part of the JSON report on bit comparisons.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/report.hpp"

namespace checkop {

/// For each output: how repetition and each axis changed its bits, and what the data could show. Includes axes that the
/// contract does not demand.
nlohmann::json bit_checks(const CaseRecord& record);

/// The candidate's messages about its launches, each with the numbers of rows that led to it. If a candidate names its
/// variant, this shows where it changes. Empty if nothing ran.
nlohmann::json variants(const CaseRecord& record);

/// "1-9, 15-17, 40"
std::string intervals(std::vector<int64_t> numbers);

}  // namespace checkop
