// SPDX-License-Identifier: Apache-2.0
// Opens, fills and closes a run's outputs.
#include "cli/run_outputs.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

#include "base/paths.hpp"
#include "report/forms.hpp"
#include "session/control.hpp"

namespace checkop {
namespace {

/// Whether to use colour, by --color; "auto" respects NO_COLOR (no-color.org).
bool wants_color(const std::string& asked) {
  if (asked != "auto") return asked == "always";
  return environment_variable("NO_COLOR").empty() && environment_variable("TERM") != "dumb" &&
         isatty(STDOUT_FILENO) != 0;
}

void write_to_github(const ReadReport& report, std::FILE* out) {
  for (const std::string& line : github_annotations(report)) fmt::print(out, "{}\n", line);
  const std::string summary = environment_variable("GITHUB_STEP_SUMMARY");
  if (!summary.empty()) append_to_file(summary, to_markdown(report));
}

}  // namespace

RunOutputs::RunOutputs(const ReportDestinations& destinations, const Report& report)
    : destinations_(destinations),
      text_(destinations.json_to_stdout ? nullptr : stdout),
      color_(wants_color(destinations.color)),
      github_(destinations.github.value_or(environment_variable("GITHUB_ACTIONS") == "true")) {
  if (!destinations.json_file.empty()) json_ = std::make_unique<ReportStream>(destinations.json_file, report);
  if (!destinations.forms.empty()) write_forms(destinations.forms, JsonValue::parse(to_json(report), "report"));
}

void RunOutputs::begin(const Report& report, const DeviceInfo& device, size_t n_candidates,
                       std::vector<Progress::Step> steps) {
  if (text_ != nullptr) print_header(text_, report, device, static_cast<size_t>(report.planned), n_candidates);
  progress_.emplace(text_, std::move(steps));
  progress_->show(0);
}

void RunOutputs::add(const Report& report, const CaseRecord& record) {
  if (json_) json_->add(report, record);
  progress_->clear();
  if (text_ != nullptr) print_record(text_, record, color_);
  progress_->show(report.records.size() + left_out_);
}

void RunOutputs::finish(const Report& report) {
  const bool is_read = github_ || !destinations_.forms.empty();
  const std::string json = json_ || text_ == nullptr || is_read ? to_json(report) : "";
  if (json_) json_->finish(json);
  if (progress_) progress_->clear();
  if (text_ != nullptr) {
    print_summary(text_, report, color_);
  } else {
    fmt::print("{}", json);
  }
  if (is_read) {
    const JsonValue document = JsonValue::parse(json, "report");
    write_forms(destinations_.forms, document);
    if (github_) write_to_github(read_report(document), text_ != nullptr ? text_ : stderr);
  }
}

Report new_report(const Options& options, const Contract& contract) {
  Report report;
  report.suite_name = options.run.suite.empty() ? "check_operator" : options.run.suite;
  report.command = options.command_line;
  report.contract_path = contract.path();
  report.contract_hash = contract.hash();
  for (const std::string& warning : contract.warnings()) warn(report, options, warning);
  report.started = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  report.host = host_name();
  return report;
}

void warn(Report& report, const Options& options, const std::string& sentence) {
  if (options.run.json_to_stdout) fmt::print(stderr, "check_operator: {}\n", sentence);
  report.warnings.push_back(sentence);
}

int finish(Report& report, RunOutputs& outputs, std::chrono::steady_clock::time_point start) {
  report.complete = report.stopped.empty();
  judge_as_a_whole(report);
  report.wall_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  outputs.finish(report);
  return exit_code_of(report);
}

}  // namespace checkop
