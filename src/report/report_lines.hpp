// SPDX-License-Identifier: Apache-2.0
// The report as JSON lines, each written as soon as its content is known.
#pragma once

#include <string>

#include "base/output_file.hpp"
#include "report/report.hpp"

namespace checkop {

/// The "type" of the lines: first "run"; one "check" per check, with the case and its timing as in the JSON report;
/// "revised" for each check whose verdict changed at the end of the run; last "end", with exit code and counts. A
/// stream without "end" comes from a run that was killed.
class ReportLines {
 public:
  /// Throws like write_file().
  ReportLines(const std::string& path, const Report& report);
  /// `record` is the newest of `report`.
  void add(const Report& report, const CaseRecord& record);
  void finish(const Report& report);

 private:
  LineFile file_;
  std::vector<Verdict> said_;  ///< verdicts written so far
};

}  // namespace checkop
