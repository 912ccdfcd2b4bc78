// SPDX-License-Identifier: Apache-2.0
// JSON -> ReadReport.
#include "report/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <tuple>

#include "judge/bound.hpp"
#include "report/run_shard.hpp"

namespace checkop {
namespace {

/// A number as reports write it: non-finite numbers are strings.
double read_number(const JsonValue& value) {
  if (!value.is_string()) return value.number();
  const std::string name = value.one_of("number", {"NaN", "Infinity", "-Infinity"});
  return name == "NaN" ? std::nan("") : name == "Infinity" ? kInfinity : -kInfinity;
}

ReadOutput read_output(const JsonValue& json) {
  ReadOutput output;
  output.name = json.at("name").string();
  output.count = json.at("count").integer(0);
  output.out_of_bound = json.at("out_of_bound").integer(0);
  for (const JsonValue& gate : json.at("gates").items()) {
    output.gates.push_back({gate.at("metric").string(), read_number(gate.at("achieved")), read_number(gate.at("limit")),
                            read_number(gate.at("headroom"))});
  }
  if (const auto computation = json.find("computation"); computation && computation->is_object())
    output.computation_headroom = read_number(computation->at("headroom"));
  return output;
}

ReadCase read_case(const JsonValue& json) {
  ReadCase c;
  c.op = json.at("op").string();
  c.pass = json.at("pass").string();
  c.dtype = json.at("dtype").string();
  c.name = json.at("case_name").string();
  c.data_hash = json.at("data_hash").string();
  c.verdict = read_verdict(json.at("verdict"));
  c.kind = json.at("kind").string();
  c.reason = json.at("reason").string();
  c.repeat = json.at("repeat").string();
  for (const JsonValue& output : json.at("outputs").items()) c.outputs.push_back(read_output(output));
  return c;
}

/// Timings are a separate list, in the order in which the checks ran.
using TimesByCheck = std::map<std::tuple<std::string, std::string, std::string>, std::deque<double>>;

TimesByCheck read_times(const JsonValue& timings) {
  TimesByCheck times;
  for (const JsonValue& entry : timings.items()) {
    times[{entry.at("candidate").string(), entry.at("pass").string(), entry.at("case_name").string()}].push_back(
        entry.at("total_ms").number(0));
  }
  return times;
}

}  // namespace

Verdict read_verdict(const JsonValue& value) {
  std::vector<std::string> names;
  for (const Verdict verdict : all_verdicts()) names.emplace_back(to_string(verdict));
  const std::string name = value.one_of("verdict", names);
  return all_verdicts()[static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin())];
}

bool is_good(Verdict verdict) { return verdict == Verdict::pass || verdict == Verdict::xfail; }

double ReadOutput::headroom() const {
  double least = kInfinity;
  for (const ReadGate& gate : gates) least = std::isnan(gate.headroom) ? 0 : std::min(least, gate.headroom);
  return least;
}

double ReadCase::headroom() const {
  double least = kInfinity;
  for (const ReadOutput& output : outputs) least = std::min(least, output.headroom());
  return least;
}

std::string ReadCase::title() const { return fmt::format("{}/{}  {}  {}", op, pass, candidate, name); }

std::map<Verdict, int64_t> ReadReport::counts() const {
  std::map<Verdict, int64_t> counts;
  for (const ReadCase& c : cases) ++counts[c.verdict];
  return counts;
}

bool ReadReport::too_many_skipped() const {
  const auto all = counts();
  const auto found = all.find(Verdict::skipped);
  return max_skip && found != all.end() && found->second > *max_skip;
}

bool ReadReport::checked_nothing() const { return cases.empty() && !(shard && shard->checks > 0); }

std::string ReadReport::program() const { return "check_operator" + (shard ? ", " + shard->name() : ""); }

std::string ReadReport::verdict_line() const {
  int64_t bad = 0, skipped = 0;
  std::vector<std::string> words;
  for (const auto& [verdict, count] : counts()) {
    if (is_good(verdict)) continue;
    words.push_back(fmt::format("{} {}", count, to_string(verdict)));
    (verdict == Verdict::skipped ? skipped : bad) += count;
  }
  const int64_t total = std::ssize(cases), passed = total - bad - skipped;
  const std::string details = words.empty() ? "" : fmt::format(": {}", fmt::join(words, ", "));
  std::string text =
      total == 0 ? (checked_nothing() || !complete ? "nothing was checked" : "this run shard has no checks")
      : bad == 0 && !too_many_skipped()
          ? fmt::format("{} check{} passed{}", passed, passed == 1 ? "" : "s", details)
          : fmt::format("{} of {} check{} did not pass{}", bad + skipped, total, total == 1 ? "" : "s", details);
  if (too_many_skipped()) text += fmt::format("; --max-skip allows {} to be skipped", *max_skip);
  if (shard) text += "; " + shard->name();
  if (complete) return text;
  text += "; the run did not come to its end";
  return planned > 0 ? text + fmt::format(", {} of {} checks ran", total, planned) : text;
}

ReadReport read_report(const JsonValue& document) {
  document.at("format").require_format("check_operator/report-1");
  ReadReport report;
  report.suite_name = document.at("suite_name").string();
  report.command = document.at("command").string();
  report.complete = document.at("complete").boolean();
  report.exit_code = static_cast<int>(document.at("exit_code").integer(0, 5));
  report.shard = read_shard(document);
  if (const auto planned = document.find("planned")) report.planned = planned->integer(0);
  if (const auto most = document.find("max_skip"); most && !most->raw().is_null()) report.max_skip = most->integer(0);
  report.device = document.at("device").at("name").string();
  report.contract_path = document.at("contract").at("path").string();
  report.contract_hash = document.at("contract").at("hash").string();
  const JsonValue varying = document.at("volatile");
  report.started = varying.at("started").string();
  report.host = varying.at("host").string();
  report.wall_ms = varying.at("wall_ms").number(0);
  TimesByCheck times = read_times(varying.at("timings"));
  for (const JsonValue& candidate : document.at("candidates").items()) {
    const std::string name = candidate.at("backend").string(), device = candidate.at("device").at("name").string(),
                      digest = candidate.at("plugin").at("digest").string();
    for (const JsonValue& json : candidate.at("cases").items()) {
      ReadCase c = read_case(json);
      c.candidate = name;
      const auto other = json.find("device");  // only merged reports have it
      c.device = other ? other->at("name").string() : device;
      c.plugin_digest = digest;
      auto& left = times[{name, c.pass, c.name}];
      if (!left.empty()) {
        c.total_ms = left.front();
        left.pop_front();
      }
      report.cases.push_back(std::move(c));
    }
  }
  return report;
}

}  // namespace checkop
