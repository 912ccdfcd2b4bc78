// SPDX-License-Identifier: Apache-2.0
// Begins checks in lanes of processes, waits for their ends, and hands them to the thread that judges.
#include "session/scheduler.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/interruption.hpp"
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

/// Checks that may wait to be judged, and the bytes of their tensors.
constexpr size_t kMostWaiting = 8;
constexpr int64_t kMostBytesWaiting = int64_t{16} << 20;

/// Names the processes that work on the check.
std::string worked_on_by(const Check& check) { return check.candidate.name + "@" + check.candidate.device; }

/// Whether NaN in what the operator leaves out may be why the check fails.
bool may_fail_by_left_out(const CaseRecord& record, const std::vector<Tensor>& outputs, unsigned threads) {
  if (record.c.op->left_out.empty()) return false;
  if (record.run.status == RunStatus::failed) return !record.run.device_lost;
  return record.run.status == RunStatus::ok &&
         std::any_of(outputs.begin(), outputs.end(), [&](const Tensor& t) { return has_nonfinite(t, threads); });
}

}  // namespace

Scheduler::Scheduler(const SchedulerInputs& run, SchedulerCalls calls)
    : run_(run), calls_(std::move(calls)), judge_(calls_.judge) {}

void Scheduler::run() {
  try {
    run_checks();
  } catch (...) {
    judge_.wait(0);  // what has run is not lost, unless a signal ends judging, too
    throw;
  }
}

void Scheduler::run_checks() {
  while (const std::unique_ptr<Running> running = next_ ? std::move(next_) : begin_next()) {
    Attempt done = finish(*running);
    if (run_.options.total_shards) done.record.whole_index = done.check - run_.selection.checks.data();
    if (gone_.empty()) gone_ = done.record.run.rank_gone;
    // With ranks in other processes a launcher may end this one at any time: what has run is judged before the next
    // check begins. Without a process of its own a candidate runs in this one, and nothing beside it.
    const bool is_alone = !fits_side_by_side(done.record.c) || run_.ranks || !Isolation::is_on();
    judge_.add(std::move(done));
    judge_.wait(is_alone ? 0 : kMostWaiting, kMostBytesWaiting);
    if (next_error_) std::rethrow_exception(std::exchange(next_error_, nullptr));
  }
  judge_.wait(0);
}

std::unique_ptr<Scheduler::Running> Scheduler::begin_next(const Running* beside) {
  const std::vector<Check>& checks = run_.selection.checks;
  for (; next_index_ < checks.size(); ++next_index_) {
    const Check& check = checks[next_index_];
    if (!check.here) continue;
    if (beside != nullptr && !(may_begin_beside(check, *beside) && open_second_lane())) return nullptr;
    if (calls_.begins && !calls_.begins(check)) continue;
    ++next_index_;
    open_processes(check);
    if (!fits_side_by_side(check.c)) judge_.wait(0);
    return begin(check, beside != nullptr && beside->lane == &lanes_[0] ? lanes_[1] : lanes_[0]);
  }
  return nullptr;
}

bool Scheduler::may_begin_beside(const Check& check, const Running& now) const {
  // Each of two checks may have half of the processors, so the candidate must be far from its time limit.
  const double most_ms = 100.0 * static_cast<double>(run_.options.timeout_s);
  return has_two_lanes_ && worked_on_by(check) == running_ && is_small(check.c) && is_small(now.attempt.record.c) &&
         slowest_ms_ > 0 && slowest_ms_ < most_ms;
}

bool Scheduler::open_second_lane() {
  Lane& lane = lanes_[1];
  if (lane.worker) return true;
  try {
    start(lane);
    if (lane.second && run_.options.wants("determinism")) lane.second->start();
  } catch (const std::exception&) {
    lane.second.reset();
    lane.worker.reset();
    has_two_lanes_ = false;
  }
  return has_two_lanes_;
}

bool Scheduler::deserves_two_lanes(const Check& check) const {
  if (!Isolation::is_on() || check.candidate.device != "cpu" || run_.ranks) return false;
  // To start processes takes as long as the second lane saves in this many checks.
  constexpr int kFewChecks = 16;
  const std::string worked_on = worked_on_by(check);
  int checks = 0;
  for (const Check* each = &check; each <= &run_.selection.checks.back() && worked_on_by(*each) == worked_on; ++each) {
    checks += each->here ? 1 : 0;
    if (checks > kFewChecks) return true;
  }
  return false;
}

void Scheduler::open_processes(const Check& check) {
  const std::string wanted = worked_on_by(check);
  if (lanes_[0].worker && running_ == wanted) return;
  judge_.wait(0);
  const bool is_first = !lanes_[0].worker;
  for (Lane& lane : lanes_) {
    lane.worker.reset();
    lane.second.reset();
  }
  has_two_lanes_ = false;
  slowest_ms_ = 0;
  broken_.clear();
  const auto external = run_.selection.external.find(check.candidate.name);
  if (external != run_.selection.external.end()) {
    lanes_[0].worker = external->second;
  } else {
    config_ = {run_.selection.plugins_of(check.candidate), check.candidate.device};
    config_.memory_limit = run_.options.memory_limit;
    config_.ranks = run_.ranks;
    config_.in_worker = check.candidate.device != "cpu" && runs_in_worker(check.candidate, config_.plugins);
    config_.in_two_lanes = has_two_lanes_ = deserves_two_lanes(check);
    const auto begin = Clock::now();
    try {
      start(lanes_[0]);
    } catch (const InputError& e) {  // the plugins could be loaded before, to ask for their candidates
      broken_ = e.what();
      lanes_[0].worker = std::make_shared<Worker>(WorkerConfig{{}, check.candidate.device});
      has_two_lanes_ = false;
    }
    constexpr double kLongStartMs = 1000;
    has_two_lanes_ = has_two_lanes_ && ms_since(begin) < kLongStartMs;
  }
  running_ = wanted;
  const DeviceInfo& device = lanes_[0].worker->info().device.value();
  arch_key_ = resolve_arch_key(run_.options, device);
  require_devices(check.candidate.name, device);
  if (is_first && calls_.on_first_device) calls_.on_first_device(device);
}

void Scheduler::start(Lane& lane) const {
  lane.worker = std::make_shared<Worker>(config_);
  if (Isolation::is_on()) lane.second.emplace(config_);
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

std::unique_ptr<Scheduler::Running> Scheduler::begin(const Check& check, Lane& lane) {
  auto running = std::make_unique<Running>();
  running->lane = &lane;
  running->start = Clock::now();
  Attempt& attempt = running->attempt;
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
  record.device = lane.worker->info().device.value();
  record.given_inputs = run_.own_inputs.origins(check.c);
  record.gold_file = run_.gold_file;
  running->is_refused = is_refused(check, record);
  if (running->is_refused) return running;
  provide_inputs(attempt);
  attempt.outputs = make_outputs(check.c);
  begin_on_data(*running);
  return running;
}

Attempt Scheduler::finish(Running& running) {
  Attempt& attempt = running.attempt;
  if (running.is_refused) return std::move(attempt);
  finish_on_data(running);
  run_with_finite(running);
  CaseRecord& record = attempt.record;
  record.times.run_ms = record.run.run_ms;
  record.times.transfer_ms = record.run.transfer_ms;
  record.times.total_ms = ms_since(std::max(running.start, last_end_));
  slowest_ms_ = std::max(slowest_ms_, record.times.total_ms);
  last_end_ = Clock::now();
  return std::move(attempt);
}

void Scheduler::begin_on_data(Running& running) {
  Attempt& attempt = running.attempt;
  CaseRecord& record = attempt.record;
  Lane& lane = *running.lane;
  running.proof = run_.proofs.find(record.c);
  running.has_proof_case = running.proof != nullptr && case_name(running.proof->c) != case_name(record.c);
  running.checks = record.checks;
  running.checks.invariance &= !running.has_proof_case;
  const std::chrono::seconds limit(run_.options.timeout_s);
  running.second = running.checks.determinism && lane.second ? &*lane.second : nullptr;
  running.is_side_by_side = running.second != nullptr && running.second->may_run_beside(record.c);
  lane.worker->begin(record.candidate, record.c, attempt.inputs, attempt.outputs, running.checks, limit);
  running.until = Clock::now() + limit;
  if (running.is_side_by_side)
    running.second->begin(record.candidate, record.c, attempt.inputs, record.checks.invariance, limit, run_.threads);
}

void Scheduler::finish_on_data(Running& running) {
  Attempt& attempt = running.attempt;
  CaseRecord& record = attempt.record;
  work_meanwhile(running);
  wait_for(running);
  record.run = running.lane->worker->finish();
  const bool is_ok = record.run.status == RunStatus::ok;
  if (SecondProcess* const second = running.second) {
    if (!running.is_side_by_side && is_ok)
      second->begin(record.candidate, record.c, attempt.inputs, record.checks.invariance,
                    std::chrono::seconds(run_.options.timeout_s), run_.threads);
    if (running.is_side_by_side || is_ok) second->finish();
    if (is_ok) second->compare(attempt.outputs, run_.threads, record.run);
  }
  if (running.proof == nullptr) return;
  record.sensitivity = running.proof->sensitivity;
  if (running.has_proof_case) {
    if (record.run.status == RunStatus::ok) run_proof_case(running);
  } else {
    count_compared(running.proof->c, contexts_of(running.proof->c, record.device, running.checks), record.run,
                   record.sensitivity);
  }
}

void Scheduler::run_with_finite(Running& running) {
  Attempt& attempt = running.attempt;
  CaseRecord& record = attempt.record;
  if (!may_fail_by_left_out(record, attempt.outputs, run_.threads) || !run_.options.wants("accuracy")) return;
  const auto has_room = [&] {
    return has_room_for_other_data(record.c, record.device, run_.threads, run_.options.memory_limit);
  };
  if (!has_room()) judge_.wait(0);  // the judge takes memory, too
  if (!has_room()) return;
  DataRun finite;
  finite.inputs = run_.own_inputs.make(record.c, run_.threads, LeftOut::finite);
  finite.data_hash = tensor_digest(finite.inputs, run_.threads);
  if (finite.data_hash == record.data_hash) return;  // nothing is left out, or it is the user's own data
  finite.outputs = make_outputs(record.c);
  attempt.other = std::move(finite);
  attempt.exchange_data();
  begin_on_data(running);
  finish_on_data(running);
  // No contract accepts these, whatever the data.
  const RunResult& first = attempt.other->run;
  for (const auto finding : {&RunResult::guard_violations, &RunResult::modified_inputs})
    (record.run.*finding).insert((record.run.*finding).end(), (first.*finding).begin(), (first.*finding).end());
  gone_ = record.run.rank_gone;
  attempt.exchange_data();
}

bool Scheduler::is_refused(const Check& check, CaseRecord& record) {
  if (!check.candidate.has_kernel) {
    record.run.status = RunStatus::unsupported;
    record.run.message = check.candidate.no_kernel;
    return true;
  }
  if (!broken_.empty()) {
    record.run.status = RunStatus::crashed;
    record.run.message = broken_;
    return true;
  }
  if (!gone_.empty()) {  // each further check would wait for the rank again
    record.run.status = RunStatus::crashed;
    record.run.message = record.run.rank_gone = gone_;
    return true;
  }
  const auto why = [&] { return why_no_room(check.c, record.device, run_.threads, run_.options.memory_limit); };
  if (why().empty()) return false;
  judge_.wait(0);  // the judge takes memory, too
  record.run.message = why();
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

void Scheduler::run_proof_case(Running& running) {
  CaseRecord& record = running.attempt.record;
  const Proofs::Entry& proof = *running.proof;
  RunChecks checks = record.checks;
  checks.determinism = false;
  const std::vector<Tensor> inputs = make_inputs(proof.c, run_.threads, record.left_out);
  std::vector<Tensor> outputs = make_outputs(proof.c);
  RunResult run = running.lane->worker->run(record.candidate, proof.c, inputs, outputs, checks,
                                            std::chrono::seconds(run_.options.timeout_s));
  count_compared(proof.c, contexts_of(proof.c, record.device, checks), run, record.sensitivity);
  append_contexts(std::move(run), proof.c, record.run);
}

void Scheduler::work_meanwhile(const Running& running) {
  if (next_ || next_error_ || prepared_.check != nullptr) return;  // this check may run on more than one set of data
  try {
    next_ = begin_next(&running);
  } catch (...) {  // this check comes first
    next_error_ = std::current_exception();
  }
  if (!next_) prepared_ = prepare();
}

void Scheduler::wait_for(const Running& running) {
  constexpr int kTickMs = 100;
  while (Clock::now() < running.until && *interruption() == '\0') {
    std::array<pollfd, 3> answers{{{running.lane->worker->awaited(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}}};
    const std::array<const Running*, 2> both{&running, next_.get()};
    for (size_t i = 0; i < both.size(); ++i) {
      if (both[i] == nullptr || !both[i]->is_side_by_side) continue;
      if (both[i]->second->may_go_on()) both[i]->second->go_on();
      answers[1 + i].fd = both[i]->second->awaited();
    }
    if (answers[0].fd < 0 && answers[1].fd < 0) return;  // the check beside may still be at work
    poll(answers.data(), answers.size(), kTickMs);
  }
}

Scheduler::PreparedInputs Scheduler::prepare() const {
  const std::vector<Check>& checks = run_.selection.checks;
  const auto begin = checks.begin() + static_cast<std::ptrdiff_t>(next_index_);
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
