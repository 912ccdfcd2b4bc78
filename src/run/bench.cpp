// SPDX-License-Identifier: Apache-2.0
// Times candidates in turns, compares the outputs of their launches, and computes statistics of the times.
#include "run/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>

#include "base/clock.hpp"
#include "case/rank_parts.hpp"
#include "run/plugin_host.hpp"
#include "run/stage.hpp"
#include "run/time_bound.hpp"

namespace checkop {
namespace {

constexpr int kWarmUps = 3;
constexpr int kCopyRepeats = 7;
constexpr size_t kMostSets = 16;
constexpr double kLeastMs = 1e-6;  // a clock that did not move would give infinite rates

using Digests = std::vector<uint64_t>;

Digests digests_of(Stage& stage) {
  Digests digests;
  for (const BufferPtr& output : stage.outputs) digests.push_back(output ? output->fingerprint() : 0);
  return digests;
}

/// A candidate's buffers, samples and answers.
struct Contender {
  const Candidate* candidate;
  BenchRun* run;
  std::vector<std::vector<Tensor>>* outputs;  ///< of BenchData
  std::unique_ptr<Stage> burst = {};          ///< its inputs are shared between candidates, as are those of `sets`
  std::vector<std::unique_ptr<Stage>> sets = {};
  std::vector<Digests> digests = {};    ///< of the kept outputs, by data set; empty: none are kept yet
  double cover_us = 0;                  ///< for one launch; see Device::time_ms()
  std::vector<double> unseen_ms = {};   ///< of the latest kind of timing; see PluginHost::Timed
  int64_t differing = 0;                ///< launches whose outputs differ from the kept ones
  std::vector<SeenPasses> passes = {};  ///< they bound the burst times that its process reports

  bool is_ok() const { return run->status == RunStatus::ok; }
  size_t data_sets() const { return digests.size(); }
};

/// Bandwidth of a copy that is far larger than the cache.
double measure_copy(Device& device) {
  const size_t bytes = device.info().kind == "cpu" ? size_t{64} << 20 : size_t{1} << 30;
  const auto free = [&](std::byte* memory) { device.free(memory); };
  using Memory = std::unique_ptr<std::byte, decltype(free)>;
  const Memory from(device.allocate(bytes, "the source of a copy"), free);
  const Memory to(device.allocate(bytes, "the target of a copy"), free);
  device.fill(from.get(), 0x3f9d70a4c28f5c29, 8, bytes);
  device.fill(to.get(), 0, 8, bytes);
  std::vector<double> ms;
  for (int i = 0; i < kCopyRepeats; ++i) {
    const auto copy = [&] { device.copy(to.get(), from.get(), bytes); };
    ms.push_back(std::max(kLeastMs, device.time_ms(copy, 50, [&] { device.flush_cache(); })));
  }
  return 2.0 * static_cast<double>(bytes) / quantile(ms, 0.5) / 1e6;
}

/// Number of sets of `bytes` each, so that a set has left the cache when its turn comes again.
size_t sets_for(double bytes, size_t cache_bytes) {
  const double needed = std::ceil(3.0 * static_cast<double>(cache_bytes) / std::max(1.0, bytes));
  return static_cast<size_t>(std::clamp(needed, 1.0, static_cast<double>(kMostSets)));
}

/// Runs `body` for a contender; a contender that stops is left out from then on.
void attempt(Contender& contender, const std::function<void()>& body) {
  if (!contender.is_ok()) return;
  try {
    body();
  } catch (const Stopped& stopped) {
    contender.run->status = stopped.status;
    contender.run->message = !stopped.modified_input.empty()    ? "input: " + stopped.modified_input
                             : !stopped.guard_violation.empty() ? "guard: " + stopped.guard_violation
                                                                : stopped.message;
  }
}

/// Times the candidates of one case.
class Timing {
 public:
  Timing(Device& device, const Case& c, const BenchData& data, const BenchPlan& plan, double copy_gbps,
         std::vector<Contender>& contenders)
      : device_(device), case_(c), data_(data), plan_(plan), copy_gbps_(copy_gbps), contenders_(contenders) {}

  void run() {
    if (plan_.burst) time_burst();
    if (plan_.sustained) time_sustained();
    device_.synchronize("end of timing");
  }

 private:
  static constexpr const char* kWarmUp = "warm up";

  std::vector<BufferPtr> make_inputs(size_t data);
  const std::vector<BufferPtr>& inputs_of(size_t data);
  std::unique_ptr<Stage> make_stage(Contender& contender, const std::vector<BufferPtr>& inputs);
  void upload(const std::vector<BufferPtr>& inputs, size_t data);
  InitialState drawn_poison();
  void warm_up(Contender& contender, Stage& stage);
  void take(Contender& contender, Stage& stage, size_t data, const std::string& launch);
  void keep(Contender& contender, Stage& stage, size_t slot, size_t data);
  void take_memory(Contender& contender, Stage& stage, size_t data);
  void time_burst();
  bool tell_times_themselves() const;
  void hold_data(Stage& stage, size_t data);
  /// The data set of a launch, by the launch's number.
  using DataOf = std::function<size_t(size_t)>;
  void see_pass(Contender& contender, const std::vector<Stage*>& stages, const DataOf& data_of, bool recorded,
                SeenPasses& passes);
  bool is_replayable(Contender& contender);
  size_t most_launches(const Stage& stage) const;
  void bound_burst(Contender& contender);
  void hold_to_bounds(Contender& contender) const;
  void make_sets();
  double time_chain(Contender& contender, int64_t count);
  void note_unseen_of_empty(const std::function<void()>& prepare);
  void charge_unseen(const Contender& contender, std::vector<double>& samples, int64_t launches) const;
  void take_chain(Contender& contender, int64_t count, const std::string& launch);
  void change_data_amid_chain(Contender& contender);
  void time_sustained();

  Device& device_;
  const Case& case_;
  const BenchData& data_;
  const BenchPlan& plan_;
  double copy_gbps_;
  std::vector<Contender>& contenders_;
  std::vector<std::vector<BufferPtr>> inputs_{data_.inputs.size()};  ///< by data set; empty: not made yet
  std::mt19937_64 random_{std::random_device{}()};
  std::vector<double> unseen_ms_;  ///< as Contender::unseen_ms, of a process without plugins
};

std::vector<BufferPtr> Timing::make_inputs(size_t data) {
  Stage any(device_, *contenders_.front().candidate->kernel, case_, "");
  std::vector<BufferPtr> inputs;
  for (const TensorSpec& spec : case_.pass->inputs) inputs.push_back(any.make_buffer("input", spec));
  upload(inputs, data);
  return inputs;
}

/// The inputs of a whole data set, which all candidates share.
const std::vector<BufferPtr>& Timing::inputs_of(size_t data) {
  if (inputs_[data].empty()) inputs_[data] = make_inputs(data);
  return inputs_[data];
}

std::unique_ptr<Stage> Timing::make_stage(Contender& contender, const std::vector<BufferPtr>& inputs) {
  auto stage = std::make_unique<Stage>(device_, *contender.candidate->kernel, case_, "");
  stage->inputs = inputs;
  stage->make_outputs_and_workspace();
  contender.run->workspace_bytes = static_cast<double>(stage->workspace_bytes());
  return stage;
}

void Timing::upload(const std::vector<BufferPtr>& inputs, size_t data) {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i]) inputs[i]->upload(data_.inputs[data][i].bytes.data());
}

InitialState Timing::drawn_poison() { return {random_() % 2, random_() % 0xff + 1, {}, next_draw()}; }

/// First launches; measures how long the host takes for one launch.
void Timing::warm_up(Contender& contender, Stage& stage) {
  for (int i = 0; i < kWarmUps; ++i) stage.enqueue();
  device_.synchronize(kWarmUp);
  // If a candidate waits for its own work, a launch takes the host as long as the device. Then nothing can be covered,
  // and the wait counts as the candidate's time, as it should.
  constexpr double kMostUs = 2000, kSlackUs = 40;
  double host_us = kMostUs;
  for (int i = 0; i < 2; ++i) {
    const auto start = Clock::now();
    stage.enqueue();
    host_us = std::min(host_us, ms_since(start) * 1e3);
    device_.synchronize(kWarmUp);
  }
  contender.cover_us = std::min(kMostUs, 1.3 * host_us + kSlackUs);
}

/// Records the time of each rank in the latest timing.
void note_ranks(Contender& contender, const Stage& stage, std::vector<double> BenchRank::*samples) {
  const std::vector<RankRun> runs = stage.rank_runs();
  std::vector<BenchRank>& ranks = contender.run->ranks;
  ranks.resize(runs.size());
  for (size_t r = 0; r < runs.size(); ++r) {
    ranks[r].device = runs[r].device;
    ranks[r].workspace_bytes = static_cast<double>(stage.workspace_bytes(runs[r].rank));
    (ranks[r].*samples).push_back(runs[r].ms);
  }
}

void Timing::keep(Contender& contender, Stage& stage, size_t slot, size_t data) {
  std::vector<Tensor>& kept = (*contender.outputs)[slot];
  for (size_t i = 0; i < kept.size(); ++i)
    if (stage.outputs[i]) stage.outputs[i]->download(kept[i].bytes.data());
  contender.run->kept[slot] = static_cast<int64_t>(data);
}

/// Takes the outputs of a launch that is done. `launch` names it in messages.
void Timing::take(Contender& contender, Stage& stage, size_t data, const std::string& launch) {
  const Digests digests = digests_of(stage);  // at once: a thread may still be writing
  RunResult& seen = contender.run->seen;
  if (contender.digests[data].empty()) {
    contender.digests[data] = digests;
    keep(contender, stage, data, data);
    if (digests_of(stage) != digests && seen.guard_violations.empty())
      seen.guard_violations.push_back(fmt::format("outputs changed after {} had returned", launch));
    return take_memory(contender, stage, data);
  }
  if (digests == contender.digests[data]) return;
  if (seen.message.empty()) seen.message = launch;
  for (size_t i = 0; i < digests.size(); ++i) {
    BitDifference& repeat = seen.outputs[i].repeat;
    if (digests[i] == contender.digests[data][i] || repeat.different > 0) continue;
    repeat = stage.outputs[i]->difference_from((*contender.outputs)[data][i].bytes.data());
    // By now they are the same again.
    if (repeat.different == 0 && seen.guard_violations.empty())
      seen.guard_violations.push_back(fmt::format("outputs changed after {} had returned", launch));
  }
  // Of all launches that differ, each has the same chance to be kept.
  const size_t first = contender.data_sets(), room = contender.outputs->size() - first;
  const auto place = static_cast<size_t>(random_() % static_cast<uint64_t>(++contender.differing));
  if (const auto n = static_cast<size_t>(contender.differing); n <= room) {
    keep(contender, stage, first + n - 1, data);
  } else if (place < room) {
    keep(contender, stage, first + place, data);
  }
}

void Timing::take_memory(Contender& contender, Stage& stage, size_t data) {
  RunResult& seen = contender.run->seen;
  stage.check_guards(seen.guard_violations);
  note_modified_inputs(stage, data_.inputs[data], seen.modified_inputs);
  note_rank_differences(stage, seen);
}

void Timing::time_burst() {
  const size_t n = data_.inputs.size();
  const std::vector<BufferPtr> working = n == 1 ? inputs_of(0) : make_inputs(0);
  for (Contender& contender : contenders_) {
    attempt(contender, [&] {
      contender.burst = make_stage(contender, working);
      warm_up(contender, *contender.burst);
    });
  }
  for (size_t data = 0; data < n; ++data) inputs_of(data);
  if (tell_times_themselves()) {
    for (Contender& contender : contenders_) attempt(contender, [&] { bound_burst(contender); });
  }
  for (int i = 0; i < plan_.repeats; ++i) {
    const size_t data = static_cast<size_t>(i + 1) % n;
    for (Contender& contender : contenders_) {
      attempt(contender, [&] {
        Stage& stage = *contender.burst;
        const InitialState poison = drawn_poison();
        const auto prepare = [&] {
          hold_data(stage, data);
          stage.poison(poison);
          if (is_tensor_parallel(case_)) return;  // ranks flush their own caches
          device_.flush_cache();
          stage.poison_element(poison, random_());  // what a thread or another stream did meanwhile is spoilt
        };
        double unseen_ms = 0;
        const double ms = stage.time_ms(1, contender.cover_us, /*flush_ranks=*/true, prepare, unseen_ms);
        contender.run->burst_ms.push_back(std::max(kLeastMs, ms));
        contender.unseen_ms.push_back(unseen_ms);
        note_ranks(contender, stage, &BenchRank::burst_ms);
        take(contender, stage, data, fmt::format("burst launch {}", i + 1));
      });
    }
    if (!tell_times_themselves()) note_unseen_of_empty([&] { device_.flush_cache(); });
  }
  for (Contender& contender : contenders_) {
    charge_unseen(contender, contender.run->burst_ms, 1);
    hold_to_bounds(contender);
    if (contender.is_ok()) take_memory(contender, *contender.burst, static_cast<size_t>(plan_.repeats) % n);
    contender.burst.reset();
  }
}

void Timing::hold_to_bounds(Contender& contender) const {
  if (!contender.is_ok()) return;
  std::vector<TimeBound> bounds;
  for (const SeenPasses& passes : contender.passes) bounds.push_back(time_bound_of(passes));
  contender.run->overruled = overrule(contender.run->burst_ms, bounds);
  if (const std::optional<double> ms = contradicted(contender.run->burst_ms, bounds)) {
    contender.run->status = RunStatus::failed;
    contender.run->message = fmt::format(
        "its process tells {:.3g} ms for a launch, the judge's clock {:.3g} ms, and something else used the device "
        "meanwhile, so that neither is sure: time it while nothing else runs",
        quantile(contender.run->burst_ms, 0.5), *ms);
  }
}

/// Whether burst times are reported by the candidates' own processes, which read them from events of a GPU.
bool Timing::tell_times_themselves() const {
  return device_.info().kind != "cpu" && !is_tensor_parallel(case_) &&
         PluginHost::of(*contenders_.front().candidate->kernel) != nullptr;
}

/// Puts a data set into the inputs of a stage, unless there is only one.
void Timing::hold_data(Stage& stage, size_t data) {
  for (size_t k = 0; data_.inputs.size() > 1 && k < stage.inputs.size(); ++k)
    if (stage.inputs[k]) stage.inputs[k]->take_given(*inputs_of(data)[k]);
}

/// Times a pass with one launch on each stage, and one with the same preparations but without launches. The times
/// include copying the data and then flushing the cache. The device serves one process at a time, so work that a
/// candidate starts early takes as long then as it would later.
void Timing::see_pass(Contender& contender, const std::vector<Stage*>& stages, const DataOf& data_of, bool recorded,
                      SeenPasses& passes) {
  const auto prepare = [&] {
    for (Stage* stage : stages) stage->poison(drawn_poison());
    for (size_t i = 0; i < stages.size(); ++i) hold_data(*stages[i], data_of(i));
    device_.flush_cache();
  };
  passes.own_ms.push_back(Stage::whole_ms(stages, recorded, prepare));
  for (size_t i = 0; i < stages.size(); ++i)
    take(contender, *stages[i], data_of(i), "a launch that bounds the times of bursts");
  PluginHost& host = *PluginHost::of(*contender.candidate->kernel);
  passes.empty_ms.push_back(host.time_empty(host::Timer::recorded, prepare).ms);
}

/// Whether a launch that was recorded computes on what lies in its inputs when it runs, and not on what lay there when
/// it was recorded. Data sets 0 and 1 are known from then on.
bool Timing::is_replayable(Contender& contender) {
  Stage& stage = *contender.burst;
  std::array<Digests, 2> plain;
  for (Digests& digests : plain) {
    hold_data(stage, 0);
    stage.poison(drawn_poison());
    stage.enqueue();
    device_.synchronize(kWarmUp);
    digests = digests_of(stage);
  }
  if (plain[0] != plain[1]) return true;  // the outputs differ by themselves, so they tell nothing
  hold_data(stage, 1);
  Stage::whole_ms({&stage}, /*recorded=*/true, [&] {
    hold_data(stage, 0);
    stage.poison(drawn_poison());
  });
  return digests_of(stage) == plain[0];
}

/// The most launches that a pass can have, each on its own buffers.
size_t Timing::most_launches(const Stage& stage) const {
  constexpr size_t kMost = 32, kTensors = 200;  // descriptors travel in one message
  constexpr size_t kBytes = size_t{1} << 30, kAround = size_t{4} << 20;
  if (data_.inputs.size() == 1) return 1;
  size_t bytes = stage.workspace_bytes() + kAround, tensors = 1;
  for (const auto* buffers : {&stage.inputs, &stage.outputs}) {
    for (const BufferPtr& buffer : *buffers)
      if (buffer) bytes += buffer->bytes() + kAround, ++tensors;
  }
  return std::clamp<size_t>(std::min(kBytes / bytes, kTensors / tensors), 1, kMost);
}

/// Takes passes by the judge's clock, with so many launches in each that the overhead around them matters little. The
/// first passes use data that no launch had before, if there are enough for two passes: a candidate may remember the
/// outputs of data that it had before.
void Timing::bound_burst(Contender& contender) {
  constexpr double kPassMs = 0.3, kLeastLaunchMs = 0.005, kLongLaunchMs = 20;
  constexpr size_t kKnown = 2;
  const size_t n = data_.inputs.size(), fresh = n - std::min(n, kKnown);
  const bool recorded = n < kKnown || is_replayable(contender);
  const auto first_data = [](size_t) { return size_t{0}; };
  SeenPasses single;
  for (int i = 0; i < kWarmUps; ++i) see_pass(contender, {contender.burst.get()}, first_data, recorded, single);
  const double launch_ms = std::max(kLeastLaunchMs, time_bound_of(single).ms);
  const size_t most_passes = launch_ms > kLongLaunchMs ? 2 : 8;
  auto wanted = static_cast<size_t>(
      std::clamp(std::ceil(kPassMs / launch_ms), 1.0, static_cast<double>(most_launches(*contender.burst))));

  std::vector<std::unique_ptr<Stage>> more;
  std::vector<Stage*> stages{contender.burst.get()};
  try {
    while (stages.size() < wanted) {
      more.push_back(make_stage(contender, make_inputs(0)));
      stages.push_back(more.back().get());
    }
    SeenPasses first_use;
    if (wanted > 1) see_pass(contender, stages, first_data, recorded, first_use);
  } catch (const OutOfMemory&) {
    wanted = 1;
  }
  const auto see = [&](size_t launches, size_t passes, const DataOf& data_of) {
    SeenPasses& seen = contender.passes.emplace_back();
    seen.launches = static_cast<int64_t>(launches);
    double written = static_cast<double>(contender.burst->workspace_bytes());
    for (const BufferPtr& output : contender.burst->outputs)
      written += output ? static_cast<double>(output->bytes()) : 0;
    if (launches > 1) seen.written_ms = written / copy_gbps_ / 1e6;
    for (size_t pass = 0; pass < passes; ++pass)
      see_pass(
          contender, {stages.begin(), stages.begin() + static_cast<std::ptrdiff_t>(launches)},
          [&](size_t i) { return data_of(pass * launches + i); }, recorded, seen);
  };
  const size_t launches = std::min(wanted, fresh / 2);
  if (launches > 0) see(launches, std::min(most_passes, fresh / launches), [](size_t i) { return kKnown + i; });
  if (wanted > launches) see(wanted, most_passes, [n](size_t i) { return i % n; });
}

/// Buffers for launches back to back.
void Timing::make_sets() {
  double case_bytes = 0;
  for (const Tensor& tensor : data_.inputs.front()) case_bytes += static_cast<double>(tensor.bytes.size());
  // Sharded cases use one set: their tensors are larger than a cache.
  const size_t wanted = is_tensor_parallel(case_) ? 1 : sets_for(case_bytes, device_.cache_bytes());
  for (size_t set = 0; set < std::min(wanted, data_.inputs.size()); ++set) {
    for (Contender& contender : contenders_)
      attempt(contender, [&] { contender.sets.push_back(make_stage(contender, inputs_of(set))); });
  }
  for (Contender& contender : contenders_) {
    attempt(contender, [&] {
      for (const auto& set : contender.sets) set->poison(drawn_poison());
      double unseen_ms = 0;
      for (const auto& set : contender.sets)
        set->time_ms(
            1, 0, /*flush_ranks=*/false, [] {}, unseen_ms);
      take_chain(contender, std::ssize(contender.sets), "the first launch on its buffers");
      warm_up(contender, *contender.sets[0]);
    });
  }
}

/// Measures how long a process without plugins runs unseen, if the candidates have processes of their own.
void Timing::note_unseen_of_empty(const std::function<void()>& prepare) {
  PluginHost* const host = PluginHost::of(*contenders_.front().candidate->kernel);
  if (host != nullptr && !is_tensor_parallel(case_))
    unseen_ms_.push_back(host->time_empty(host::Timer::plain, prepare).unseen_ms);
}

/// Adds to each sample the time that the candidate's process ran unseen, beyond that of a process without plugins: the
/// candidate may have begun before the clock started, or gone on after it stopped. Each sample gets its own unseen
/// time, since a median would hide work that is done early for some launches only.
void Timing::charge_unseen(const Contender& contender, std::vector<double>& samples, int64_t launches) const {
  constexpr double kMoreThanEmpty = 2;  // for more threads to wake and to stop
  constexpr double kLaunchMs = 0.1;     // of launching on a GPU, which no sample includes
  if (!contender.is_ok() || unseen_ms_.empty()) return;
  // A low quantile: on a busy machine a process without plugins often waits for a processor, too.
  const double allowed = kMoreThanEmpty * quantile(unseen_ms_, 0.2) + (device_.info().kind == "cpu" ? 0 : kLaunchMs);
  for (size_t i = 0; i < samples.size(); ++i)
    samples[i] += std::max(0.0, contender.unseen_ms[i] - allowed) / static_cast<double>(launches);
}

/// Milliseconds per launch, of `count` launches back to back.
double Timing::time_chain(Contender& contender, int64_t count) {
  const auto poison = [&] {
    for (const auto& set : contender.sets) set->poison(drawn_poison());
  };
  double& unseen_ms = contender.unseen_ms.emplace_back();
  // A candidate in its own process is timed by the judge's clock. The overhead of the first of so many launches does
  // not matter there.
  const double cover_us = PluginHost::of(*contender.candidate->kernel) != nullptr ? 0 : contender.cover_us;
  if (contender.sets.size() == 1) {
    return std::max(kLeastMs, contender.sets[0]->time_ms(count, cover_us, /*flush_ranks=*/false, poison, unseen_ms));
  }
  std::vector<Stage*> stages;
  for (const auto& set : contender.sets) stages.push_back(set.get());
  return std::max(kLeastMs, Stage::time_turns_ms(stages, count, cover_us, poison, unseen_ms));
}

/// Takes the outputs of the last one of `count` launches on each set of buffers.
void Timing::take_chain(Contender& contender, int64_t count, const std::string& launch) {
  for (int64_t set = 0; set < std::min(count, std::ssize(contender.sets)); ++set)
    take(contender, *contender.sets[static_cast<size_t>(set)], static_cast<size_t>(set), launch);
}

/// Launches a chain in which one set of buffers gets other data between two launches, and one a poisoned element. That
/// catches a candidate that answers by address, or finds the answer where it left it. The set of the last launch gets a
/// poisoned element, too, to catch a candidate that does the work after its call has returned.
void Timing::change_data_amid_chain(Contender& contender) {
  const size_t n = contender.sets.size();
  const size_t at = n + random_() % n, set = at % n, other = (set + 1) % data_.inputs.size();
  const size_t last = 3 * n - 1, poisoned_at = 2 * n + random_() % n;
  const bool exchanges = other != set;
  inputs_of(other);
  for (size_t i = 0; i <= last; ++i) {
    if (i == at) {
      for (size_t k = 0; exchanges && k < inputs_[set].size(); ++k)
        if (inputs_[set][k]) inputs_[set][k]->take_given(*inputs_of(other)[k]);
    }
    if (i == poisoned_at || i == last) contender.sets[i % n]->poison_element(drawn_poison(), random_());
    contender.sets[i % n]->enqueue();
  }
  device_.synchronize("other data amid launches back to back");
  for (size_t each = 0; each < n; ++each)
    take(contender, *contender.sets[each], each == set && exchanges ? other : each,
         "a launch on other data amid launches back to back");
  upload(inputs_[set], set);
}

void Timing::time_sustained() {
  make_sets();
  const double round_ms = plan_.sustained_ms / kSustainedRounds;
  std::vector<int64_t> counts(contenders_.size(), 1);
  for (size_t i = 0; i < contenders_.size(); ++i) {
    attempt(contenders_[i], [&] {
      double launch_ms = time_chain(contenders_[i], 1);
      if (launch_ms < round_ms / 20) launch_ms = time_chain(contenders_[i], 20);
      counts[i] = static_cast<int64_t>(std::clamp(round_ms / launch_ms, 1.0, 1e5));
      contenders_[i].unseen_ms.clear();
    });
  }
  unseen_ms_.clear();
  const int odd_round = static_cast<int>(random_() % kSustainedRounds);
  for (int round = 0; round < kSustainedRounds; ++round) {
    for (size_t i = 0; i < contenders_.size(); ++i) {
      attempt(contenders_[i], [&] {
        // If ranks share the case, they have copies of their own.
        if (round == odd_round && !is_tensor_parallel(case_)) change_data_amid_chain(contenders_[i]);
        contenders_[i].run->sustained_ms.push_back(time_chain(contenders_[i], counts[i]));
        note_ranks(contenders_[i], *contenders_[i].sets[0], &BenchRank::sustained_ms);
        take_chain(contenders_[i], counts[i], fmt::format("the last launch of sustained round {}", round + 1));
      });
    }
    note_unseen_of_empty([] {});
  }
  for (size_t i = 0; i < contenders_.size(); ++i)
    charge_unseen(contenders_[i], contenders_[i].run->sustained_ms, counts[i]);
  for (Contender& contender : contenders_) {
    for (size_t set = 0; contender.is_ok() && set < contender.sets.size(); ++set)
      take_memory(contender, *contender.sets[set], set);
  }
}

}  // namespace

BenchResult bench_candidates(Device& device, const std::vector<const Candidate*>& candidates, const Case& c,
                             BenchData& data, const BenchPlan& plan) {
  BenchResult result;
  result.runs.resize(candidates.size());
  const auto stop = [&](RunStatus status, std::string message) {
    result.status = status;
    result.message = std::move(message);
    result.runs.clear();
  };
  std::vector<Contender> contenders;
  for (size_t i = 0; i < candidates.size(); ++i) {
    BenchRun& run = result.runs[i];
    run.message = why_unsupported(*candidates[i]->kernel, device.info());
    run.status = run.message.empty() ? RunStatus::ok : RunStatus::unsupported;
    run.kept.assign(data.outputs[i].size(), -1);
    run.seen.outputs.resize(c.pass->outputs.size());
    contenders.push_back({candidates[i], &run, &data.outputs[i]});
    contenders.back().digests.resize(data.inputs.size());
  }
  try {
    result.copy_gbps = measure_copy(device);
    Timing(device, c, data, plan, result.copy_gbps, contenders).run();
    result.status = RunStatus::ok;
  } catch (const Stopped& stopped) {
    stop(stopped.status, stopped.message);
  } catch (const DeviceError& e) {
    stop(RunStatus::failed, e.what());
    result.device_lost = e.sticky();
  } catch (const std::bad_alloc&) {
    stop(RunStatus::failed, "the host ran out of memory");
  }
  return result;
}

double quantile(std::vector<double> samples, double q) {
  std::sort(samples.begin(), samples.end());
  const double place = q * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (place - static_cast<double>(below)) * (samples[above] - samples[below]);
}

Summary summarize(const std::vector<double>& samples) {
  return {quantile(samples, 0.5), quantile(samples, 0.2), quantile(samples, 0.8)};
}

double paired_ratio(const std::vector<double>& ours, const std::vector<double>& theirs) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) ratios.push_back(theirs[i] / ours[i]);
  return quantile(ratios, 0.5);
}

bool is_distinct(const Summary& a, const Summary& b) {
  return std::abs(a.median - b.median) > std::max(a.p80 - a.p20, b.p80 - b.p20);
}

}  // namespace checkop
