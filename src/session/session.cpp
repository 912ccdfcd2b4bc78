// SPDX-License-Identifier: Apache-2.0
// Cases x candidates -> runs -> comparisons -> verdicts.
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
#include "base/text.hpp"
#include "case/inputs.hpp"
#include "case/sampling.hpp"
#include "case/sweep.hpp"
#include "judge/gold.hpp"
#include "run/memory_need.hpp"
#include "run/rank_group.hpp"
#include "session/given.hpp"
#include "tensor/digest.hpp"
#include "worker/isolate.hpp"

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
  if (!c.shard_bounds.empty()) flags += fmt::format(" --shard-bounds {}", fmt::join(c.shard_bounds, ","));
  if (options.terms != 1) flags += fmt::format(" --terms {}", options.terms);
  for (const auto& [name, value] : options.attrs) {
    std::string flag = name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    flags += fmt::format(" --{} {}", flag, value);
  }
  return flags;
}

/// The command that repeats one check alone, from the same folder.
std::string repeat_line(const RunOptions& options, const Check& check, const CaseRecord& record,
                        const std::string& contract) {
  std::string line =
      fmt::format("check_operator {} --candidate {} --device {} --contract {}", flags_of_case(options, record),
                  check.candidate.name, check.candidate.device, quote_command({contract}));
  for (const std::string& plugin : options.plugins) line += " --plugin " + quote_command({plugin});
  for (const std::string& command : options.external) line += " --exec " + quote_command({command});
  if (!options.external_names.empty()) line += fmt::format(" --exec-name {}", fmt::join(options.external_names, ","));
  if (options.arch_key != "auto") line += " --arch-key " + options.arch_key;
  if (options.force_arch_key) line += " --force-arch-key";
  if (!options.checks.empty()) line += fmt::format(" --check {}", fmt::join(options.checks, ","));
  if (!options.gold_rows.empty()) line += " --gold-rows " + options.gold_rows;
  if (options.has("--timeout-s")) line += fmt::format(" --timeout-s {}", options.timeout_s);
  if (options.memory_limit > 0) line += fmt::format(" --memory-limit {}", options.memory_limit);
  return line;
}

/// The key whose overlays apply. Throws InputError when the user's key is not the device's.
std::string resolve_arch_key(const RunOptions& options, const DeviceInfo& device) {
  // A device newer than this program has no overlays, and is judged all the same.
  if (options.arch_key == "auto") return is_known_arch(device.arch_key) ? device.arch_key : "";
  if (options.arch_key == "none") return "";
  if (options.arch_key != device.arch_key && !options.force_arch_key) {
    throw InputError("--arch-key",
                     fmt::format("'{}' is not the architecture of {} ({})", options.arch_key, device.name,
                                 device.arch_key.empty() ? "none" : device.arch_key),
                     "leave it out, or add --force-arch-key");
  }
  return options.arch_key;
}

/// Rows of each output that the gold computes; 0: all.
int64_t gold_rows(const RunOptions& options, const Contract& contract, const Case& c) {
  if (options.gold_rows.empty()) return contract.sampling().rows_for(gold_work(c));
  return options.gold_rows == "all" ? 0 : parse_sizes("--gold-rows", options.gold_rows).front();
}

/// Appends what `other` saw of the rows of `c` to `run`; a failure of it is one of the whole.
void take_contexts(RunResult other, const Case& c, RunResult& run) {
  const auto append = [](auto& to, auto& from) { std::move(from.begin(), from.end(), std::back_inserter(to)); };
  if (other.status != RunStatus::ok) {
    other.message += fmt::format(" ({})", case_name(c));
    run = std::move(other);
    return;
  }
  run.rows_case = c;
  append(run.guard_violations, other.guard_violations);
  append(run.modified_inputs, other.modified_inputs);
  append(run.rank_differences, other.rank_differences);
  append(run.contexts, other.contexts);
  for (size_t i = 0; i < run.outputs.size(); ++i) {
    append(run.outputs[i].contexts, other.outputs[i].contexts);
    run.outputs[i].smallest_rows = other.outputs[i].smallest_rows;
  }
}

}  // namespace

Session::Session(const RunOptions& options, Selection selection, std::optional<RankService> ranks)
    : options_(options),
      selection_(std::move(selection)),
      ranks_(std::move(ranks)),
      threads_(thread_count(options)),
      given_(options.inputs, options.inputs_file) {
  if (!options.gold_file.empty()) gold_ = std::make_shared<const SafetensorsReader>(options.gold_file);
  plan_.all = options.has("--check");
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

bool Session::wants(std::string_view check) const {
  return options_.checks.empty() ||
         std::find(options_.checks.begin(), options_.checks.end(), check) != options_.checks.end();
}

/// What the contract demands, and what was asked for by name on top of it.
std::vector<Demands> Session::demands_for(const Contract& contract, const Case& c) const {
  std::vector<Demands> all;
  for (const OutputSpec& spec : c.pass->outputs) {
    Demands demands = contract.demands_for(c, spec);
    if (options_.has("--check")) {
      demands.determinism |= wants("determinism");
      demands.batch_invariance |= wants("invariance");
    }
    all.push_back(demands);
  }
  return all;
}

void Session::check_questions(const Contract& contract) const {
  std::vector<const Case*> cases;
  for (const Check& check : selection_.checks) cases.push_back(&check.c);
  given_.require_fit(cases);
  if (!options_.gold_rows.empty() && options_.gold_rows != "all" &&
      parse_sizes("--gold-rows", options_.gold_rows).size() != 1) {
    throw InputError("--gold-rows", fmt::format("expected one number, got '{}'", options_.gold_rows),
                     "give all, or one number");
  }
  for (const Check& check : selection_.checks) {
    for (const OutputSpec& spec : check.c.pass->outputs) {
      if (is_present(check.c, spec.tensor)) contract.gates_for(check.c, spec, {});
    }
    if (gold_) GivenGold::require_sound(*gold_, check.c, contract, {});
  }
}

std::vector<std::string> Session::left_over() const {
  std::vector<std::string> sentences;
  if (options_.inputs_file.empty() || selection_.checks.empty()) return sentences;
  const Case& c = selection_.checks.front().c;  // the only one
  for (const std::string& name : given_.left_over(c)) {
    sentences.push_back(fmt::format("{}: '{}' is no input of {}/{} and was not used", options_.inputs_file, name,
                                    c.op->name, c.pass->name));
  }
  return sentences;
}

void Session::run_all(const std::function<void(Attempt&)>& body, const std::function<void(const DeviceInfo&)>& device,
                      const std::function<bool(const Check&)>& begins) const {
  std::shared_ptr<Worker> worker;
  std::optional<SecondProcess> second;
  std::string running, arch_key, gone;
  std::optional<Attempt> waiting;
  Prepared prepared;
  const auto hand_over = [&] {
    if (!waiting) return;
    Attempt done = std::move(*waiting);
    waiting.reset();
    body(done);
  };
  for (size_t index = 0; index < selection_.checks.size(); ++index) {
    const Check& check = selection_.checks[index];
    if (!check.here || (begins && !begins(check))) continue;
    const std::string wanted = check.candidate.name + "@" + check.candidate.device;
    if (!worker || running != wanted) {
      hand_over();
      const bool first = !worker;
      worker.reset();
      const auto external = selection_.external.find(check.candidate.name);
      second.reset();
      if (external != selection_.external.end()) {
        worker = external->second;  // it is started once
      } else {
        WorkerConfig config{selection_.plugins_of(check.candidate), check.candidate.device};
        config.memory_limit = options_.memory_limit;
        config.ranks = ranks_;
        worker = std::make_shared<Worker>(config);
        if (Isolation::is_on()) second.emplace(std::move(config));
      }
      running = wanted;
      arch_key = resolve_arch_key(options_, worker->info().device.value());
      require_devices(check.candidate.name, *worker->info().device);
      if (first && device) device(*worker->info().device);
    }
    const auto meanwhile = [&] {
      hand_over();
      prepared = prepare(index + 1);
    };
    Attempt done =
        attempt({*worker, second ? &*second : nullptr, std::exchange(prepared, {}), meanwhile}, check, arch_key, gone);
    hand_over();
    if (options_.total_shards) done.record.whole_index = static_cast<int64_t>(index);
    gone = done.record.run.rank_gone;
    waiting = std::move(done);
    // Two large ones have no room side by side; the end of a rank is told to the others at once.
    if (!fits_side_by_side(check.c) || !gone.empty()) hand_over();
  }
  hand_over();
}

Session::Prepared Session::prepare(size_t index) const {
  const auto begin = selection_.checks.begin() + static_cast<std::ptrdiff_t>(index);
  const auto next = std::find_if(begin, selection_.checks.end(), [](const Check& check) { return check.here; });
  if (next == selection_.checks.end() || !next->candidate.has_kernel || !fits_side_by_side(next->c)) return {};
  const auto start = Clock::now();
  try {
    return {&*next, given_.make(next->c, threads_), ms_since(start)};
  } catch (const std::exception&) {  // as it will again, when it is its turn
    return {};
  }
}

void Session::find_proofs() {
  if (plan_.all && wants("invariance")) proofs_ = Proofs(selection_.checks, given_, threads_);
}

std::vector<std::string> Session::controlled_devices() const {
  std::vector<std::string> devices;
  if (!wants("invariance") || (options_.suite.empty() && !plan_.all)) return devices;
  for (const Check* check : selection_.checks_here()) {
    const std::string device = selection_.device_of(*check);
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
  }
  return devices;
}

/// Runs the case, in a second process too, and where the rows of another one are to be compared, that one.
void Session::run(const Hands& hands, const Proofs::Entry* proof, Attempt& attempt) const {
  CaseRecord& record = attempt.record;
  const std::chrono::seconds limit(options_.timeout_s);
  const bool apart = proof != nullptr && case_name(proof->c) != case_name(record.c);
  RunChecks own = record.checks;
  own.invariance &= !apart;
  SecondProcess* const second = record.checks.determinism ? hands.second : nullptr;
  const auto run_again = [&](const std::function<void()>& meanwhile) {
    second->run(record.candidate, record.c, attempt.inputs, limit, threads_, meanwhile);
  };
  const bool beside = second != nullptr && second->may_run_beside(record.c);  // while the first works
  const auto meanwhile = [&] { beside ? run_again(hands.meanwhile) : hands.meanwhile(); };
  record.run = hands.worker.run(record.candidate, record.c, attempt.inputs, attempt.outputs, own, limit, meanwhile);
  if (second != nullptr && record.run.status == RunStatus::ok) {
    if (!beside) run_again({});
    second->compare(attempt.outputs, threads_, record.run);
  }
  if (proof == nullptr) return;
  record.sensitivity = proof->sensitivity;
  if (!apart) {
    count_compared(proof->c, contexts_of(proof->c, record.device, own), record.run, record.sensitivity);
  } else if (record.run.status == RunStatus::ok) {
    RunChecks of_rows = record.checks;
    of_rows.determinism = false;
    const std::vector<Tensor> inputs = make_inputs(proof->c, threads_);
    std::vector<Tensor> outputs = make_outputs(proof->c);
    RunResult other = hands.worker.run(record.candidate, proof->c, inputs, outputs, of_rows, limit);
    count_compared(proof->c, contexts_of(proof->c, record.device, of_rows), other, record.sensitivity);
    take_contexts(std::move(other), proof->c, record.run);
  }
}

/// The user's own question can't be asked on fewer devices than it has ranks; of a suite, the others can.
void Session::require_devices(const std::string& candidate, const DeviceInfo& device) const {
  if (!options_.cases.empty() || !options_.suite.empty()) return;
  for (const Check& check : selection_.checks) {
    if (check.candidate.name != candidate) continue;
    if (const std::string why = why_too_many_ranks(check.c, device); !why.empty()) throw EnvironmentError(why);
  }
}

Attempt Session::attempt(Hands hands, const Check& check, const std::string& arch_key, const std::string& gone) const {
  const auto start = Clock::now();
  Attempt attempt;
  attempt.check = &check;
  attempt.arch_key = arch_key;
  CaseRecord& record = attempt.record;
  record.c = check.c;
  record.candidate = check.candidate.name;
  record.plugin_path = check.candidate.plugin_path;
  record.plugin_digest = check.candidate.plugin_digest;
  record.checks = {wants("determinism"), wants("invariance"), wants("memory"), plan_, rank_limit(options_)};
  record.device = hands.worker.info().device.value();
  record.given_inputs = given_.origins(check.c);
  if (gold_) record.gold_file = gold_->path();
  if (!check.candidate.has_kernel) {
    record.run.status = RunStatus::unsupported;
    record.run.message = check.candidate.no_kernel;
    return attempt;
  }
  if (!gone.empty()) {  // each further check would wait for it again
    record.run.status = RunStatus::crashed;
    record.run.message = record.run.rank_gone = gone;
    return attempt;
  }
  record.run.message = why_no_room(check.c, record.device, threads_, options_.memory_limit);
  if (!record.run.message.empty()) {
    record.run.status = RunStatus::skipped;
    return attempt;
  }
  const bool is_prepared = hands.prepared.check == &check;
  attempt.inputs = is_prepared ? std::move(hands.prepared.inputs) : given_.make(check.c, threads_);
  record.times.generate_ms = is_prepared ? hands.prepared.ms : ms_since(start);
  record.data_hash = tensor_digest(attempt.inputs, threads_);
  attempt.outputs = make_outputs(check.c);
  run(hands, proofs_.find(check.c), attempt);
  record.times.run_ms = record.run.run_ms;
  record.times.transfer_ms = record.run.transfer_ms;
  record.times.total_ms = ms_since(start);
  return attempt;
}

void Session::judge_by(const Contract& contract, Attempt& attempt) const {
  const auto start = Clock::now();
  CaseRecord& record = attempt.record;
  record.repeat = repeat_line(options_, *attempt.check, record, contract.path());
  record.demands = demands_for(contract, record.c);
  record.comparisons.clear();
  const bool ran = record.run.status == RunStatus::ok, accuracy = ran && wants("accuracy");
  if (ran && !gold_) attempt.rows = sample_rows(record.c, attempt.inputs, gold_rows(options_, contract, record.c));
  if (accuracy) {
    GoldTimes times;
    std::optional<GivenGold> gold;
    if (gold_) {
      GivenGold::require_sound(*gold_, record.c, contract, attempt.subject());  // overlays may ask for more
      gold.emplace(*gold_, record.c);
      record.gold_dtypes = gold->dtypes();
    }
    // A thread takes as long to begin and to end as the gold of a small case in all.
    constexpr int64_t kSmallBytes = int64_t{16} << 10;
    const unsigned threads = tensor_bytes(record.c) <= kSmallBytes ? 1 : threads_;
    record.comparisons = judge_outputs(record.c, attempt.inputs, attempt.outputs, contract, attempt.subject(), threads,
                                       attempt.rows, &times, gold ? gold->replay() : GoldReplay());
    record.times.compare_ms = times.compare_ms;
    record.times.gold_ms = std::max(0.0, times.wall_ms - times.compare_ms);  // of no rows: roundings
  }
  // The gold was computed from these: a candidate that reached the host's copy, now or in a later launch, must not
  // have chosen them.
  std::vector<std::string>& modified = record.run.modified_inputs;
  const std::string own_copy = "the host's own copy of the inputs";
  if (!attempt.inputs.empty() && tensor_digest(attempt.inputs, threads_) != record.data_hash &&
      std::find(modified.begin(), modified.end(), own_copy) == modified.end()) {
    modified.insert(modified.begin(), own_copy);
  }
  record.judgment = judge(record.c, record.run, record.comparisons, record.demands, record.checks, accuracy,
                          contract.known_for(record.c, attempt.subject()));
  record.times.total_ms += ms_since(start);
}

}  // namespace checkop
