// SPDX-License-Identifier: Apache-2.0
// The report as a stream: one JSON object a line, each as soon as it is known.
#pragma once

#include <string>

#include "base/output_file.hpp"
#include "report/report.hpp"

namespace checkop {

/// Lines with "type": "run" first; then "check", with the case and its timing as in the JSON report, per check; then
/// "revised" for each check whose verdict the run as a whole changed; last "end" with exit code and counts. A stream
/// without "end" is of a run that was killed.
class ReportLines {
 public:
  /// Throws as write_file().
  ReportLines(const std::string& path, const Report& report);
  /// `record` is the newest of `report`.
  void add(const Report& report, const CaseRecord& record);
  void finish(const Report& report);

 private:
  LineFile file_;
  std::vector<Verdict> said_;  ///< verdicts of the lines so far
};

}  // namespace checkop
