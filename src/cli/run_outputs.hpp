// SPDX-License-Identifier: Apache-2.0
// The outputs of a run: text, JSON, and the forms for CI.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "cli/options.hpp"
#include "contract/contract.hpp"
#include "report/progress.hpp"
#include "report/report.hpp"
#include "report/stream.hpp"

namespace checkop {

/// Writes files before it prints, since the reader of standard output may be gone.
class RunOutputs {
 public:
  /// Writes a report without checks to every requested file. So an unwritable path is found before the work, and no
  /// file of an earlier run can be mistaken for this one's. Throws like write_file().
  RunOutputs(const ReportDestinations& destinations, const Report& report);

  /// Call before the first check. `steps` are the checks, in order.
  void begin(const Report& report, const DeviceInfo& device, size_t n_candidates, std::vector<Progress::Step> steps);
  /// `record` is the newest of `report`.
  void add(const Report& report, const CaseRecord& record);
  /// Tells the progress line that a step is left out. Another thread may be in add().
  void leave_out() { ++left_out_; }
  void finish(const Report& report);

 private:
  const ReportDestinations& destinations_;
  std::FILE* text_;  ///< null if the JSON report goes to stdout
  bool color_, github_;
  std::optional<Progress> progress_;
  std::atomic<size_t> left_out_ = 0;
  std::unique_ptr<ReportStream> json_;
};

/// A report without checks.
Report new_report(const Options& options, const Contract& contract);

/// Adds a warning to the report. Also prints it to stderr if the JSON report goes to stdout.
void warn(Report& report, const Options& options, const std::string& sentence);

/// Finishes the report and its outputs, and returns the exit code.
int finish(Report& report, RunOutputs& outputs, std::chrono::steady_clock::time_point start);

}  // namespace checkop
