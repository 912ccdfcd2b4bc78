// SPDX-License-Identifier: Apache-2.0
// --sanitize: repeats the checks under compute-sanitizer.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "report/report.hpp"
#include "session/run_options.hpp"
#include "session/selection.hpp"

namespace checkop {

/// The sanitizers' findings for each check.
class Sanitized {
 public:
  /// Runs this program again under each tool of --sanitize: first all checks together, then, if there are findings,
  /// each check alone to attribute them. Throws EnvironmentError if compute-sanitizer is missing.
  Sanitized(const RunOptions& options, const Selection& selection);

  const std::vector<SanitizerRun>& runs() const { return runs_; }

  /// A check with verdict pass, xfail, xpass or vacuous fails if it has findings, and is an error if it did not
  /// complete under a tool. Other checks keep their verdict; findings are appended to their reason.
  void enter(const Check& check, Judgment& judgment) const;

 private:
  void note(const std::string& check, Verdict verdict, const std::string& reason);
  std::map<std::string, Judgment> found_;  ///< by check_name()
  std::vector<SanitizerRun> runs_;
};

}  // namespace checkop
