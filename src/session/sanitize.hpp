// SPDX-License-Identifier: Apache-2.0
// --sanitize: the same checks under compute-sanitizer.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "report/report.hpp"
#include "session/run_options.hpp"
#include "session/selection.hpp"

namespace checkop {

/// What the sanitizers found of the checks.
class Sanitized {
 public:
  /// Runs this program again under each tool of --sanitize: all checks at once, and where there are findings each check
  /// alone, to know whose they are. Throws EnvironmentError when there is no compute-sanitizer.
  Sanitized(const RunOptions& options, const Selection& selection);

  const std::vector<SanitizerRun>& runs() const { return runs_; }

  /// A check that would be good fails for a finding, and is an error where its work was not seen. Others keep their
  /// verdict, which the run without a sanitizer gave.
  void enter(const Check& check, Judgment& judgment) const;

 private:
  void note(const std::string& check, Verdict verdict, const std::string& reason);
  std::map<std::string, Judgment> found_;  ///< by check_name()
  std::vector<SanitizerRun> runs_;
};

}  // namespace checkop
