// SPDX-License-Identifier: Apache-2.0
// Collects what cases pass by, output by output and dtype by dtype.
#include "session/recipe_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace checkop {

std::string_view to_string(RecipeAnswer answer) {
  switch (answer) {
    case RecipeAnswer::plain:
      return "plain";
    case RecipeAnswer::recipes:
      return "recipes";
    case RecipeAnswer::none:
      return "none";
    case RecipeAnswer::unsupported:
      return "unsupported";
    case RecipeAnswer::skipped:
      return "skipped";
    case RecipeAnswer::empty:
      return "empty";
    case RecipeAnswer::error:
      break;
  }
  return "error";
}

namespace {

/// What would be said of the case if the other outputs were right.
std::string reason_of(const CaseRecord& record, size_t output) {
  if (record.comparisons.empty()) return record.judgment.reason;
  Comparison right;
  right.count = right.expected = 1;
  std::vector<Comparison> alone(record.comparisons.size(), right);
  alone[output] = record.comparisons[output];
  return judge(record.c, record.run, alone, record.demands, record.checks, /*accuracy=*/true).reason;
}

}  // namespace

void RecipeCell::note(const CaseRecord& record, size_t output) {
  if (!reason_.empty()) return;
  reason_ = fmt::format("{}: {}", case_name(record.c), reason_of(record, output));
  repeat_ = record.repeat;
}

void RecipeCell::add(const CaseRecord& record, size_t output) {
  const Verdict verdict = record.judgment.verdict;
  if (record.run.status != RunStatus::ok) {
    const bool declined = verdict == Verdict::unsupported || verdict == Verdict::skipped;
    unjudged_ += declined ? 1 : 0;
    skipped_ |= verdict == Verdict::skipped;
    error_ |= verdict == Verdict::error || verdict == Verdict::timeout;
    fails_ |= !declined;
    if (!declined) note(record, output);
    return;
  }
  const Comparison& comparison = record.comparisons[output];
  if (comparison.expected == 0) return;
  ++judged_;
  if (comparison.passed()) return;
  known_ = recipes_of(*record.c.pass, record.c.pass->outputs[output].tensor, record.c.dtype);
  std::vector<RecipeSet> ways;
  for (const std::vector<std::string>& names : comparison.every_set) {
    RecipeSet& way = ways.emplace_back();
    for (const Recipe* recipe : known_) {
      if (lists(names, recipe->name)) way.push_back(recipe->name);
    }
  }
  if (ways.empty()) {
    fails_ = true;
    note(record, output);
  } else if (std::find(passing_.begin(), passing_.end(), ways) == passing_.end()) {
    passing_.push_back(std::move(ways));
    if (smallest_for_all(known_, passing_)) return;
    fails_ = true;  // each of its sets excludes what a case before it needs
    note(record, output);
  }
}

RecipeAnswer RecipeCell::answer() const {
  if (error_) return RecipeAnswer::error;
  if (fails_) return RecipeAnswer::none;
  if (judged_ > 0) return passing_.empty() ? RecipeAnswer::plain : RecipeAnswer::recipes;
  if (unjudged_ == 0) return RecipeAnswer::empty;
  return skipped_ ? RecipeAnswer::skipped : RecipeAnswer::unsupported;
}

RecipeSet RecipeCell::recipes() const {
  return answer() == RecipeAnswer::recipes ? smallest_for_all(known_, passing_).value() : RecipeSet();
}

void RecipeTable::add(const CaseRecord& record) {
  const Case& c = record.c;
  for (size_t i = 0; i < c.pass->outputs.size(); ++i) {
    const TensorSpec& spec = c.pass->outputs[i].tensor;
    if (!is_present(c, spec)) continue;
    auto row = std::find_if(rows_.begin(), rows_.end(), [&](const RecipeRow& each) {
      return each.candidate == record.candidate && each.pass == c.pass && each.output == spec.name;
    });
    if (row == rows_.end())
      row = rows_.insert(row, {record.candidate, c.op, c.pass, spec.name, record.declared_recipes, {}});
    row->cells[c.dtype].add(record, i);
  }
}

int RecipeTable::exit_code() const {
  const auto any = [&](std::initializer_list<RecipeAnswer> wanted) {
    return std::any_of(rows_.begin(), rows_.end(), [&](const RecipeRow& row) {
      return std::any_of(row.cells.begin(), row.cells.end(), [&](const auto& cell) {
        return std::find(wanted.begin(), wanted.end(), cell.second.answer()) != wanted.end();
      });
    });
  };
  if (any({RecipeAnswer::error})) return 4;
  if (any({RecipeAnswer::none})) return 1;
  return any({RecipeAnswer::plain, RecipeAnswer::recipes}) ? 0 : 3;
}

}  // namespace checkop
