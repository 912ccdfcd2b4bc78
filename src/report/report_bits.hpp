// SPDX-License-Identifier: Apache-2.0
// The part of the JSON report that tells what became of bits.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/report.hpp"

namespace checkop {

/// What repetition and each axis did to each output's bits, and what the data could show; kept also where the contract
/// does not demand it.
nlohmann::json bit_checks(const CaseRecord& record);

/// What the candidate said of its launches, and for which numbers of rows it said so: a candidate that names its
/// variant shows here where it changes it. Empty where nothing ran.
nlohmann::json variants(const CaseRecord& record);

/// "1-9, 15-17, 40"
std::string intervals(std::vector<int64_t> numbers);

}  // namespace checkop
