// SPDX-License-Identifier: Apache-2.0
// The table of forms; writes each requested one to its file.
#include "report/forms.hpp"

#include "base/output_file.hpp"

namespace checkop {

namespace {

constexpr ReportForm kForms[] = {
    {"--junit", "write JUnit XML, for CI servers",
     [](const ReadReport& report, const JsonValue&) { return to_junit(report); }},
    {"--markdown", "write a summary in Markdown",
     [](const ReadReport& report, const JsonValue&) { return to_markdown(report); }},
    {"--html", "write a page for people, with maps of the errors", to_html},
};

}  // namespace

std::span<const ReportForm> report_forms() { return kForms; }

void write_forms(const ReportFiles& files, const JsonValue& json) {
  if (files.empty()) return;
  const ReadReport report = read_report(json);
  for (const ReportForm& form : kForms) {
    const auto file = files.find(form.flag);
    if (file != files.end()) write_file(file->second, form.make(report, json));
  }
}

}  // namespace checkop
