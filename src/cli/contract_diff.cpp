// SPDX-License-Identifier: Apache-2.0
// check_operator contract diff: how two contracts differ on cases, and which verdicts change.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>

#include "base/error.hpp"
#include "case/sampling.hpp"
#include "cli/commands.hpp"
#include "contract/diff.hpp"
#include "mutate/mutation.hpp"
#include "session/session.hpp"

namespace checkop {
namespace {

struct Place {
  std::string output;  ///< "logp/backward dlogits"; for a property of the whole case "logp/backward"
  std::string case_name, subject;
};

/// All places with the same change.
struct Places {
  std::set<std::string> outputs, subjects;
  std::set<std::pair<std::string, std::string>> seen;  ///< (output, case)
  Place first;

  void add(const Place& place) {
    if (seen.empty()) first = place;
    outputs.insert(place.output);
    subjects.insert(place.subject);
    seen.emplace(place.output, place.case_name);
  }
};

struct SubjectName {
  std::string arch_key, candidate;
  std::string text() const {
    if (arch_key.empty() && candidate.empty()) return "any";
    return fmt::format("{}{}{}", arch_key, arch_key.empty() || candidate.empty() ? "" : "/", candidate);
  }
};

/// The subjects named by flags; otherwise all that at least one contract treats specially.
std::vector<SubjectName> subjects_of(const RunOptions& options, const Contract& a, const Contract& b) {
  const bool chosen = options.has("--arch-key") && options.arch_key != "auto";
  const std::vector<std::string> archs = !chosen                      ? archs_named(a, b)
                                         : options.arch_key == "none" ? std::vector<std::string>{""}
                                                                      : std::vector<std::string>{options.arch_key};
  const bool by_name = options.has("--candidate") && options.candidates != std::vector<std::string>{"all"};
  std::vector<SubjectName> all;
  for (const std::string& arch : archs)
    for (const std::string& candidate : by_name ? options.candidates : candidates_named(a, b))
      all.push_back({arch, candidate});
  return all;
}

using Changes = std::map<Change, Places>;

Changes changes_of(const Contract& a, const Contract& b, const std::vector<Case>& cases,
                   const std::vector<SubjectName>& subjects) {
  Changes all;
  for (const Case& c : cases) {
    const std::string pass = fmt::format("{}/{}", c.op->name, c.pass->name);
    for (const SubjectName& name : subjects) {
      const Subject subject{name.arch_key, name.candidate};
      for (const Change& change : diff_case(a, b, c, subject, gold_work(c)))
        all[change].add({pass, case_name(c), name.text()});
      for (const OutputSpec& output : c.pass->outputs) {
        if (!is_present(c, output.tensor)) continue;
        for (const Change& change : diff_output(a, b, c, output, subject))
          all[change].add({fmt::format("{} {}", pass, output.tensor.name), case_name(c), name.text()});
      }
    }
  }
  return all;
}

/// At most four names, so that the rest of the line stays visible.
std::string shortened(const std::set<std::string>& names) {
  constexpr size_t kShown = 4;
  std::vector<std::string> shown(names.begin(),
                                 std::next(names.begin(), std::min<std::ptrdiff_t>(kShown, std::ssize(names))));
  if (names.size() > kShown) shown.push_back(fmt::format("{} more", names.size() - kShown));
  return fmt::format("{}", fmt::join(shown, ", "));
}

void print_changes(const Changes& changes, size_t n_subjects) {
  for (const auto& [change, places] : changes) {
    fmt::print("{:<8} {:<24} {} -> {}\n", to_string(change.tendency), change.what, change.a, change.b);
    fmt::print("         {} time{}: {}; first {}{}\n", places.seen.size(), places.seen.size() == 1 ? "" : "s",
               shortened(places.outputs), places.first.case_name,
               places.subjects.size() == n_subjects ? "" : "; only for " + shortened(places.subjects));
  }
}

/// Runs the candidates once and prints the checks whose verdicts differ between the contracts.
class Verdicts {
 public:
  Verdicts(const Contract& a, const Contract& b) : a_(a), b_(b) {}

  void run(const RunOptions& options) {
    const Session session(options, select_checks(options));
    session.require_judgeable(a_);
    session.require_judgeable(b_);
    session.run_all([&](Attempt& attempt) {
      session.judge_by(a_, attempt);
      const Judgment before = attempt.record.judgment;
      session.judge_by(b_, attempt);
      compare(check_name(*attempt.check), before, attempt.record.judgment);
    });
    fmt::print("{} check{} judged by both: {}\n", checks_, checks_ == 1 ? "" : "s",
               changed_ == 1 ? "1 verdict changes" : fmt::format("{} verdicts change", changed_));
  }
  int64_t changed() const { return changed_; }
  bool ran_all() const { return ran_all_; }

 private:
  void compare(const std::string& name, const Judgment& before, const Judgment& after) {
    ++checks_;
    if (before.verdict == Verdict::error || before.verdict == Verdict::timeout) {
      ran_all_ = false;
      fmt::print("{}  {}: {}\n", to_string(before.verdict), name, before.reason);
    }
    if (before.verdict == after.verdict) return;
    ++changed_;
    const auto reason = [](const Judgment& judgment) { return judgment.reason.empty() ? "" : ": " + judgment.reason; };
    fmt::print("{}\n  {}{}\n  {}{}\n", name, to_string(before.verdict), reason(before), to_string(after.verdict),
               reason(after));
  }

  const Contract &a_, &b_;
  int64_t checks_ = 0, changed_ = 0;
  bool ran_all_ = true;
};

/// Prints controls and faults that only one of the contracts rejects; returns their number.
int64_t compare_mutants(const RunOptions& options, const Contract& a, const Contract& b,
                        const std::vector<Case>& cases) {
  std::vector<std::vector<Trial>> by_a(cases.size()), by_b(cases.size());
  const std::string arch_key = chosen_arch(options);
  for_each_case(cases, thread_count(options), [&](size_t i, unsigned threads) {
    by_a[i] = try_contract(cases[i], a, arch_key, threads);
    by_b[i] = try_contract(cases[i], b, arch_key, threads);
  });
  int64_t tried = 0, changed = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    for (size_t k = 0; k < by_a[i].size(); ++k) {
      const Trial &before = by_a[i][k], &after = by_b[i][k];
      ++tried;
      if (before.rejected() == after.rejected()) continue;
      ++changed;
      const auto word = [](const Trial& trial) { return trial.rejected() ? "rejected" : "accepted"; };
      const bool right = before.meaning.empty();
      fmt::print("{} {}{}{} of {}/{}: {} -> {}\n", right ? "control" : "mutant", before.name,
                 before.output.empty() ? "" : " of ", before.output, cases[i].pass->name, case_name(cases[i]),
                 word(before), word(after));
    }
  }
  fmt::print("{} mutants and controls tried by both: {} change\n", tried, changed);
  return changed;
}

}  // namespace

int diff_command(const Options& options) {
  const Contract a = load_contract(options.run, options.contracts.at(0));
  const Contract b = load_contract(options.run, options.contracts.at(1));
  const std::vector<Case> cases = select_cases(options.run);
  const std::vector<SubjectName> subjects = subjects_of(options.run, a, b);
  const Changes changes = changes_of(a, b, cases, subjects);
  fmt::print("a: {} ({})\nb: {} ({})\n", a.path(), a.hash(), b.path(), b.hash());
  for (const Contract* contract : {&a, &b})
    for (const std::string& warning : contract->warnings()) fmt::print("warning: {}\n", warning);
  print_changes(changes, subjects.size());
  fmt::print("{} case{}: {} change{}\n", cases.size(), cases.size() == 1 ? "" : "s", changes.size(),
             changes.size() == 1 ? "" : "s");
  if (cases.empty()) return 3;
  bool changed = !changes.empty();
  if (options.run.has("--candidate")) {
    Verdicts verdicts(a, b);
    verdicts.run(options.run);
    if (!verdicts.ran_all()) return 4;
    changed |= verdicts.changed() > 0;
  }
  if (options.diff_mutants) changed |= compare_mutants(options.run, a, b, cases) > 0;
  return changed ? 1 : 0;
}

}  // namespace checkop
