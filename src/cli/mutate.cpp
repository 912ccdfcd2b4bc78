// SPDX-License-Identifier: Apache-2.0
// check_operator mutate: tries controls and faults on cases, and prints what the contract rejects and the kill rate.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.hpp"
#include "base/output_file.hpp"
#include "cli/commands.hpp"
#include "mutate/mutation.hpp"
#include "report/progress.hpp"
#include "report/report.hpp"
#include "session/check_order.hpp"
#include "session/selection.hpp"

namespace checkop {
namespace {

struct Tried {
  Case c;
  int64_t seed = 0;  ///< index of the seed, below --seeds
  std::vector<Trial> trials;
};

/// One fault of a pass in one dtype, over cases and seeds. A seed finds the fault if any case with that seed does.
struct FaultRow {
  std::string meaning;
  std::map<int64_t, WorstGate> by_seed;  ///< by seed: the most violated gate over its cases
  std::map<int64_t, bool> killed;
  int64_t cases = 0;  ///< number of cases in which the fault changes anything

  bool dead() const {
    return std::all_of(killed.begin(), killed.end(), [](const auto& seed) { return seed.second; });
  }
  /// The result of the seed that finds the fault least clearly.
  WorstGate weakest() const {
    return std::min_element(by_seed.begin(), by_seed.end(),
                            [](const auto& a, const auto& b) { return a.second.ratio < b.second.ratio; })
        ->second;
  }
};

/// All results of one pass.
struct PassTable {
  using Key = std::tuple<std::string, std::string>;  ///< (fault, output)
  std::vector<Key> order;
  std::map<Key, std::map<DType, FaultRow>> faults;
  std::map<DType, WorstGate> controls;  ///< the most violated gate over all controls
  int64_t accepted = 0, excluded = 0;
  std::vector<std::string> rejected;  ///< rejected controls, with the reason
  std::set<std::string> vacuous;      ///< vacuous cases, with the reason
};

using PassName = std::pair<std::string, std::string>;  ///< operator, pass
using Tables = std::map<PassName, PassTable>;

void add(const Tried& tried, PassTable& table) {
  for (const Trial& trial : tried.trials) {
    if (trial.kind == Trial::Kind::excluded) ++table.excluded;
    if (trial.kind == Trial::Kind::control) {
      WorstGate& worst = table.controls[tried.c.dtype];
      if (trial.worst_gate.ratio > worst.ratio) worst = trial.worst_gate;
      const std::string line = fmt::format("{}: {}", case_name(tried.c), trial.judgment.reason);
      if (trial.rejected()) table.rejected.push_back(fmt::format("{}, {}", trial.name, line));
      if (!trial.rejected()) ++table.accepted;
      if (trial.judgment.verdict == Verdict::vacuous) table.vacuous.insert(line);
    }
    const bool is_fault = trial.kind == Trial::Kind::fault || trial.kind == Trial::Kind::unchanged;
    if (!is_fault) continue;
    const PassTable::Key key{trial.name, trial.output};
    if (!table.faults.contains(key)) table.order.push_back(key);
    FaultRow& row = table.faults[key][tried.c.dtype];
    row.meaning = trial.meaning;
    if (trial.kind == Trial::Kind::unchanged) continue;
    ++row.cases;
    row.killed[tried.seed] |= trial.rejected();
    WorstGate& worst = row.by_seed[tried.seed];
    if (worst.gate.empty() || trial.worst_gate.ratio > worst.ratio) worst = trial.worst_gate;
  }
}

/// "57x bound_ratio"; without a figure if no limit would accept the fault.
std::string describe(const FaultRow& row) {
  if (row.cases == 0) return "-";
  const WorstGate worst = row.weakest();
  const std::string figure = std::isfinite(worst.ratio) ? fmt::format("{:.3g}x ", worst.ratio) : "";
  return (row.dead() ? "" : "SURVIVED ") + figure + (worst.gate.empty() ? "no gate" : worst.gate);
}

struct Score {
  int64_t faults = 0, killed = 0, unseen = 0, controls = 0, rejected = 0, excluded = 0;
  double rate() const { return faults > 0 ? static_cast<double>(killed) / static_cast<double>(faults) : 0; }
};

Score score_of(const Tables& tables) {
  Score score;
  for (const auto& [pass, table] : tables) {
    score.controls += table.accepted + std::ssize(table.rejected);
    score.rejected += std::ssize(table.rejected);
    score.excluded += table.excluded;
    for (const auto& [key, rows] : table.faults) {
      for (const auto& [dtype, row] : rows) {
        score.unseen += row.cases == 0 ? 1 : 0;
        score.faults += row.cases > 0 ? 1 : 0;
        score.killed += row.cases > 0 && row.dead() ? 1 : 0;
      }
    }
  }
  return score;
}

/// Faults that change nothing in the tried cases: "eps_left_out, stale_row (y) in bf16 and fp16"; "" if there are none.
std::string not_shown(const PassTable& table, const std::vector<DType>& dtypes) {
  std::string list;
  for (const PassTable::Key& key : table.order) {
    const auto& [fault, output] = key;
    std::vector<std::string_view> in;
    for (const auto& [dtype, row] : table.faults.at(key))
      if (row.cases == 0) in.push_back(info(dtype).name);
    if (in.empty()) continue;
    list += (list.empty() ? "" : ", ") + fault + (output.empty() ? "" : fmt::format(" ({})", output));
    if (in.size() < dtypes.size()) list += fmt::format(" in {}", fmt::join(in, " and "));
  }
  return list;
}

void print_table(const std::string& op, const std::string& pass, const PassTable& table,
                 const std::vector<DType>& dtypes) {
  std::vector<std::vector<std::string>> lines{{"fault"}};
  for (const DType dtype : dtypes) lines.back().emplace_back(info(dtype).name);
  for (const PassTable::Key& key : table.order) {
    const auto& [fault, output] = key;
    const auto& rows = table.faults.at(key);
    if (std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row.second.cases == 0; })) continue;
    lines.push_back({output.empty() ? fault : fmt::format("{} ({})", fault, output)});
    for (const DType dtype : dtypes) lines.back().push_back(rows.contains(dtype) ? describe(rows.at(dtype)) : "");
  }
  lines.push_back({fmt::format("controls: {} accepted, {} rejected", table.accepted, table.rejected.size())});
  for (const DType dtype : dtypes) {
    const auto found = table.controls.find(dtype);
    lines.back().push_back(found == table.controls.end() || found->second.gate.empty()
                               ? ""
                               : fmt::format("{:.3g}x {}", found->second.ratio, found->second.gate));
  }
  std::vector<size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  fmt::print("\n{}/{}\n", op, pass);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) fmt::print("  {:<{}}", line[i], i + 1 < line.size() ? widths[i] : 0);
    fmt::print("\n");
  }
  if (const std::string faults = not_shown(table, dtypes); !faults.empty())
    fmt::print("  not shown by this data: {}\n", faults);
  for (const std::string& line : table.rejected) fmt::print("  REJECTED CONTROL {}\n", line);
  for (const std::string& line : table.vacuous) fmt::print("  VACUOUS {}\n", line);
}

/// Prints the limit that would reject each survivor, and how far controls stay below it.
void print_survivors(const Tables& tables) {
  for (const auto& [pass, table] : tables) {
    for (const PassTable::Key& key : table.order) {
      for (const auto& [dtype, row] : table.faults.at(key)) {
        if (row.cases == 0 || row.dead()) continue;
        const WorstGate worst = row.weakest();
        const auto control = table.controls.find(dtype);
        fmt::print(
            "SURVIVED {}/{} {} {}{}{}: {}; {}\n", pass.first, pass.second, info(dtype).name, std::get<0>(key),
            std::get<1>(key).empty() ? "" : " of ", std::get<1>(key), row.meaning,
            worst.gate.empty() || worst.ratio == 0
                ? "no gate sees it"
                : fmt::format("'{}' of {} below {:.3g} of its limit would reject it, controls reach {:.3g}", worst.gate,
                              worst.output, worst.ratio, control == table.controls.end() ? 0 : control->second.ratio));
      }
    }
  }
}

std::string to_json(const Tables& tables, const Score& score, const Contract& contract, int64_t seeds) {
  nlohmann::json passes = nlohmann::json::array();
  for (const auto& [pass, table] : tables) {
    nlohmann::json faults = nlohmann::json::array(), controls = nlohmann::json::object();
    for (const PassTable::Key& key : table.order) {
      for (const auto& [dtype, row] : table.faults.at(key)) {
        nlohmann::json fault{{"fault", std::get<0>(key)},
                             {"output", std::get<1>(key)},
                             {"dtype", info(dtype).name},
                             {"meaning", row.meaning},
                             {"cases", row.cases}};
        if (row.cases > 0) {
          const WorstGate worst = row.weakest();
          fault["killed"] = row.dead();
          fault["gate"] = worst.gate, fault["gate_output"] = worst.output, fault["ratio"] = json_number(worst.ratio);
        }
        faults.push_back(std::move(fault));
      }
    }
    for (const auto& [dtype, worst] : table.controls)
      controls[std::string(info(dtype).name)] = {{"gate", worst.gate}, {"ratio", json_number(worst.ratio)}};
    passes.push_back({{"op", pass.first},
                      {"pass", pass.second},
                      {"faults", std::move(faults)},
                      {"controls", std::move(controls)},
                      {"controls_accepted", table.accepted},
                      {"controls_rejected", table.rejected},
                      {"vacuous", table.vacuous},
                      {"controls_excluded", table.excluded}});
  }
  const nlohmann::json root{{"format", "check_operator/mutation-1"},
                            {"contract", {{"path", contract.path()}, {"hash", contract.hash()}}},
                            {"seeds", seeds},
                            {"faults", score.faults},
                            {"killed", score.killed},
                            {"kill_rate", score.rate()},
                            {"controls", score.controls},
                            {"controls_rejected", score.rejected},
                            {"passes", std::move(passes)}};
  return root.dump(2) + "\n";
}

/// Every case of `cases` with every seed, by pass.
std::map<PassName, std::vector<Tried>> tried_by_pass(const std::vector<Case>& cases, int64_t seeds) {
  std::map<PassName, std::vector<Tried>> by_pass;
  for (const Case& c : cases) {
    std::vector<Tried>& of_pass = by_pass[{std::string(c.op->name), std::string(c.pass->name)}];
    for (int64_t i = 0; i < seeds; ++i) {
      of_pass.push_back({c, i, {}});
      of_pass.back().c.seed += static_cast<uint64_t>(i), of_pass.back().c.grad_seed += static_cast<uint64_t>(i);
    }
  }
  return by_pass;
}

/// The progress line of a terminal: which cases are being tried.
class TriedProgress {
 public:
  TriedProgress(std::FILE* out, const std::map<PassName, std::vector<Tried>>& by_pass)
      : progress_(out, steps_of(by_pass)) {}

  void begin(size_t index) {
    const std::lock_guard lock(mutex_);
    progress_.begin(index);
  }
  void end(size_t index) {
    const std::lock_guard lock(mutex_);
    progress_.end(index);
  }
  void clear() { progress_.clear(); }

 private:
  static std::vector<Progress::Step> steps_of(const std::map<PassName, std::vector<Tried>>& by_pass) {
    std::vector<Progress::Step> steps;
    for (const auto& [pass, of_pass] : by_pass) {
      for (const Tried& tried : of_pass)
        steps.push_back({fmt::format("{}/{}/{}", pass.first, pass.second, case_name(tried.c)),
                         cost_of({.c = tried.c, .candidate = {}})});
    }
    return steps;
  }

  std::mutex mutex_;  ///< cases are tried side by side
  Progress progress_;
};

/// Tries the cases of a pass. `first` is the index of their first step in `progress`.
void try_pass(std::vector<Tried>& of_pass, const Options& options, const Contract& contract, size_t first,
              TriedProgress& progress) {
  const std::string arch_key = chosen_arch(options.run);
  std::vector<Case> cases;
  for (const Tried& tried : of_pass) cases.push_back(tried.c);
  for_each_case(cases, thread_count(options.run), [&](size_t i, unsigned threads) {
    progress.begin(first + i);
    of_pass[i].trials = try_contract(cases[i], contract, arch_key, threads);
    progress.end(first + i);
  });
}

}  // namespace

int mutate_command(const Options& options) {
  const Contract contract = load_contract(options.run);
  const std::vector<Case> cases = select_cases(options.run);
  for (const Case& c : cases) {
    for (const OutputSpec& spec : c.pass->outputs) {
      if (is_present(c, spec.tensor)) contract.gates_for(c, spec, {});
    }
  }
  std::vector<DType> dtypes;
  for (const Case& c : cases)
    if (std::find(dtypes.begin(), dtypes.end(), c.dtype) == dtypes.end()) dtypes.push_back(c.dtype);
  if (!options.run.json_file.empty()) require_writable(options.run.json_file);
  auto by_pass = tried_by_pass(cases, options.mutate.seeds);
  const bool text = !options.run.json_to_stdout;
  if (text) {
    fmt::print("{} (hash {}): {} cases, {} seed{}; figures are error over limit of the gate with the largest ratio\n",
               contract.path(), contract.hash(), cases.size(), options.mutate.seeds,
               options.mutate.seeds == 1 ? "" : "s");
    std::fflush(stdout);
  }
  Tables tables;
  TriedProgress progress(text ? stdout : nullptr, by_pass);
  size_t first = 0;
  for (auto& [pass, of_pass] : by_pass) {
    try_pass(of_pass, options, contract, first, progress);
    first += of_pass.size();
    PassTable& table = tables[pass];
    for (const Tried& tried : of_pass) add(tried, table);
    of_pass.clear();
    progress.clear();
    if (text) print_table(pass.first, pass.second, table, dtypes);
    std::fflush(stdout);
  }
  const Score score = score_of(tables);
  if (text) {
    fmt::print("\n");
    print_survivors(tables);
    fmt::print(
        "kill rate {:.4f}: {} of {} faults rejected, {} not shown by this data; {} of {} controls accepted, "
        "{} were rejected for chains of additions that the contract does not allow\n",
        score.rate(), score.killed, score.faults, score.unseen, score.controls - score.rejected, score.controls,
        score.excluded);
  } else {
    fmt::print("{}", to_json(tables, score, contract, options.mutate.seeds));
  }
  if (!options.run.json_file.empty())
    write_file(options.run.json_file, to_json(tables, score, contract, options.mutate.seeds));
  if (score.faults == 0) return 3;
  return score.rate() >= options.mutate.min_kill && score.rejected == 0 ? 0 : 1;
}

}  // namespace checkop
