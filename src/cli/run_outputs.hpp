// SPDX-License-Identifier: Apache-2.0
// Where what a run finds goes: text, JSON, lines, the forms for CI.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "cli/options.hpp"
#include "contract/contract.hpp"
#include "report/report.hpp"
#include "report/report_lines.hpp"
#include "report/report_progress.hpp"
#include "report/report_stream.hpp"

namespace checkop {

/// Files come before what is printed, whose reader may be gone.
class RunOutputs {
 public:
  /// Writes to every file that was asked for that nothing was checked yet, so that a path that can't be written is
  /// found before the work, and that no file of an earlier run passes for this one's. Throws as write_file().
  RunOutputs(const RunOptions& options, const Report& report);

  /// Before the first check. `steps` are the checks, in their order.
  void begin(const Report& report, const DeviceInfo& device, size_t n_candidates, std::vector<Progress::Step> steps);
  /// `record` is the newest of `report`.
  void add(const Report& report, const CaseRecord& record);
  void finish(const Report& report);

 private:
  const RunOptions& options_;
  std::FILE* text_;  ///< null when the JSON report takes its place
  bool color_, github_;
  std::optional<Progress> progress_;
  std::unique_ptr<ReportStream> json_;
  std::unique_ptr<ReportLines> lines_;
};

/// A report that nothing was added to yet.
Report new_report(const Options& options, const Contract& contract);

/// Adds to the warnings of a report, and says it on stderr where the report alone goes to stdout.
void warn(Report& report, const Options& options, const std::string& sentence);

/// Ends the report and its outputs, and gives the exit code.
int finish(Report& report, RunOutputs& outputs, std::chrono::steady_clock::time_point start);

}  // namespace checkop
