// SPDX-License-Identifier: Apache-2.0
// The report as one HTML page: src/report/page.html with the JSON report in it.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "report/forms.hpp"
#include "report/page.hpp"

namespace checkop {
namespace {

using nlohmann::json;

/// Drops what the page does not show and takes much room: the rows that a sampled gold computed.
json for_page(json report) {
  for (json& candidate : report["candidates"]) {
    for (json& c : candidate["cases"]) {
      for (json& output : c["outputs"]) output.erase("gold_rows");
    }
  }
  return report;
}

/// JSON for a script element: escapes '<', so that "</script>" and "<!--" can't occur.
std::string for_script(const json& value) {
  std::string out;
  for (const char c : value.dump()) out += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return out;
}

std::string verdict_words(const ReadReport& report) {
  const bool passed = report.complete && report.exit_code == 0;
  return fmt::format("{}: {}", passed ? "Passed" : "Not passed", report.verdict_line());
}

}  // namespace

std::string to_html(const ReadReport& report, const JsonValue& json) {
  const std::string verdict = escape_xml(verdict_words(report)), data = for_script(for_page(json.raw()));
  std::string page;
  std::string_view left = kReportPage;
  while (true) {
    constexpr std::string_view kVerdict = "@VERDICT@", kReport = "@REPORT@";
    const size_t at = std::min(left.find(kVerdict), left.find(kReport));
    page += left.substr(0, at);
    if (at == std::string_view::npos) return page;
    left.remove_prefix(at);
    const bool is_verdict = left.starts_with(kVerdict);
    page += is_verdict ? verdict : data;
    left.remove_prefix(is_verdict ? kVerdict.size() : kReport.size());
  }
}

}  // namespace checkop
