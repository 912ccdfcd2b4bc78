// SPDX-License-Identifier: Apache-2.0
// Parts of the JSON report, used by json.cpp at the end of a run and by stream.cpp during it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "report/report.hpp"

namespace checkop {

/// Members that are known before the first check.
nlohmann::json run_json(const Report& report);

/// One entry of a candidate's "cases".
nlohmann::json case_json(const CaseRecord& record);

/// The entry of the candidate of `record`, without its cases and totals.
nlohmann::json candidate_json(const CaseRecord& record);

/// Totals over the cases of one candidate on one operator.
struct CandidateTotals {
  int64_t outputs = 0, passed_outputs = 0;
  bool passed = true;

  void add(const nlohmann::json& c);  ///< an entry of its "cases"
  nlohmann::json json() const;
};

/// Totals over candidates.
nlohmann::json totals_json(int64_t candidates, int64_t passed);

nlohmann::json device_json(const DeviceInfo& device);

/// One entry of "timings".
nlohmann::json timing_json(const CaseRecord& record);

/// Serialises JSON. Bytes that are not UTF-8, as a plugin's message may hold, are replaced; never throws for them.
std::string dump_json(const nlohmann::json& json, int indent = -1);

}  // namespace checkop
