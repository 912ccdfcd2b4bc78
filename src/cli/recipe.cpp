// SPDX-License-Identifier: Apache-2.0
// check_operator recipe: where kernels round, as a table of the recipes by which they pass.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/output_file.hpp"
#include "cli/commands.hpp"
#include "report/json.hpp"
#include "session/recipe_table.hpp"
#include "session/session.hpp"

namespace checkop {
namespace {

using Json = nlohmann::json;

std::string text_of(const RecipeCell& cell) {
  const RecipeAnswer answer = cell.answer();
  return answer == RecipeAnswer::recipes ? fmt::format("{}", fmt::join(cell.recipes(), " + "))
                                         : std::string(to_string(answer));
}

/// The rows of one candidate for one operator, with a column for each dtype.
void print_rows(const std::vector<const RecipeRow*>& rows) {
  const RecipeRow& first = *rows.front();
  std::set<std::string> declared;
  std::set<DType> dtypes;
  size_t label_width = 0;
  const auto label = [](const RecipeRow& row) { return fmt::format("{:<8}  {}", row.pass->name, row.output); };
  for (const RecipeRow* row : rows) {
    declared.insert(row->declared.begin(), row->declared.end());
    for (const auto& [dtype, cell] : row->cells) dtypes.insert(dtype);
    label_width = std::max(label_width, label(*row).size());
  }
  // Columns as wide as their longest cell; the last one needs no width.
  const auto cell_text = [](const RecipeRow& row, DType dtype) {
    const auto cell = row.cells.find(dtype);
    return cell == row.cells.end() ? std::string("-") : text_of(cell->second);
  };
  const auto line = [&](const std::string& head, const auto& text_in) {
    std::string text = fmt::format("  {:<{}}", head, label_width);
    for (const DType dtype : dtypes) {
      size_t width = info(dtype).name.size();
      for (const RecipeRow* row : rows) width = std::max(width, cell_text(*row, dtype).size());
      text += fmt::format("  {:<{}}", text_in(dtype), width);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    fmt::print("{}\n", text);
  };
  fmt::print("{}  {}{}{}\n", first.op->name, first.candidate, declared.empty() ? "" : "  declares ",
             fmt::join(declared, " "));
  line("", [](DType dtype) { return std::string(info(dtype).name); });
  for (const RecipeRow* row : rows) line(label(*row), [&](DType dtype) { return cell_text(*row, dtype); });
}

/// Why cells have no answer, with the command that shows it.
void print_reasons(const RecipeTable& table) {
  std::vector<std::pair<std::string, std::string>> reasons;  // by the command
  for (const RecipeRow& row : table.rows()) {
    for (const auto& [dtype, cell] : row.cells) {
      if (cell.reason().empty()) continue;
      const std::string& repeat = cell.repeat();
      auto found = std::find_if(reasons.begin(), reasons.end(), [&](const auto& e) { return e.first == repeat; });
      if (found == reasons.end()) found = reasons.insert(found, {repeat, ""});
      found->second += fmt::format("{}: {}/{} {} of {}: {}\n", to_string(cell.answer()), row.op->name, row.pass->name,
                                   row.output, row.candidate, cell.reason());
    }
  }
  for (const auto& [repeat, text] : reasons) fmt::print("{}  repeat: {}\n", text, repeat);
}

void print(const RecipeTable& table) {
  std::vector<std::vector<const RecipeRow*>> groups;
  for (const RecipeRow& row : table.rows()) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& each) {
      return each.front()->op == row.op && each.front()->candidate == row.candidate;
    });
    (group == groups.end() ? groups.emplace_back() : *group).push_back(&row);
  }
  for (const auto& rows : groups) print_rows(rows);
  print_reasons(table);
}

Json json_of(const RecipeTable& table, const Contract& contract) {
  Json rows = Json::array();
  for (const RecipeRow& row : table.rows()) {
    Json cells = Json::object();
    for (const auto& [dtype, cell] : row.cells) {
      cells[std::string(info(dtype).name)] = {
          {"answer", to_string(cell.answer())}, {"recipes", cell.recipes()}, {"judged", cell.judged()},
          {"unjudged", cell.unjudged()},        {"reason", cell.reason()},   {"repeat", cell.repeat()}};
    }
    rows.push_back({{"candidate", row.candidate},
                    {"op", row.op->name},
                    {"pass", row.pass->name},
                    {"output", row.output},
                    {"declared_recipes", row.declared},
                    {"dtypes", cells}});
  }
  return {{"format", "check_operator/recipes-1"},
          {"contract", {{"path", contract.path()}, {"hash", contract.hash()}}},
          {"rows", rows}};
}

}  // namespace

int recipe_command(const Options& options) {
  RunOptions run = options.run;
  run.checks = {"accuracy"};
  const Contract contract = load_contract(run);
  const Session session(run, select_checks(run));
  session.require_judgeable(contract);
  if (!run.json_file.empty()) require_writable(run.json_file);
  RecipeTable table;
  session.run_all([&](Attempt& attempt) {
    session.judge_by(contract, attempt, RecipeSearch::every_set);
    table.add(attempt.record);
  });
  if (run.json_to_stdout || !run.json_file.empty()) {
    const std::string text = dump_json(json_of(table, contract), 1) + "\n";
    if (!run.json_file.empty()) write_file(run.json_file, text);
    if (run.json_to_stdout) fmt::print("{}", text);
  }
  if (!run.json_to_stdout) {
    print(table);
    fmt::print("judged without grants by {} ({})\n", contract.path(), contract.hash());
  }
  return table.exit_code();
}

}  // namespace checkop
