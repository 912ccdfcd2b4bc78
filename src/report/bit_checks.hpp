// SPDX-License-Identifier: Apache-2.0
// The part of the JSON report on bit comparisons.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/report.hpp"

namespace checkop {

/// For each output: how repetition and each axis changed its bits, and what the data could show. Included even if the
/// contract does not demand it.
nlohmann::json bit_checks(const CaseRecord& record);

/// The candidate's messages about its launches, and the numbers of rows with which it gave them: shows where a
/// candidate that names its variant changes it. Empty if nothing ran.
nlohmann::json variants(const CaseRecord& record);

/// "1-9, 15-17, 40"
std::string intervals(std::vector<int64_t> numbers);

}  // namespace checkop
