// SPDX-License-Identifier: Apache-2.0
// The JSON report of a run under way: complete and valid after every check, at a cost that does not grow.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/output_file.hpp"
#include "report/report_json.hpp"

namespace checkop {

/// Until finish() the file says "complete": false and exit code 4; its timings are empty, and a candidate whose checks
/// are not next to each other stands there several times. What is no regular file gets the finished report alone.
class ReportStream {
 public:
  /// Writes the report of no check. Throws as write_file().
  ReportStream(const std::string& path, const Report& report);

  /// `record` is the newest of `report`.
  void add(const Report& report, const CaseRecord& record);

  /// The whole report, in its final form, as to_json() gives it.
  void finish(const std::string& json);

 private:
  std::string end_of_candidate() const;
  std::string tail(const Report& report) const;

  std::string path_;
  std::unique_ptr<GrowingFile> file_;              ///< null for what is no regular file
  nlohmann::json device_;                          ///< that a reader asks for first
  std::pair<std::string, std::string> candidate_;  ///< and operator of the newest record
  std::set<std::pair<std::string, std::string>> candidates_, failed_;
  CandidateTotals totals_;  ///< since the candidate was begun
};

}  // namespace checkop
