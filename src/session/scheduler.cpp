// SPDX-License-Identifier: Apache-2.0
// Checks run one after the other; what needs no candidate is done while the candidate works.
#include "session/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "case/inputs.hpp"
#include "case/rank_parts.hpp"
#include "run/invariance/contexts.hpp"
#include "run/memory_need.hpp"
#include "run/rank_group.hpp"
#include "tensor/digest.hpp"
#include "worker/worker.hpp"

namespace checkop {
namespace {

/// Appends the contexts of `other`, a run of the case `c`, to `run`; a failure of `other` is one of the whole check.
void append_contexts(RunResult other, const Case& c, RunResult& run) {
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

/// Whether NaN in what the operator leaves out may be why the check fails.
bool may_fail_by_left_out(const CaseRecord& record, const std::vector<Tensor>& outputs, unsigned threads) {
  if (record.c.op->left_out.empty()) return false;
  if (record.run.status == RunStatus::failed) return !record.run.device_lost;
  return record.run.status == RunStatus::ok &&
         std::any_of(outputs.begin(), outputs.end(), [&](const Tensor& t) { return has_nonfinite(t, threads); });
}

}  // namespace

Scheduler::Scheduler(const SchedulerInputs& run, SchedulerCalls calls) : run_(run), calls_(std::move(calls)) {}

void Scheduler::run() {
  try {
    run_checks();
  } catch (...) {
    judge_all();  // what has run is not lost
    throw;
  }
}

void Scheduler::run_checks() {
  for (size_t index = 0; index < run_.selection.checks.size(); ++index) {
    const Check& check = run_.selection.checks[index];
    if (!check.here || (calls_.begins && !calls_.begins(check))) continue;
    open_processes(check);
    Attempt done = attempt(index);
    if (run_.options.total_shards) done.record.whole_index = static_cast<int64_t>(index);
    if (gone_.empty()) gone_ = done.record.run.rank_gone;
    ran_.push_back(std::move(done));
    // Judges at once if a rank is gone: the launcher may end this process soon, too.
    if (!fits_side_by_side(check.c) || !gone_.empty()) judge_all();
    while (has_backlog()) judge_next();
  }
  judge_all();
}

void Scheduler::open_processes(const Check& check) {
  const std::string wanted = check.candidate.name + "@" + check.candidate.device;
  if (worker_ && running_ == wanted) return;
  judge_all();
  const bool is_first = !worker_;
  worker_.reset();
  second_.reset();
  const auto external = run_.selection.external.find(check.candidate.name);
  if (external != run_.selection.external.end()) {
    worker_ = external->second;
  } else {
    WorkerConfig config{run_.selection.plugins_of(check.candidate), check.candidate.device};
    config.memory_limit = run_.options.memory_limit;
    config.ranks = run_.ranks;
    config.in_worker = check.candidate.device != "cpu" && runs_in_worker(check.candidate, config.plugins);
    worker_ = std::make_shared<Worker>(config);
    if (Isolation::is_on()) second_.emplace(std::move(config));
  }
  running_ = wanted;
  const DeviceInfo& device = worker_->info().device.value();
  arch_key_ = resolve_arch_key(run_.options, device);
  require_devices(check.candidate.name, device);
  if (is_first && calls_.on_first_device) calls_.on_first_device(device);
}

bool Scheduler::runs_in_worker(const ChosenCandidate& candidate, const std::vector<std::string>& plugins) const {
  if (std::all_of(plugins.begin(), plugins.end(), is_shipped_plugin)) return true;
  const std::vector<Check>& checks = run_.selection.checks;
  return std::any_of(checks.begin(), checks.end(), [&](const Check& each) {
    return each.candidate.name == candidate.name && each.candidate.device == candidate.device &&
           is_tensor_parallel(each.c);
  });
}

void Scheduler::require_devices(const std::string& candidate, const DeviceInfo& device) const {
  if (!run_.options.cases.empty() || !run_.options.suite.empty()) return;
  for (const Check& check : run_.selection.checks) {
    if (check.candidate.name != candidate) continue;
    if (const std::string why = why_too_many_ranks(check.c, device); !why.empty()) throw EnvironmentError(why);
  }
}

Attempt Scheduler::attempt(size_t index) {
  const auto start = Clock::now();
  const Check& check = run_.selection.checks[index];
  Attempt attempt;
  attempt.check = &check;
  attempt.arch_key = arch_key_;
  CaseRecord& record = attempt.record;
  record.c = check.c;
  record.candidate = check.candidate.name;
  record.plugin_path = check.candidate.plugin_path;
  record.plugin_digest = check.candidate.plugin_digest;
  record.declared_recipes = check.candidate.recipes;
  record.checks = {run_.options.wants("determinism"), run_.options.wants("invariance"), run_.options.wants("memory"),
                   run_.plan, rank_limit(run_.options)};
  record.device = worker_->info().device.value();
  record.given_inputs = run_.own_inputs.origins(check.c);
  record.gold_file = run_.gold_file;
  if (is_refused(check, record)) return attempt;

  provide_inputs(attempt);
  attempt.outputs = make_outputs(check.c);
  run_on_data(index, attempt);
  run_with_finite(index, attempt);
  record.times.run_ms = record.run.run_ms;
  record.times.transfer_ms = record.run.transfer_ms;
  record.times.total_ms = ms_since(start);
  return attempt;
}

void Scheduler::run_on_data(size_t index, Attempt& attempt) {
  CaseRecord& record = attempt.record;
  const Proofs::Entry* const proof = run_.proofs.find(record.c);
  const bool has_proof_case = proof != nullptr && case_name(proof->c) != case_name(record.c);
  RunChecks own = record.checks;
  own.invariance &= !has_proof_case;
  run_in_processes(index, own, attempt);
  if (proof != nullptr) record.sensitivity = proof->sensitivity;
  if (has_proof_case && record.run.status == RunStatus::ok) {
    run_proof_case(*proof, record);
  } else if (proof != nullptr && !has_proof_case) {
    count_compared(proof->c, contexts_of(proof->c, record.device, own), record.run, record.sensitivity);
  }
}

void Scheduler::run_with_finite(size_t index, Attempt& attempt) {
  CaseRecord& record = attempt.record;
  if (!may_fail_by_left_out(record, attempt.outputs, run_.threads) || !run_.options.wants("accuracy") ||
      !has_room_for_other_data(record.c, record.device, run_.threads, run_.options.memory_limit))
    return;
  DataRun finite;
  finite.inputs = run_.own_inputs.make(record.c, run_.threads, LeftOut::finite);
  finite.data_hash = tensor_digest(finite.inputs, run_.threads);
  if (finite.data_hash == record.data_hash) return;  // nothing is left out, or it is the user's own data
  finite.outputs = make_outputs(record.c);
  attempt.other = std::move(finite);
  attempt.exchange_data();
  run_on_data(index, attempt);
  // No contract accepts these, whatever the data.
  const RunResult& first = attempt.other->run;
  for (const auto finding : {&RunResult::guard_violations, &RunResult::modified_inputs})
    (record.run.*finding).insert((record.run.*finding).end(), (first.*finding).begin(), (first.*finding).end());
  gone_ = record.run.rank_gone;
  attempt.exchange_data();
}

bool Scheduler::is_refused(const Check& check, CaseRecord& record) const {
  if (!check.candidate.has_kernel) {
    record.run.status = RunStatus::unsupported;
    record.run.message = check.candidate.no_kernel;
    return true;
  }
  if (!gone_.empty()) {  // each further check would wait for the rank again
    record.run.status = RunStatus::crashed;
    record.run.message = record.run.rank_gone = gone_;
    return true;
  }
  record.run.message = why_no_room(check.c, record.device, run_.threads, run_.options.memory_limit);
  if (record.run.message.empty()) return false;
  record.run.status = RunStatus::skipped;
  return true;
}

void Scheduler::provide_inputs(Attempt& attempt) {
  const auto start = Clock::now();
  PreparedInputs prepared = std::exchange(prepared_, {});
  const bool is_prepared = prepared.check == attempt.check;
  attempt.inputs = is_prepared ? std::move(prepared.inputs) : run_.own_inputs.make(attempt.record.c, run_.threads);
  attempt.record.times.generate_ms = is_prepared ? prepared.ms : ms_since(start);
  attempt.record.data_hash = tensor_digest(attempt.inputs, run_.threads);
}

void Scheduler::run_in_processes(size_t index, const RunChecks& checks, Attempt& attempt) {
  CaseRecord& record = attempt.record;
  const std::chrono::seconds limit(run_.options.timeout_s);
  SecondProcess* const second = checks.determinism && second_ ? &*second_ : nullptr;
  const bool side_by_side = second != nullptr && second->may_run_beside(record.c);
  const auto begin_second = [&] { second->begin(record.candidate, record.c, attempt.inputs, limit, run_.threads); };

  worker_->begin(record.candidate, record.c, attempt.inputs, attempt.outputs, checks, limit);
  if (side_by_side) begin_second();
  work_meanwhile(index, side_by_side ? second : nullptr);
  record.run = worker_->finish();
  const bool is_ok = record.run.status == RunStatus::ok;
  if (second != nullptr && !side_by_side && is_ok) begin_second();
  if (side_by_side || (second != nullptr && is_ok)) second->finish();
  if (second != nullptr && is_ok) second->compare(attempt.outputs, run_.threads, record.run);
}

void Scheduler::run_proof_case(const Proofs::Entry& proof, CaseRecord& record) {
  RunChecks checks = record.checks;
  checks.determinism = false;
  const std::vector<Tensor> inputs = make_inputs(proof.c, run_.threads, record.left_out);
  std::vector<Tensor> outputs = make_outputs(proof.c);
  RunResult run =
      worker_->run(record.candidate, proof.c, inputs, outputs, checks, std::chrono::seconds(run_.options.timeout_s));
  count_compared(proof.c, contexts_of(proof.c, record.device, checks), run, record.sensitivity);
  append_contexts(std::move(run), proof.c, record.run);
}

void Scheduler::work_meanwhile(size_t index, SecondProcess* second) {
  if (prepared_.check == nullptr) prepared_ = prepare(index + 1);  // this check may run on more than one set of data
  while (!ran_.empty()) {
    if (second != nullptr && second->may_go_on()) second->go_on();
    if (worker_->has_answered() && (second == nullptr || second->is_done())) return;
    judge_next();
  }
  if (second != nullptr) second->go_on();
}

void Scheduler::judge_next() {
  Attempt done = std::move(ran_.front());
  ran_.pop_front();
  calls_.judge(done);
}

void Scheduler::judge_all() {
  while (!ran_.empty()) judge_next();
}

bool Scheduler::has_backlog() const {
  constexpr size_t kMost = 8;
  constexpr int64_t kMostBytes = int64_t{16} << 20;
  if (ran_.size() <= 1) return false;  // it waits for the next check to begin
  int64_t bytes = 0;
  for (const Attempt& attempt : ran_) bytes += tensor_bytes(attempt.record.c);
  return ran_.size() > kMost || bytes > kMostBytes || run_.ranks;
}

Scheduler::PreparedInputs Scheduler::prepare(size_t index) const {
  const std::vector<Check>& checks = run_.selection.checks;
  const auto begin = checks.begin() + static_cast<std::ptrdiff_t>(index);
  const auto next = std::find_if(begin, checks.end(), [](const Check& check) { return check.here; });
  if (next == checks.end() || !next->candidate.has_kernel || !fits_side_by_side(next->c)) return {};
  const auto start = Clock::now();
  try {
    PreparedInputs prepared{&*next, run_.own_inputs.make(next->c, run_.threads)};
    prepared.ms = ms_since(start);
    return prepared;
  } catch (const std::exception&) {  // the check reports the same error when it is its turn
    return {};
  }
}

}  // namespace checkop
