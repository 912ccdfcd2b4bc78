// SPDX-License-Identifier: Apache-2.0
// check_operator report: a JSON report in other forms, and two of them compared.
#include <fmt/format.h>

#include "commands/commands.hpp"
#include "output_file.hpp"
#include "report_diff.hpp"
#include "report_forms.hpp"

namespace checkop {

int report_command(const Options& options) {
  const JsonValue json = JsonValue::load(options.report.file, "a report that 'check_operator --json FILE' wrote");
  const ReadReport report = read_report(json);
  write_forms(options.report.forms, json);
  fmt::print("[==========] {}: {}\n", options.report.file, report.verdict_line());
  fmt::print("             {}; contract {} ({}); {} on {}\n", report.device, report.contract_path, report.contract_hash,
             report.started, report.host);
  for (const ReadCase& c : report.cases) {
    if (is_good(c.verdict)) continue;
    fmt::print("{:<12} {}\n             {}\n             repeat: {}\n", to_string(c.verdict), c.title(), c.reason,
               c.repeat);
  }
  return 0;
}

int report_diff_command(const Options& options) {
  const ReportOptions& asked = options.report;
  const auto load = [](const std::string& file) {
    return read_report(JsonValue::load(file, "a report that 'check_operator --json FILE' wrote"));
  };
  const ReadReport before = load(asked.before), after = load(asked.after);
  const ReportDiff diff = diff_reports(before, after, asked.factor);
  if (!asked.diff_markdown.empty()) write_file(asked.diff_markdown, to_markdown(diff, asked.factor, asked.allow_gone));
  fmt::print("{}", to_text(diff, asked.factor, asked.allow_gone));
  return diff.regressed(asked.allow_gone) ? 1 : diff.in_both == 0 ? 3 : 0;
}

}  // namespace checkop
