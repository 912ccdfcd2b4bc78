// SPDX-License-Identifier: Apache-2.0
// Puts the checks of run shards in order and makes one report of them.
#include "report/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "report/json.hpp"
#include "report/reader.hpp"
#include "report/same_run.hpp"
#include "report/vacuity.hpp"

namespace checkop {
namespace {

using Json = nlohmann::json;

/// One check of the merged report.
struct Entry {
  int64_t index = 0;  ///< in the whole run
  const ShardReport* from = nullptr;
  Json c, timing;                   ///< timing: null if the shard has none
  const Json* candidate = nullptr;  ///< the entry of its candidate in the shard's report
  CheckFacts facts;
  Verdict verdict = Verdict::error;
};

// --- the checks

OutputFacts::Shown read_shown(const JsonValue& json) {
  OutputFacts::Shown shown;
  shown.measured = json.at("state").string() == "measured";
  shown.proves = json.at("proves").boolean();
  shown.compared = json.at("compared").integer(0);
  shown.why = json.at("why").string();
  if (!shown.measured) return shown;
  shown.share = json.at("share").number();
  shown.unseen = json.at("unseen").number();
  return shown;
}

CheckFacts facts_of(const JsonValue& c, const std::string& candidate, Verdict verdict) {
  CheckFacts check;
  check.candidate = candidate;
  check.op = c.at("op").string();
  check.pass = c.at("pass").string();
  check.dtype = c.at("dtype").string();
  // A control that was not caught turns a pass into an error. The control is judged last, so the check had passed.
  check.passes = verdict == Verdict::pass || (verdict == Verdict::error && c.at("kind").string() == "control");
  check.has_rows = c.at("whole").at("has_rows").boolean();
  check.has_own_inputs = !c.at("given_inputs").members().empty();
  for (const JsonValue& json : c.at("outputs").items()) {
    OutputFacts& output = check.outputs.emplace_back();
    output.name = json.at("name").string();
    output.count = json.at("count").integer(0);
    output.total_rows = json.at("total_rows").integer(0);
    output.gold_is_zero = json.at("gold_is_zero").boolean();
    output.rows_are_equal = json.at("rows_are_equal").boolean();
    json.at("passed").boolean();  // validates the type: it is counted later
  }
  for (const JsonValue& asked : c.at("whole").at("invariance_of").items()) {
    for (const JsonValue& bits : c.at("bit_checks").items()) {
      const std::string name = bits.at("name").string();
      if (name != asked.string()) continue;
      auto output = std::find_if(check.outputs.begin(), check.outputs.end(),
                                 [&](const OutputFacts& each) { return each.name == name; });
      if (output == check.outputs.end()) {
        output = check.outputs.emplace(check.outputs.end());
        output->name = name;
      }
      output->shown = read_shown(bits.at("sensitivity"));
    }
  }
  return check;
}

/// The checks of a report in the order in which they ran. If the run came to its end, its timings are in this order
/// too.
std::vector<Entry> read_entries(const ShardReport& report) {
  std::vector<Entry> entries;
  for (const JsonValue& candidate : report.json.at("candidates").items()) {
    candidate.at("op").string();  // distinguishes candidates of the same name
    for (const JsonValue& c : candidate.at("cases").items()) {
      Entry& entry = entries.emplace_back();
      entry.index = c.at("whole").at("index").integer(0, report.shard.checks - 1);
      entry.from = &report;
      entry.c = c.raw();
      entry.c.erase("whole");
      entry.candidate = &candidate.raw();
      entry.verdict = read_verdict(c.at("verdict"));
      entry.facts = facts_of(c, candidate.at("backend").string(), entry.verdict);
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.index < b.index; });
  const std::vector<JsonValue> timings = report.json.at("volatile").at("timings").items();
  if (timings.size() != entries.size()) return entries;
  for (size_t i = 0; i < entries.size(); ++i) entries[i].timing = timings[i].raw();
  return entries;
}

/// All checks in the order of the whole run.
std::vector<Entry> read_entries(const std::vector<ShardReport>& shards, bool complete) {
  std::vector<Entry> all;
  for (const ShardReport& report : shards) {
    auto entries = read_entries(report);
    std::move(entries.begin(), entries.end(), std::back_inserter(all));
  }
  std::stable_sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) { return a.index < b.index; });
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].index == all[i - 1].index)
      throw InputError(
          all[i].from->json.file(),
          fmt::format("has check {} of the run, which {} has too", all[i].index, all[i - 1].from->json.file()),
          "run the shards again");
  }
  if (const int64_t checks = shards.front().shard.checks; complete && std::ssize(all) != checks)
    throw InputError("report merge", fmt::format("the shards have {} of {} checks", all.size(), checks),
                     "run the shards again");
  return all;
}

void enter(const RunJudgments& judgments, std::vector<Entry>& entries) {
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!judgments[i]) continue;
    entries[i].c.update(Json{{"verdict", to_string(judgments[i]->verdict)},
                             {"kind", judgments[i]->kind},
                             {"reason", judgments[i]->reason},
                             {"passed", false}});
    entries[i].verdict = judgments[i]->verdict;
    entries[i].facts.passes = false;
  }
}

void judge_as_a_whole(std::vector<Entry>& entries) {
  for (const auto find : {find_vacuous, find_insensitive}) {
    std::vector<CheckFacts> facts;
    for (const Entry& entry : entries) facts.push_back(entry.facts);
    enter(find(facts), entries);
  }
}

// --- the report

/// One entry per candidate and operator, as in to_json().
Json merge_candidates(const std::vector<Entry>& entries, int64_t& passed) {
  struct Group {
    Json candidate, cases = Json::array();
    CandidateTotals totals;
  };
  std::vector<Group> groups;
  for (const Entry& entry : entries) {
    const Json& own = *entry.candidate;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& each) {
      return each.candidate["backend"] == own["backend"] && each.candidate["op"] == own["op"];
    });
    if (group == groups.end()) {
      group = groups.emplace(groups.end());
      for (const auto& [key, value] : own.items()) {
        if (key != "cases") group->candidate[key] = value;
      }
    }
    Json c = entry.c;
    if (own["device"] != group->candidate["device"]) c["device"] = own["device"];
    group->totals.add(c);
    group->cases.push_back(std::move(c));
  }
  Json candidates = Json::array();
  for (Group& group : groups) {
    group.candidate.update(group.totals.json());
    group.candidate["cases"] = std::move(group.cases);
    passed += group.totals.passed ? 1 : 0;
    candidates.push_back(std::move(group.candidate));
  }
  return candidates;
}

/// The device to show first, chosen as for a whole run.
Json main_device(const std::vector<Entry>& entries, const ShardReport& first) {
  if (entries.empty()) return first.json.at("device").raw();
  const auto gpu = std::find_if(entries.begin(), entries.end(),
                                [](const Entry& entry) { return (*entry.candidate)["device"]["kind"] == "cuda"; });
  return (*(gpu == entries.end() ? entries.front() : *gpu).candidate)["device"];
}

/// A control counts as caught if every shard that ran it caught it.
Json merge_controls(const std::vector<ShardReport>& shards) {
  Json merged = Json::array();
  for (const std::string& device : shards.front().shard.devices) {
    Json control;
    for (const ShardReport& report : shards) {
      const auto controls = report.json.find("controls");  // absent while a run is under way
      if (!controls) continue;
      for (const JsonValue& own : controls->items()) {
        if (own.at("device").string() != device) continue;
        if (control.is_null() || (control["caught"] == true && !own.at("caught").boolean())) control = own.raw();
      }
    }
    if (!control.is_null()) merged.push_back(std::move(control));
  }
  return merged;
}

void add_once(std::vector<std::string>& list, const std::string& text) {
  if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(text);
}

/// Adds up errors and checks by tool. If a shard lacks the summary of a tool, nothing was proven.
Json merge_sanitizers(const std::vector<ShardReport>& shards) {
  struct Sum {
    std::string tool;
    std::vector<std::string> summaries;
    int64_t errors = 0, checks = 0;
  };
  std::vector<Sum> sums;
  for (const ShardReport& report : shards) {
    const auto runs = report.json.find("sanitizers");
    if (!runs) continue;
    for (const JsonValue& run : runs->items()) {
      const std::string tool = run.at("tool").string();
      auto sum = std::find_if(sums.begin(), sums.end(), [&](const Sum& each) { return each.tool == tool; });
      if (sum == sums.end()) sum = sums.insert(sum, Sum{tool, {}});
      sum->errors += run.at("errors").integer(0);
      sum->checks += run.at("checks").integer(0);
      add_once(sum->summaries, run.at("summary").string());
    }
  }
  Json merged = Json::array();
  for (const Sum& sum : sums) {
    const bool unknown = std::find(sum.summaries.begin(), sum.summaries.end(), "") != sum.summaries.end();
    merged.push_back({{"tool", sum.tool},
                      {"summary", unknown ? "" : fmt::format("{}", fmt::join(sum.summaries, "; "))},
                      {"errors", sum.errors},
                      {"checks", sum.checks}});
  }
  return merged;
}

Json merge_warnings(const std::vector<ShardReport>& shards, const std::vector<std::string>& gaps) {
  std::vector<std::string> merged;
  for (const ShardReport& report : shards) {
    for (const JsonValue& warning : report.json.at("warnings").items()) add_once(merged, warning.string());
  }
  for (const std::string& gap : gaps) add_once(merged, gap);
  return merged;
}

/// What differs between runs: the first start, the sum of times, all hosts; and the same for each shard.
Json merge_volatile(const std::vector<ShardReport>& shards, const std::vector<Entry>& entries) {
  Json list = Json::array(), timings = Json::array();
  std::vector<std::string> hosts;
  std::string started;
  double wall_ms = 0;
  for (const ShardReport& report : shards) {
    const JsonValue own = report.json.at("volatile");
    const std::string host = own.at("host").string(), own_start = own.at("started").string();
    add_once(hosts, host);
    if (started.empty() || own_start < started) started = own_start;
    wall_ms += own.at("wall_ms").number(0);
    list.push_back({{"index", report.shard.index},
                    {"host", host},
                    {"started", own_start},
                    {"wall_ms", own.at("wall_ms").number(0)},
                    {"checks", report.json.at("planned").raw()},
                    {"command", report.json.at("command").raw()},
                    {"device", report.json.at("device").raw()},
                    {"environment", report.json.at("environment").raw()}});
  }
  for (const Entry& entry : entries) {
    if (!entry.timing.is_null()) timings.push_back(entry.timing);
  }
  return {{"started", started},
          {"host", fmt::format("{}", fmt::join(hosts, ", "))},
          {"wall_ms", wall_ms},
          {"timings", std::move(timings)},
          {"shards", std::move(list)}};
}

}  // namespace

std::string merge_reports(const std::vector<JsonValue>& reports, bool partial) {
  const std::vector<ShardReport> shards = read_shards(reports);
  const ShardReport& first = shards.front();
  const std::vector<std::string> gaps = find_gaps(shards, partial);
  const bool complete = gaps.empty();
  std::vector<Entry> entries = read_entries(shards, complete);
  if (complete) judge_as_a_whole(entries);
  std::vector<Verdict> verdicts;
  for (const Entry& entry : entries) verdicts.push_back(entry.verdict);
  int64_t passed = 0;
  Json root = first.json.raw();
  root.erase("shard");
  root["candidates"] = merge_candidates(entries, passed);
  root.update(totals_json(std::ssize(root["candidates"]), passed));
  const int code = exit_code_of(verdicts, first.max_skip, complete);
  root.update(Json{{"planned", first.shard.checks},
                   {"command", first.shard.command},
                   {"complete", complete},
                   {"passed", code == 0},
                   {"exit_code", code},
                   {"device", main_device(entries, first)},
                   {"controls", merge_controls(shards)},
                   {"sanitizers", merge_sanitizers(shards)},
                   {"warnings", merge_warnings(shards, gaps)},
                   {"volatile", merge_volatile(shards, entries)}});
  return dump_json(root, 1) + "\n";
}

}  // namespace checkop
