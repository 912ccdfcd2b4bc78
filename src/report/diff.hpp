// SPDX-License-Identifier: Apache-2.0
// Compares two reports of the same checks: what broke, what was fixed, which headroom was lost.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/reader.hpp"

namespace checkop {

struct ReportDiff {
  struct Change {
    std::optional<ReadCase> before, after;  ///< absent if the report lacks the check
  };
  struct Loss {
    Change change;
    std::string output, metric;
    double before = 0, after = 0;  ///< headrooms; infinite: exact
  };
  int64_t in_both = 0, added = 0;
  std::vector<Change> broken;      ///< does not pass now, and did not fail before or is new
  std::vector<Change> gone;        ///< passed before and was not checked now
  std::vector<Change> mended;      ///< did not pass before and passes now
  std::vector<Change> unmended;    ///< passes neither before nor now
  std::vector<Loss> losses;        ///< of checks that pass in both
  std::vector<std::string> notes;  ///< differences that make the reports hard to compare
  bool incomplete = false;         ///< the later run did not come to its end

  /// Whether the later report is worse. `allow_gone`: checks may be removed.
  bool regressed(bool allow_gone) const {
    return incomplete || !broken.empty() || !losses.empty() || (!allow_gone && !gone.empty());
  }
};

/// Checks match if operator, pass, candidate and case name are equal. A headroom is lost if it shrank to less than
/// 1/factor. Only gates that measure the size of errors count: bias_t is a statistic, which noise moves by more. The
/// result refers to both reports.
ReportDiff diff_reports(const ReadReport& before, const ReadReport& after, double factor);

/// The difference as text, and as Markdown.
std::string to_text(const ReportDiff& diff, double factor, bool allow_gone);
std::string to_markdown(const ReportDiff& diff, double factor, bool allow_gone);

}  // namespace checkop
