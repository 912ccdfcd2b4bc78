// SPDX-License-Identifier: Apache-2.0
// check_operator report: converts a JSON report, compares two, or merges those of run shards.
#include <fmt/format.h>

#include "base/output_file.hpp"
#include "cli/commands.hpp"
#include "report/diff.hpp"
#include "report/forms.hpp"
#include "report/merge.hpp"

namespace checkop {
namespace {

JsonValue load_report(const std::string& file) {
  return JsonValue::load(file, "a report that 'check_operator --json FILE' wrote");
}

void print_report(const std::string& name, const ReadReport& report) {
  fmt::print("[==========] {}: {}\n", name, report.verdict_line());
  fmt::print("             {}; contract {} ({}); {} on {}\n", report.device, report.contract_path, report.contract_hash,
             report.started, report.host);
  for (const ReadCase& c : report.cases) {
    if (is_good(c.verdict)) continue;
    fmt::print("{:<12} {}\n             {}\n             repeat: {}\n", to_string(c.verdict), c.title(), c.reason,
               c.repeat);
  }
}

}  // namespace

int report_command(const Options& options) {
  const JsonValue json = load_report(options.report.file);
  const ReadReport report = read_report(json);
  write_forms(options.report.forms, json);
  print_report(options.report.file, report);
  return 0;
}

int report_diff_command(const Options& options) {
  const ReportOptions& asked = options.report;
  const ReadReport before = read_report(load_report(asked.before)), after = read_report(load_report(asked.after));
  const ReportDiff diff = diff_reports(before, after, asked.factor);
  if (!asked.diff_markdown.empty()) write_file(asked.diff_markdown, to_markdown(diff, asked.factor, asked.allow_gone));
  fmt::print("{}", to_text(diff, asked.factor, asked.allow_gone));
  return diff.regressed(asked.allow_gone) ? 1 : diff.in_both == 0 ? 3 : 0;
}

int report_merge_command(const Options& options) {
  std::vector<JsonValue> shards;
  for (const std::string& file : options.report.shards) shards.push_back(load_report(file));
  const std::string text = merge_reports(shards, options.report.partial);
  const RunOptions& run = options.run;
  const JsonValue json = JsonValue::parse(text, run.json_file.empty() ? "the merged report" : run.json_file);
  const ReadReport report = read_report(json);
  if (!run.json_file.empty()) write_file(run.json_file, text);
  write_forms(run.forms, json);
  if (run.json_to_stdout) {
    fmt::print("{}", text);
  } else {
    for (const JsonValue& warning : json.at("warnings").items()) fmt::print("[ WARNING  ] {}\n", warning.string());
    print_report(fmt::format("{} shard{}", shards.size(), shards.size() == 1 ? "" : "s"), report);
  }
  return report.exit_code;
}

}  // namespace checkop
