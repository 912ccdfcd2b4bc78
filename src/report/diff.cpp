// SPDX-License-Identifier: Apache-2.0
// Compares two reports check by check and gate by gate, so that results can't silently get worse.
#include "report/diff.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <tuple>

#include "report/forms.hpp"

namespace checkop {
namespace {

/// The last member numbers equal checks: a report may contain a check several times.
using CaseKey = std::tuple<std::string, std::string, std::string, std::string, int>;

std::map<CaseKey, const ReadCase*> by_key(const ReadReport& report) {
  std::map<CaseKey, const ReadCase*> all;
  for (const ReadCase& c : report.cases) {
    CaseKey key{c.op, c.pass, c.candidate, c.name, 0};
    while (all.contains(key)) ++std::get<int>(key);
    all[key] = &c;
  }
  return all;
}

void add_losses(const ReportDiff::Change& change, double factor, std::vector<ReportDiff::Loss>& losses) {
  for (const ReadOutput& before : change.before->outputs) {
    for (const ReadOutput& after : change.after->outputs) {
      if (after.name != before.name) continue;
      for (size_t i = 0; i < std::min(before.gates.size(), after.gates.size()); ++i) {
        const ReadGate &x = before.gates[i], &y = after.gates[i];
        if (x.metric != y.metric || x.metric == "bias_t") continue;
        const bool was_exact = std::isinf(x.headroom), is_exact = std::isinf(y.headroom);
        if (is_exact || (!was_exact && y.headroom * factor >= x.headroom)) continue;
        losses.push_back({change, before.name, x.metric, x.headroom, y.headroom});
      }
      // Infinite: storing the gold explains every error, in which other orders of addition differ by chance.
      const double x = before.computation_headroom, y = after.computation_headroom;
      if (!std::isinf(x) && y * factor < x) losses.push_back({change, before.name, "computation", x, y});
    }
  }
}

std::vector<std::string> notes_of(const ReadReport& before, const ReadReport& after, int64_t other_data) {
  std::vector<std::string> notes;
  if (before.contract_hash != after.contract_hash)
    notes.push_back(fmt::format("the contracts differ ({}, now {}), so headrooms are not comparable",
                                before.contract_hash, after.contract_hash));
  if (before.device != after.device)
    notes.push_back(fmt::format("the devices differ: {}, now {}", before.device, after.device));
  const auto name = [](const ReadReport& report) { return report.shard ? report.shard->name() : "a whole run"; };
  if (name(before) != name(after))
    notes.push_back(fmt::format("different run shards: {}, now {}", name(before), name(after)));
  if (other_data > 0)
    notes.push_back(
        fmt::format("{} {} other data than before", other_data, other_data == 1 ? "check has" : "checks have"));
  if (!before.complete) notes.push_back("the earlier run did not come to its end");
  if (!after.complete) notes.push_back("the later run did not come to its end");
  return notes;
}

std::string describe(const ReportDiff::Loss& loss) {
  return fmt::format("{} {}: headroom {}, was {}", loss.output, loss.metric, format_headroom(loss.after),
                     format_headroom(loss.before));
}

std::string describe_broken(const ReportDiff::Change& change) {
  return fmt::format(
      "{}{}: {}", to_string(change.after->verdict),
      !change.before ? " (not there before)" : fmt::format(", was {}", to_string(change.before->verdict)),
      change.after->reason);
}

std::string plural(size_t n, const char* one, const char* many) { return fmt::format("{} {}", n, n == 1 ? one : many); }

std::string summary(const ReportDiff& diff, double factor, bool allow_gone) {
  return fmt::format("{}: {}{}, {} beyond {:g}x, {}, {}, {} added, {} still failing; {} in both",
                     diff.in_both == 0            ? "nothing to compare"
                     : diff.regressed(allow_gone) ? "worse"
                                                  : "not worse",
                     diff.incomplete ? "the later run is incomplete, " : "",
                     plural(diff.broken.size(), "new failure", "new failures"),
                     plural(diff.losses.size(), "headroom lost", "headrooms lost"), factor,
                     plural(diff.gone.size(), "check gone", "checks gone"),
                     plural(diff.mended.size(), "mended", "mended"), diff.added, diff.unmended.size(), diff.in_both);
}

}  // namespace

ReportDiff diff_reports(const ReadReport& before, const ReadReport& after, double factor) {
  ReportDiff diff;
  const auto old_cases = by_key(before), new_cases = by_key(after);
  int64_t other_data = 0;
  for (const auto& [key, c] : new_cases) {
    const auto found = old_cases.find(key);
    ReportDiff::Change change{{}, *c};
    if (found != old_cases.end()) change.before = *found->second;
    ++(change.before ? diff.in_both : diff.added);
    if (change.before && change.before->data_hash != c->data_hash) ++other_data;
    const bool was_good = !change.before || is_good(change.before->verdict);
    const bool was_skipped = change.before && change.before->verdict == Verdict::skipped;
    if (is_good(c->verdict)) {
      if (!was_good && !was_skipped) diff.mended.push_back(change);
      if (change.before && was_good) add_losses(change, factor, diff.losses);
    } else if (c->verdict == Verdict::skipped) {
      if (change.before && was_good) diff.gone.push_back(change);
    } else if (was_good || was_skipped) {
      diff.broken.push_back(change);
    } else {
      diff.unmended.push_back(change);
    }
  }
  for (const auto& [key, c] : old_cases) {
    if (is_good(c->verdict) && !new_cases.contains(key)) diff.gone.push_back({*c, {}});
  }
  diff.incomplete = !after.complete;
  diff.notes = notes_of(before, after, other_data);
  return diff;
}

std::string to_text(const ReportDiff& diff, double factor, bool allow_gone) {
  std::string text;
  for (const auto& change : diff.broken) {
    text += fmt::format("[  FAILED  ] {}\n             {}\n             repeat: {}\n", change.after->title(),
                        describe_broken(change), change.after->repeat);
  }
  for (const auto& loss : diff.losses) {
    text += fmt::format("[   LOST   ] {}\n             {}\n             repeat: {}\n", loss.change.after->title(),
                        describe(loss), loss.change.after->repeat);
  }
  for (const auto& change : diff.gone) text += fmt::format("[   GONE   ] {}\n", change.before->title());
  for (const auto& change : diff.mended) text += fmt::format("[  FIXED   ] {}\n", change.after->title());
  for (const std::string& note : diff.notes) text += fmt::format("[   NOTE   ] {}\n", note);
  return text + fmt::format("[==========] {}\n", summary(diff, factor, allow_gone));
}

std::string to_markdown(const ReportDiff& diff, double factor, bool allow_gone) {
  std::string text = fmt::format("## check_operator: {}\n\n", summary(diff, factor, allow_gone));
  for (const std::string& note : diff.notes) text += fmt::format("- {}\n", escape_markdown(note));
  const auto rows = diff.broken.size() + diff.losses.size() + diff.gone.size() + diff.mended.size();
  if (rows == 0) return text;
  constexpr size_t kMost = 500;  // a comment on a pull request has room for 65536 characters
  size_t n = 0;
  text += "\n| change | check | |\n|---|---|---|\n";
  const auto add = [&](const char* what, const ReadCase& c, const std::string& words) {
    if (n++ < kMost)
      text += fmt::format("| {} | {} | {} |\n", what, escape_markdown(c.title()), escape_markdown(words));
  };
  for (const auto& change : diff.broken) add("**failed**", *change.after, describe_broken(change));
  for (const auto& loss : diff.losses) add("**lost**", *loss.change.after, describe(loss));
  for (const auto& change : diff.gone) add("**gone**", *change.before, "");
  for (const auto& change : diff.mended) add("mended", *change.after, "");
  if (n > kMost) text += fmt::format("\n{} more are left out.\n", n - kMost);
  return text;
}

}  // namespace checkop
