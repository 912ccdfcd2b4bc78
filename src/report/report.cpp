// SPDX-License-Identifier: Apache-2.0
// Verdicts and exit codes of reports.
#include "report/report.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace checkop {

std::string RunShard::name() const { return fmt::format("shard {} of {}", index, total); }

std::vector<Verdict> verdicts_of(const Report& report) {
  std::vector<Verdict> verdicts;
  for (const CaseRecord& record : report.records) verdicts.push_back(record.judgment.verdict);
  return verdicts;
}

int exit_code_of(const std::vector<Verdict>& verdicts, const std::optional<int64_t>& max_skip, bool complete) {
  const int code = exit_code(verdicts, max_skip);
  return complete ? code : std::max(code, 4);
}

int exit_code_of(const Report& report) {
  if (!report.complete) return exit_code_of({}, {}, false);  // whatever was found; asked after every check
  const std::vector<Verdict> verdicts = verdicts_of(report);
  const int code = exit_code_of(verdicts, report.max_skip, report.complete);
  const bool all_skipped =
      std::all_of(verdicts.begin(), verdicts.end(), [](Verdict verdict) { return verdict == Verdict::skipped; });
  return report.shard && report.shard->checks > 0 && code == 3 && all_skipped ? 0 : code;
}

}  // namespace checkop
