// SPDX-License-Identifier: Apache-2.0
// The JSON report of a run under way: valid after every check, at a constant cost per check.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/output_file.hpp"
#include "report/json.hpp"

namespace checkop {

/// Until finish() the file says "complete": false and exit code 4, its timings are empty, and a candidate whose checks
/// are not consecutive appears several times. If the path is no regular file, only the finished report is written.
class ReportStream {
 public:
  /// Writes a report without checks. Throws like write_file().
  ReportStream(const std::string& path, const Report& report);

  /// `record` is the newest of `report`.
  void add(const Report& report, const CaseRecord& record);

  /// Replaces the file by the final report, as to_json() gives it.
  void finish(const std::string& json);

 private:
  std::string end_of_candidate() const;
  std::string tail(const Report& report) const;

  std::string path_;
  std::unique_ptr<GrowingFile> file_;              ///< null if the path is no regular file
  nlohmann::json device_;                          ///< the device to show first
  std::pair<std::string, std::string> candidate_;  ///< candidate and operator of the newest record
  std::set<std::pair<std::string, std::string>> candidates_, failed_;
  CandidateTotals totals_;  ///< of the current candidate
};

}  // namespace checkop
