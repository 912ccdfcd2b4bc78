// SPDX-License-Identifier: Apache-2.0
// What a contract demands of the checks of a run, and the judgement of each.
#include "session/session.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/paths.hpp"
#include "base/text.hpp"
#include "case/sampling.hpp"
#include "case/sweep.hpp"
#include "judge/gold.hpp"
#include "session/own_data.hpp"
#include "session/scheduler.hpp"
#include "tensor/digest.hpp"

namespace checkop {
namespace {

/// The flags that make the case again.
std::string flags_of_case(const RunOptions& options, const CaseRecord& record) {
  const Case& c = record.c;
  if (options.inputs_file.empty()) {
    std::string flags = case_flags(c);
    for (const auto& [name, from] : record.given_inputs)
      flags += " --input " + quote_command({fmt::format("{}={}", name, from)});
    return flags;
  }
  std::string flags =
      fmt::format("--op {} --pass {} --inputs {}", c.op->name, c.pass->name, quote_command({options.inputs_file}));
  if (!options.gold_file.empty()) flags += " --gold " + quote_command({options.gold_file});
  if (!options.numerics.empty()) flags += " --class " + options.numerics;
  if (options.has("--dtype")) flags += fmt::format(" --dtype {}", options.dtypes.front());
  if (!c.part_bounds.empty()) flags += fmt::format(" --shard-bounds {}", fmt::join(c.part_bounds, ","));
  if (options.terms != 1) flags += fmt::format(" --terms {}", options.terms);
  for (const auto& [name, value] : options.attrs) {
    std::string flag = name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    flags += fmt::format(" --{} {}", flag, value);
  }
  return flags;
}

/// Whether a context of `layout`, which not every run has without --check, changed bits.
bool depends_on_layout(const RunResult& run) {
  for (const OutputRun& output : run.outputs) {
    for (size_t k = 0; k < output.contexts.size(); ++k)
      if (run.contexts[k].axis == Axis::layout && output.contexts[k].bits.different > 0) return true;
  }
  return false;
}

/// The command that repeats one check alone, from the same folder.
std::string repeat_line(const RunOptions& options, const Check& check, const CaseRecord& record,
                        const std::string& contract) {
  std::string line =
      fmt::format("check_operator {} --candidate {} --device {} --contract {}", flags_of_case(options, record),
                  check.candidate.name, check.candidate.device, quote_command({contract}));
  for (const std::string& plugin : options.plugins) line += " --plugin " + quote_command({plugin});
  for (const std::string& command : options.external) line += " --exec " + quote_command({command});
  if (options.external_descriptor) line += " --exec COMMAND";  // another run has not this socket
  if (!options.external_names.empty()) line += fmt::format(" --exec-name {}", fmt::join(options.external_names, ","));
  if (options.arch_key != "auto") line += " --arch-key " + options.arch_key;
  if (options.force_arch_key) line += " --force-arch-key";
  if (!options.recipes.empty()) line += fmt::format(" --recipe {}", fmt::join(options.recipes, ","));
  if (!options.checks.empty()) line += fmt::format(" --check {}", fmt::join(options.checks, ","));
  if (options.checks.empty() && depends_on_layout(record.run)) line += " --check determinism";
  if (!options.gold_rows.empty()) line += " --gold-rows " + options.gold_rows;
  if (options.has("--timeout-s")) line += fmt::format(" --timeout-s {}", options.timeout_s);
  if (options.memory_limit > 0) line += fmt::format(" --memory-limit {}", options.memory_limit);
  return line;
}

/// Rows of each output that the gold computes; 0: all.
int64_t gold_rows(const RunOptions& options, const Contract& contract, const Case& c) {
  if (options.gold_rows.empty()) return contract.sampling().rows_for(gold_work(c));
  return options.gold_rows == "all" ? 0 : parse_sizes("--gold-rows", options.gold_rows).front();
}

constexpr const char* kFramework = "contracts/framework.json";

/// The shipped contract of what frameworks do; nullopt where the program lies without its contracts.
const std::optional<Contract>& framework_contract() {
  static const std::optional<Contract> loaded = []() -> std::optional<Contract> {
    try {
      return Contract::load(find_shipped(kFramework), today());
    } catch (const InputError&) {
      return {};
    }
  }();
  return loaded;
}

/// Names that contract where it grants what a failing output needs.
void name_granting_contract(const Contract& contract, Attempt& attempt) {
  CaseRecord& record = attempt.record;
  for (size_t i = 0; i < record.comparisons.size(); ++i) {
    Comparison& comparison = record.comparisons[i];
    if (comparison.passes_under.empty() && !comparison.leaks_left_out) continue;
    const std::optional<Contract>& framework = framework_contract();
    if (!framework || framework->hash() == contract.hash()) return;
    const Gates gates = framework->gates_for(record.c, record.c.pass->outputs[i], attempt.subject());
    const bool recipes =
        std::all_of(comparison.passes_under.begin(), comparison.passes_under.end(), [&](const auto& name) {
          return std::any_of(gates.recipes.begin(), gates.recipes.end(),
                             [&](const RecipeGrant& grant) { return grant.name == name; });
        });
    const bool left_out = !comparison.leaks_left_out || gates.left_out.content == LeftOut::finite;
    if (recipes && left_out) comparison.granted_by = kFramework;
  }
}

}  // namespace

Session::Session(const RunOptions& options, Selection selection, std::optional<RankService> ranks)
    : options_(options),
      selection_(std::move(selection)),
      ranks_(ranks),
      threads_(thread_count(options)),
      own_inputs_(options.inputs, options.inputs_file) {
  if (!options.gold_file.empty()) gold_ = std::make_shared<const SafetensorsReader>(options.gold_file);
  plan_.all = options.has("--check");
  plan_.layouts = options.suite == "ci" || options.suite == "nightly";
}

void Session::plan_for(const Contract& contract) {
  plan_.axes = AxisSet();
  for (const Check& check : selection_.checks) {
    for (const OutputSpec& spec : check.c.pass->outputs) {
      const Demands demands = contract.demands_for(check.c, spec);
      plan_.runs = std::max(plan_.runs, demands.runs);
      plan_.axes = plan_.axes | demands.axes;
    }
  }
}

/// What the contract demands, and what was asked for by name on top of it.
std::vector<Demands> Session::demands_for(const Contract& contract, const Case& c) const {
  std::vector<Demands> all;
  for (const OutputSpec& spec : c.pass->outputs) {
    Demands demands = contract.demands_for(c, spec);
    if (options_.has("--check")) {
      demands.determinism |= options_.wants("determinism");
      demands.batch_invariance |= options_.wants("invariance");
    }
    all.push_back(demands);
  }
  return all;
}

void Session::require_judgeable(const Contract& contract) const {
  std::vector<const Case*> cases;
  for (const Check& check : selection_.checks) cases.push_back(&check.c);
  own_inputs_.require_fit(cases);
  const bool is_number = options_.gold_rows.find_first_not_of("0123456789") == std::string::npos;
  if (!options_.gold_rows.empty() && options_.gold_rows != "all" &&
      (!is_number || options_.gold_rows.find_first_not_of('0') == std::string::npos)) {
    throw InputError("--gold-rows", fmt::format("expected all, or a number of 1 or more, got '{}'", options_.gold_rows),
                     "give how many rows of each output to compare");
  }
  for (const Check& check : selection_.checks) {
    for (const OutputSpec& spec : check.c.pass->outputs) {
      if (!is_present(check.c, spec.tensor)) continue;
      const Gates gates = contract.gates_for(check.c, spec, {});
      const auto is_of_reference = [](const Gate& gate) { return gate.metric == Metric::vs_reference; };
      if (!gold_ && std::any_of(gates.all.begin(), gates.all.end(), is_of_reference))
        throw InputError(gates.source,
                         fmt::format("vs_reference needs a reference beside the gold of '{}', and {} has none",
                                     spec.tensor.name, check.c.op->name),
                         "give a gold with --gold, or another contract");
    }
    if (gold_) OwnGold::require_sound(*gold_, check.c, contract, {});
  }
}

std::vector<std::string> Session::left_over() const {
  std::vector<std::string> sentences;
  if (options_.inputs_file.empty() || selection_.checks.empty()) return sentences;
  const Case& c = selection_.checks.front().c;  // the only one
  for (const std::string& name : own_inputs_.left_over(c)) {
    sentences.push_back(fmt::format("{}: '{}' is no input of {}/{} and was not used", options_.inputs_file, name,
                                    c.op->name, c.pass->name));
  }
  return sentences;
}

void Session::run_all(const std::function<void(Attempt&)>& judge,
                      const std::function<void(const DeviceInfo&)>& on_first_device,
                      const std::function<bool(const Check&)>& begins) const {
  const SchedulerInputs run{options_, selection_, own_inputs_, proofs_, plan_, ranks_, gold_ ? gold_->path() : "",
                            threads_};
  Scheduler(run, {judge, on_first_device, begins}).run();
}

void Session::find_proofs() {
  if (plan_.all && options_.wants("invariance")) proofs_ = Proofs(selection_.checks, own_inputs_, threads_);
}

std::vector<std::string> Session::controlled_devices() const {
  std::vector<std::string> devices;
  if (!options_.wants("invariance") || (options_.suite.empty() && !plan_.all)) return devices;
  for (const Check* check : selection_.checks_here()) {
    const std::string device = selection_.device_of(*check);
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
  }
  return devices;
}

void Session::judge_by(const Contract& contract, Attempt& attempt, RecipeSearch search) const {
  const auto start = Clock::now();
  CaseRecord& record = attempt.record;
  record.repeat = repeat_line(options_, *attempt.check, record, contract.path());
  record.demands = demands_for(contract, record.c);
  record.times.gold_ms = record.times.compare_ms = 0;
  if (record.left_out == LeftOut::finite) attempt.exchange_data();  // after another contract
  compare(contract, attempt, search);
  if (attempt.other) consider_other_data(contract, attempt, search);
  name_granting_contract(contract, attempt);
  // The gold is computed from the host's copy of the inputs, so a candidate that changed this copy would choose its own
  // gold.
  std::vector<std::string>& modified = record.run.modified_inputs;
  const std::string own_copy = "the host's own copy of the inputs";
  if (!attempt.inputs.empty() && tensor_digest(attempt.inputs, threads_) != record.data_hash &&
      std::find(modified.begin(), modified.end(), own_copy) == modified.end()) {
    modified.insert(modified.begin(), own_copy);
  }
  record.judgment = judge(record.c, record.run, record.comparisons, record.demands, record.checks,
                          record.run.status == RunStatus::ok && options_.wants("accuracy"),
                          contract.known_for(record.c, attempt.subject()));
  record.times.total_ms += ms_since(start);
}

void Session::compare(const Contract& contract, Attempt& attempt, RecipeSearch search) const {
  CaseRecord& record = attempt.record;
  record.comparisons.clear();
  if (record.run.status != RunStatus::ok) return;
  if (!gold_) attempt.rows = sample_rows(record.c, attempt.inputs, gold_rows(options_, contract, record.c));
  if (!options_.wants("accuracy")) return;
  GoldTimes times;
  std::optional<OwnGold> gold;
  if (gold_) {
    OwnGold::require_sound(*gold_, record.c, contract, attempt.subject());  // overlays may ask for more
    gold.emplace(*gold_, record.c);
    record.gold_dtypes = gold->dtypes();
  }
  // A thread takes as long to begin and to end as the gold of a small case in all.
  constexpr int64_t kSmallBytes = int64_t{16} << 10;
  const unsigned threads = tensor_bytes(record.c) <= kSmallBytes ? 1 : threads_;
  record.comparisons = judge_outputs(record.c, attempt.inputs, attempt.outputs, contract, attempt.subject(), threads,
                                     attempt.rows, &times, gold ? gold->replay() : GoldReplay(), search);
  record.times.compare_ms += times.compare_ms;
  record.times.gold_ms += std::max(0.0, times.wall_ms - times.compare_ms);  // a case without rows may give less than 0
}

namespace {

/// Whether launches, and ranks, had the same bits. Where they had not, NaN need not come from what is left out.
bool repeats(const RunResult& run) {
  return run.rank_differences.empty() && std::all_of(run.outputs.begin(), run.outputs.end(),
                                                     [](const OutputRun& each) { return each.repeat.different == 0; });
}

}  // namespace

void Session::consider_other_data(const Contract& contract, Attempt& attempt, RecipeSearch search) const {
  CaseRecord& record = attempt.record;
  const bool accepted =
      repeats(record.run) && accepts_finite(record.c, record.comparisons, contract, attempt.subject());
  const bool fails = std::any_of(record.comparisons.begin(), record.comparisons.end(),
                                 [](const Comparison& each) { return each.expected > 0 && !each.passed(); });
  if (!accepted && !fails) return;
  std::vector<Comparison> with_nan = std::move(record.comparisons);
  attempt.exchange_data();
  compare(contract, attempt, search);
  if (accepted) return;
  const std::vector<Comparison> with_finite = std::exchange(record.comparisons, std::move(with_nan));
  attempt.exchange_data();
  for (size_t i = 0; i < with_finite.size(); ++i) {
    Comparison& comparison = record.comparisons[i];
    const bool would_pass = with_finite[i].passed() || !with_finite[i].passes_under.empty();
    // If recipes explain the failure with NaN there, too, it is no leak.
    const bool is_explained = comparison.passed() || !comparison.passes_under.empty();
    if (comparison.expected == 0 || is_explained || !would_pass) continue;
    comparison.leaks_left_out = true;
    comparison.passes_under = with_finite[i].passes_under;
    comparison.tried_recipes = with_finite[i].tried_recipes;
  }
}

}  // namespace checkop
