// SPDX-License-Identifier: Apache-2.0
// The report as JUnit XML.
#include <fmt/format.h>

#include <utility>

#include "base/text.hpp"
#include "report/forms.hpp"

namespace checkop {
namespace {

/// The XML element that the verdict adds to its test case; "" for none.
std::string element_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass:
    case Verdict::xfail:
      return "";
    case Verdict::fail:
    case Verdict::vacuous:
    case Verdict::xpass:
      return "failure";
    case Verdict::skipped:
      return "skipped";
    case Verdict::error:
    case Verdict::timeout:
    case Verdict::unsupported:
      return "error";
  }
  return "error";
}

struct Counts {
  int64_t tests = 0, failures = 0, errors = 0, skipped = 0;

  void add(const std::string& element) {
    ++tests;
    failures += element == "failure" ? 1 : 0;
    errors += element == "error" ? 1 : 0;
    skipped += element == "skipped" ? 1 : 0;
  }
};

std::string test_case(const std::string& group, const std::string& name, double seconds, const std::string& element,
                      const std::string& type, const std::string& message, const std::string& text) {
  std::string xml = fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\"", escape_xml(group),
                                escape_xml(name), seconds);
  if (element.empty()) return xml + "/>\n";
  xml += ">\n";
  if (element == "skipped") {
    xml += fmt::format("      <skipped message=\"{}\"/>\n", escape_xml(message));
  } else {
    xml += fmt::format("      <{0} type=\"{1}\" message=\"{2}\">{3}</{0}>\n", element, escape_xml(type),
                       escape_xml(message), escape_xml(text));
  }
  return xml + "    </testcase>\n";
}

/// "2026-01-31T12:00:00" of "2026-01-31T12:00:00Z": the schema of Ant has no time zones.
std::string timestamp(const std::string& started) { return started.substr(0, started.find('Z')); }

}  // namespace

std::string to_junit(const ReadReport& report) {
  Counts counts;
  std::string cases;
  for (const ReadCase& c : report.cases) {
    const std::string element = element_of(c.verdict), type(to_string(c.verdict));
    counts.add(element);
    cases += test_case(fmt::format("check_operator.{}.{}", c.op, c.pass), fmt::format("{} {}", c.candidate, c.name),
                       c.total_ms / 1000, element, c.kind.empty() ? type : c.kind,
                       fmt::format("{}: {}", type, c.reason), fmt::format("{}\nrepeat: {}", c.reason, c.repeat));
  }
  const auto add_whole = [&](const std::string& element, const std::string& type) {
    counts.add(element);
    cases += test_case("check_operator", "the run as a whole", 0, element, type, report.verdict_line(),
                       report.verdict_line());
  };
  if (!report.complete || report.checked_nothing()) {
    add_whole("error", report.complete ? "nothing" : "incomplete");
  } else if (report.too_many_skipped()) {
    add_whole("failure", "skipped");
  }
  const std::string totals = fmt::format("tests=\"{}\" failures=\"{}\" errors=\"{}\" time=\"{:.3f}\"", counts.tests,
                                         counts.failures, counts.errors, report.wall_ms / 1000);
  std::string properties;
  for (const auto& [name, value] : {std::pair<const char*, const std::string&>{"command", report.command},
                                    {"device", report.device},
                                    {"contract", report.contract_path},
                                    {"contract_hash", report.contract_hash}}) {
    properties += fmt::format("      <property name=\"{}\" value=\"{}\"/>\n", name, escape_xml(value));
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<testsuites {0}>\n"
      "  <testsuite name=\"{1}\" id=\"0\" package=\"check_operator\" timestamp=\"{2}\" hostname=\"{3}\" {0} "
      "skipped=\"{4}\">\n"
      "    <properties>\n{5}    </properties>\n{6}"
      "    <system-out/>\n    <system-err/>\n"
      "  </testsuite>\n</testsuites>\n",
      totals, escape_xml(report.suite_name + (report.shard ? ", " + report.shard->name() : "")),
      timestamp(report.started), escape_xml(report.host), counts.skipped, properties, cases);
}

}  // namespace checkop
