// SPDX-License-Identifier: Apache-2.0
// Finds outputs about which no case of a run proves anything.
#include "report/vacuity.hpp"

#include <fmt/format.h>

#include <map>
#include <tuple>

namespace checkop {
namespace {

/// Counts over the cases of a run for one output of one candidate.
struct OutputCounts {
  int64_t cases = 0, zero = 0, with_rows = 0, equal = 0;

  void add(const OutputFacts& output) {
    if (output.count == 0) return;
    ++cases;
    zero += output.gold_is_zero ? 1 : 0;
    if (output.gold_is_zero || output.total_rows < 2) return;
    ++with_rows;
    equal += output.rows_are_equal ? 1 : 0;
  }
  bool all_zero() const { return cases > 0 && zero == cases; }
  bool all_equal() const { return with_rows > 0 && equal == with_rows; }
};

using OutputKey = std::tuple<std::string, std::string, std::string, std::string, std::string>;

OutputKey key_of(const CheckFacts& check, const OutputFacts& output) {
  return {check.candidate, check.op, check.pass, check.dtype, output.name};
}

std::vector<CheckFacts> facts_of(const Report& report) {
  std::vector<CheckFacts> checks;
  for (const CaseRecord& record : report.records) checks.push_back(facts_of(record));
  return checks;
}

void enter(RunJudgments judgments, Report& report) {
  for (size_t i = 0; i < judgments.size(); ++i) {
    if (!judgments[i]) continue;
    report.records[i].judgment = *std::move(judgments[i]);
    report.records[i].judged_by_run = true;
  }
}

}  // namespace

CheckFacts facts_of(const CaseRecord& record) {
  CheckFacts check;
  check.candidate = record.candidate;
  check.op = record.c.op->name;
  check.pass = record.c.pass->name;
  check.dtype = info(record.c.dtype).name;
  check.passes = record.judgment.verdict == Verdict::pass;
  check.has_rows = row_count(record.c) > 0;
  check.has_own_inputs = !record.given_inputs.empty();
  for (size_t i = 0; i < record.c.pass->outputs.size(); ++i) {
    OutputFacts& output = check.outputs.emplace_back();
    output.name = record.c.pass->outputs[i].tensor.name;
    if (i < record.comparisons.size()) {
      const Comparison& comparison = record.comparisons[i];
      output.count = comparison.count;
      output.total_rows = comparison.total_rows;
      output.gold_is_zero = comparison.gold_is_zero;
      output.rows_are_equal = comparison.rows_are_equal;
    }
    if (i >= record.sensitivity.size()) continue;
    const Sensitivity& own = record.sensitivity[i];
    const bool asked = record.run.status == RunStatus::ok && record.checks.invariance &&
                       record.demands[i].batch_invariance && check.has_rows;
    if (!asked || own.state == Sensitivity::State::not_applicable) continue;
    output.shown = {
        own.state == Sensitivity::State::measured, own.proves(), own.share(), own.unseen(), own.compared, own.why};
  }
  return check;
}

RunJudgments find_vacuous(const std::vector<CheckFacts>& checks) {
  std::map<OutputKey, OutputCounts> counts;
  for (const CheckFacts& check : checks) {
    for (const OutputFacts& output : check.outputs) counts[key_of(check, output)].add(output);
  }
  RunJudgments judgments(checks.size());
  for (size_t k = 0; k < checks.size(); ++k) {
    if (!checks[k].passes || !checks[k].has_rows) continue;
    for (const OutputFacts& output : checks[k].outputs) {
      if (output.count == 0) continue;
      const OutputCounts& together = counts[key_of(checks[k], output)];
      if (together.all_zero()) {
        judgments[k] = {Verdict::vacuous, "zeros",
                        fmt::format("{}: the gold is zero in every case of this run, so an output of zeros would pass; "
                                    "use inputs that give other results",
                                    output.name)};
      } else if (together.all_equal()) {
        judgments[k] = {Verdict::vacuous, "next_row",
                        fmt::format("{}: all rows are identical in every case of this run, so swapped rows can't be "
                                    "detected; use inputs that differ from row to row",
                                    output.name)};
      } else {
        continue;
      }
      break;
    }
  }
  return judgments;
}

RunJudgments find_insensitive(const std::vector<CheckFacts>& checks) {
  std::map<OutputKey, const OutputFacts::Shown*> best;  // of outputs for which invariance was requested and applies
  for (const CheckFacts& check : checks) {
    for (const OutputFacts& output : check.outputs) {
      if (!output.shown) continue;
      const OutputFacts::Shown*& known = best[key_of(check, output)];
      if (known == nullptr || (output.shown->measured && output.shown->unseen < known->unseen)) known = &*output.shown;
    }
  }
  RunJudgments judgments(checks.size());
  for (size_t k = 0; k < checks.size(); ++k) {
    if (!checks[k].passes) continue;
    for (const OutputFacts& output : checks[k].outputs) {
      if (!output.shown) continue;
      const OutputFacts::Shown& found = *best[key_of(checks[k], output)];
      if (found.proves) continue;
      judgments[k] = {
          Verdict::vacuous, "insensitive",
          found.measured
              ? fmt::format(
                    "{}: another order of summation changes at best {:.2g} of the elements in this run, so that all {} "
                    "compared elements stay the same with probability {:.2g} and a changed order is missed; {}",
                    output.name, found.share, found.compared, found.unseen,
                    !checks[k].has_own_inputs ? "use more rows or longer sums"
                                              : "capture more rows, or leave --input out, so that rows can be added")
              : fmt::format("{}: whether the data would show another order of summation was not measured: {}",
                            output.name, found.why)};
      break;
    }
  }
  return judgments;
}

void mark_vacuous(Report& report) { enter(find_vacuous(facts_of(report)), report); }

void mark_insensitive(Report& report) { enter(find_insensitive(facts_of(report)), report); }

}  // namespace checkop
