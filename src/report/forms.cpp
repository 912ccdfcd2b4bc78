// SPDX-License-Identifier: Apache-2.0
// Writes each requested form to its file.
#include "report/forms.hpp"

#include "base/output_file.hpp"

namespace checkop {

void write_forms(const ReportForms& forms, const JsonValue& json) {
  const ReadReport report = read_report(json);
  if (!forms.junit.empty()) write_file(forms.junit, to_junit(report));
  if (!forms.markdown.empty()) write_file(forms.markdown, to_markdown(report));
  if (!forms.html.empty()) write_file(forms.html, to_html(report, json));
}

}  // namespace checkop
