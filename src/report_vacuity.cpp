// SPDX-License-Identifier: Apache-2.0
// What no case of a run could tell.
#include <fmt/format.h>

#include <map>
#include <tuple>

#include "report.hpp"

namespace checkop {
namespace {

/// What the cases of a run say together about one output of one candidate.
struct Told {
  int64_t cases = 0, zero = 0, with_rows = 0, equal = 0;

  void add(const Comparison& comparison) {
    if (comparison.count == 0) return;
    ++cases;
    zero += comparison.gold_is_zero ? 1 : 0;
    if (comparison.gold_is_zero || comparison.total_rows < 2) return;
    ++with_rows;
    equal += comparison.rows_are_equal ? 1 : 0;
  }
  bool all_zero() const { return cases > 0 && zero == cases; }
  bool all_equal() const { return with_rows > 0 && equal == with_rows; }
};

using Key = std::tuple<std::string, std::string_view, std::string_view, DType, size_t>;

Key key_of(const CaseRecord& record, size_t output) {
  return {record.candidate, record.c.op->name, record.c.pass->name, record.c.dtype, output};
}

}  // namespace

void mark_vacuous(Report& report) {
  std::map<Key, Told> told;
  for (const CaseRecord& record : report.records) {
    for (size_t i = 0; i < record.comparisons.size(); ++i) told[key_of(record, i)].add(record.comparisons[i]);
  }
  for (CaseRecord& record : report.records) {
    if (record.judgment.verdict != Verdict::pass || row_count(record.c) == 0) continue;
    for (size_t i = 0; i < record.comparisons.size(); ++i) {
      if (record.comparisons[i].count == 0) continue;
      const Told& output = told[key_of(record, i)];
      const std::string_view name = record.c.pass->outputs[i].tensor.name;
      if (output.all_zero()) {
        record.judgment = {
            Verdict::vacuous, "zeros",
            fmt::format("{}: every gold of this run is zero throughout: zeros are all that was asked for", name)};
      } else if (output.all_equal()) {
        record.judgment = {
            Verdict::vacuous, "next_row",
            fmt::format("{}: all rows have the same bits in every case of this run, so none shows whether "
                        "it is in its place; use inputs that differ from row to row",
                        name)};
      } else {
        continue;
      }
      record.judged_by_run = true;
      break;
    }
  }
}

void mark_insensitive(Report& report) {
  std::map<Key, const Sensitivity*> best;  // of what was asked for and applies
  const auto asked = [](const CaseRecord& record, size_t i) {
    return record.run.status == RunStatus::ok && record.checks.invariance && record.demands[i].batch_invariance &&
           row_count(record.c) > 0 && record.sensitivity[i].state != Sensitivity::State::not_applicable;
  };
  for (const CaseRecord& record : report.records) {
    for (size_t i = 0; i < record.sensitivity.size(); ++i) {
      if (!asked(record, i)) continue;
      const Sensitivity*& known = best[key_of(record, i)];
      const Sensitivity& own = record.sensitivity[i];
      const bool measured = own.state == Sensitivity::State::measured;
      if (known == nullptr || (measured && own.unseen() < known->unseen())) known = &own;
    }
  }
  for (CaseRecord& record : report.records) {
    if (record.judgment.verdict != Verdict::pass) continue;
    for (size_t i = 0; i < record.sensitivity.size(); ++i) {
      if (!asked(record, i)) continue;
      const Sensitivity& found = *best[key_of(record, i)];
      if (found.proves()) continue;
      const std::string_view name = record.c.pass->outputs[i].tensor.name;
      record.judgment = {
          Verdict::vacuous, "insensitive",
          found.state == Sensitivity::State::measured
              ? fmt::format(
                    "{}: at best, another order of summation changes {:.2g} of the elements in this run, and of "
                    "{} compared elements all stay the same with probability {:.2g}; {}",
                    name, found.share(), found.compared, found.unseen(),
                    record.given_inputs.empty() ? "use more rows or longer sums"
                                                : "capture more rows, or leave --input out, so that rows can be added")
              : fmt::format("{}: whether the data would show another order of summation was not measured: {}", name,
                            found.why)};
      record.judged_by_run = true;
      break;
    }
  }
}

}  // namespace checkop
