// SPDX-License-Identifier: Apache-2.0
// The report in other formats: JUnit XML for CI servers, Markdown and annotations for GitHub, HTML for people.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "report/reader.hpp"

namespace checkop {

/// JUnit XML that follows the schemas of Ant and Jenkins. A check that did not pass is a failure or an error, never a
/// skipped test. A run that did not come to its end, or that checked nothing, adds an error of its own.
std::string to_junit(const ReadReport& report);

/// A summary in GitHub's Markdown of at most `most_bytes`: the verdict, the checks that did not pass, a table of
/// candidates.
std::string to_markdown(const ReadReport& report, size_t most_bytes = size_t{900} << 10);

/// Lines that make GitHub annotate a run with its failures; at most ten, which is how many GitHub shows per step.
std::vector<std::string> github_annotations(const ReadReport& report);

/// One self-contained HTML page: the verdict and a table of cases with filters. Each case shows its gates, a histogram
/// and a map of its errors, how repetition and the batch changed its bits, and the command that repeats it. `report`
/// was read from `json`.
std::string to_html(const ReadReport& report, const JsonValue& json);

/// A form that a file can have.
struct ReportForm {
  const char* flag;  ///< which gives the file: "--junit"
  const char* help;
  std::string (*make)(const ReadReport& report, const JsonValue& json);  ///< `report` was read from `json`
};
std::span<const ReportForm> report_forms();

/// Files to write, by the flags of their forms.
using ReportFiles = std::map<std::string, std::string>;

/// Writes `files`, each in its form of the report `json`. Throws like write_file().
void write_forms(const ReportFiles& files, const JsonValue& json);

/// `text` for a table cell, with everything escaped that Markdown or HTML would interpret.
std::string escape_markdown(std::string_view text);

/// "2.5x"; "exact" without errors.
std::string format_headroom(double headroom);

}  // namespace checkop
