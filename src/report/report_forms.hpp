// SPDX-License-Identifier: Apache-2.0
// The report in the forms that others read: JUnit XML for CI servers, Markdown and annotations for GitHub, HTML for
// people.
#pragma once

#include <string>
#include <vector>

#include "report/report_reader.hpp"

namespace checkop {

/// JUnit XML that keeps the schemas of Ant and Jenkins. What did not pass is a failure or an error, never a skipped
/// test; a run that did not come to its end, or that checked nothing, has an error of its own.
std::string to_junit(const ReadReport& report);

/// A summary in GitHub's Markdown of at most `most_bytes`: the verdict first, then what did not pass, then a table of
/// candidates.
std::string to_markdown(const ReadReport& report, size_t most_bytes = size_t{900} << 10);

/// Lines that make GitHub annotate a run with its failures; at most ten, as many as it shows of a step.
std::vector<std::string> github_annotations(const ReadReport& report);

/// One page that needs no other file and no network: the verdict, a table of cases to filter, and of each case its
/// gates, a histogram and a map of its errors, what repetition and the batch did to its bits, and the command that
/// repeats it. `json` is what `report` was read from.
std::string to_html(const ReadReport& report, const JsonValue& json);

/// Files to write; "" for one that is not wanted.
struct ReportForms {
  std::string junit, markdown, html;
  bool any() const { return !junit.empty() || !markdown.empty() || !html.empty(); }
};

/// Writes the forms of the report with the JSON text `json`. Throws as write_file().
void write_forms(const ReportForms& forms, const JsonValue& json);

}  // namespace checkop
