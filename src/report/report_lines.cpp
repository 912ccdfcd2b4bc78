// SPDX-License-Identifier: Apache-2.0
// The report as JSON lines.
#include "report/report_lines.hpp"

#include "report/report_json.hpp"

namespace checkop {

using nlohmann::json;

ReportLines::ReportLines(const std::string& path, const Report& report) : file_(path) {
  json line = run_json(report);
  line.update(json{{"type", "run"}, {"started", report.started}, {"host", report.host}});
  file_.add(dump_json(line));
}

void ReportLines::add(const Report& report, const CaseRecord& record) {
  json line = candidate_json(record);
  line.update(json{{"type", "check"},
                   {"index", report.records.size() - 1},
                   {"case", case_json(record)},
                   {"timing", timing_json(record)}});
  file_.add(dump_json(line));
  said_.push_back(record.judgment.verdict);
}

void ReportLines::finish(const Report& report) {
  json counts = json::object();
  for (size_t i = 0; i < report.records.size(); ++i) {
    const Judgment& judgment = report.records[i].judgment;
    const std::string verdict(to_string(judgment.verdict));
    counts[verdict] = counts.value(verdict, 0) + 1;
    if (judgment.verdict == said_[i]) continue;
    file_.add(dump_json({{"type", "revised"},
                         {"index", i},
                         {"verdict", verdict},
                         {"kind", judgment.kind},
                         {"reason", judgment.reason}}));
  }
  const int code = exit_code_of(report);
  file_.add(dump_json({{"type", "end"},
                       {"complete", report.complete},
                       {"exit_code", code},
                       {"passed", code == 0},
                       {"verdicts", counts},
                       {"wall_ms", report.wall_ms}}));
}

}  // namespace checkop
