// SPDX-License-Identifier: Apache-2.0
// Report files, and the parts of them that do not change between runs.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace checkop {

using nlohmann::json;

inline std::string report_path(const std::string& name) { return testing::TempDir() + "report_merge_" + name; }

inline std::string text_of_file(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

inline json load_report(const std::string& file) { return json::parse(text_of_file(file)); }

inline std::string write_text(const std::string& name, const std::string& text) {
  std::ofstream(report_path(name)) << text;
  return report_path(name);
}

/// The report without fields that differ between runs and machines.
inline json lasting_part(json report) {
  report.erase("volatile");  // times, hosts, shards
  report.erase("command");   // contains the report's file name, and lacks the shard
  return report;
}

inline std::map<std::string, int> verdicts_of_report(const json& report) {
  std::map<std::string, int> counts;
  for (const json& candidate : report["candidates"]) {
    for (const json& c : candidate["cases"]) ++counts[c["verdict"]];
  }
  return counts;
}

using Counts = std::map<std::string, int>;

/// A case whose rows are all the same, which alone proves nothing, and optionally one whose rows differ.
inline std::string cases_of_equal_rows(bool and_another) {
  const std::string another = R"(, {"op": "silu", "dims": {"batch": 1, "seq": 3, "hidden": 16}})";
  return write_text("cases.json", fmt::format(R"({{"format": "check_operator/cases-1", "cases": [
    {{"op": "silu", "pass": "forward", "dtype": "fp32", "dims": {{"batch": 1, "seq": 4, "hidden": 32}},
      "input_mode": "constant"}},
    {{"op": "silu", "pass": "forward", "dtype": "fp32", "dims": {{"batch": 1, "seq": 5, "hidden": 32}},
      "input_mode": "constant"}}{}]}})",
                                              and_another ? another : ""));
}

}  // namespace checkop
