// SPDX-License-Identifier: Apache-2.0
// The parts of the JSON report: report_json.cpp puts them together at the end of a run, report_stream.cpp as it goes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "report/report.hpp"

namespace checkop {

/// What is known before the first check.
nlohmann::json run_json(const Report& report);

/// One entry of a candidate's "cases".
nlohmann::json case_json(const CaseRecord& record);

/// Of the candidate that made `record`: all but its cases and what is counted over them.
nlohmann::json candidate_json(const CaseRecord& record);

/// Counts over the cases of one candidate on one operator.
struct CandidateTotals {
  int64_t outputs = 0, passed_outputs = 0;
  bool passed = true;

  void add(const nlohmann::json& c);  ///< an entry of its "cases"
  nlohmann::json json() const;
};

/// Counts over candidates.
nlohmann::json totals_json(int64_t candidates, int64_t passed);

nlohmann::json device_json(const DeviceInfo& device);

/// One entry of "timings".
nlohmann::json timing_json(const CaseRecord& record);

/// A message may hold any bytes that a plugin wrote: what is not UTF-8 is replaced, never an exception.
std::string dump_json(const nlohmann::json& json, int indent = -1);

}  // namespace checkop
