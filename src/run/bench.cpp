// SPDX-License-Identifier: Apache-2.0
// Times candidates in turns, and computes statistics of the times.
#include "run/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <new>
#include <optional>

#include "base/clock.hpp"
#include "case/rank_parts.hpp"
#include "run/stage.hpp"

namespace checkop {
namespace {

constexpr int kWarmUps = 3;
constexpr int kCopyRepeats = 7;
constexpr size_t kMostSets = 16;
constexpr double kLeastMs = 1e-6;  // a clock that did not move would give infinite rates

/// A candidate's buffers and samples.
struct Contender {
  const Candidate* candidate;
  BenchRun* run;
  std::vector<std::unique_ptr<Stage>> sets;  ///< stages with the same content; inputs are shared between candidates
  double cover_us = 0;                       ///< for one launch; see Device::time_ms()

  bool is_ok() const { return run->status == RunStatus::ok; }
};

double elapsed_ms(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double time_of(Device& device, const std::function<void()>& enqueue, double cover_us) {
  return std::max(kLeastMs, device.time_ms(enqueue, cover_us));
}

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
    device.flush_cache();
    ms.push_back(time_of(
        device, [&] { device.copy(to.get(), from.get(), bytes); }, 50));
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
    contender.run->message = stopped.message;
  }
}

/// First launches on all sets; measures how long the host takes for one launch.
void warm_up(Device& device, Contender& contender) {
  for (const auto& set : contender.sets) set->enqueue();
  for (int i = 0; i < kWarmUps; ++i) contender.sets[0]->enqueue();
  device.synchronize("warm up");
  // If a candidate waits for its own work, a launch takes the host as long as the device. Then nothing can be covered,
  // and the wait counts as the candidate's time, as it should.
  constexpr double kMostUs = 2000, kSlackUs = 40;
  double host_us = kMostUs;
  for (int i = 0; i < 2; ++i) {
    const auto start = Clock::now();
    contender.sets[0]->enqueue();
    host_us = std::min(host_us, elapsed_ms(start) * 1e3);
    device.synchronize("warm up");
  }
  contender.cover_us = std::min(kMostUs, 1.3 * host_us + kSlackUs);
}

/// Records the time of each rank in the latest timing.
void note_ranks(Contender& contender, std::vector<double> BenchRank::*samples) {
  const std::vector<RankRun> runs = contender.sets[0]->rank_runs();
  std::vector<BenchRank>& ranks = contender.run->ranks;
  ranks.resize(runs.size());
  for (size_t r = 0; r < runs.size(); ++r) {
    ranks[r].device = runs[r].device;
    ranks[r].workspace_bytes = static_cast<double>(contender.sets[0]->workspace_bytes(runs[r].rank));
    (ranks[r].*samples).push_back(runs[r].ms);
  }
}

void time_burst(std::vector<Contender>& contenders, int repeats) {
  for (int i = 0; i < repeats; ++i) {
    for (Contender& contender : contenders) {
      attempt(contender, [&] {
        const double ms = contender.sets[0]->time_ms(1, contender.cover_us, /*flush=*/true);
        contender.run->burst_ms.push_back(std::max(kLeastMs, ms));
        note_ranks(contender, &BenchRank::burst_ms);
      });
    }
  }
}

/// Milliseconds per launch, of `count` launches back to back.
double time_chain(Device& device, Contender& contender, int64_t count) {
  if (contender.sets.size() == 1)
    return std::max(kLeastMs, contender.sets[0]->time_ms(count, contender.cover_us, /*flush=*/false));
  const auto chain = [&] {
    for (int64_t i = 0; i < count; ++i) {
      contender.sets[static_cast<size_t>(i) % contender.sets.size()]->enqueue();
    }
  };
  return time_of(device, chain, contender.cover_us) / static_cast<double>(count);
}

void time_sustained(Device& device, std::vector<Contender>& contenders, double total_ms) {
  const double round_ms = total_ms / kSustainedRounds;
  std::vector<int64_t> counts(contenders.size(), 1);
  for (size_t i = 0; i < contenders.size(); ++i) {
    attempt(contenders[i], [&] {
      double launch_ms = time_chain(device, contenders[i], 1);
      if (launch_ms < round_ms / 20) launch_ms = time_chain(device, contenders[i], 20);
      counts[i] = static_cast<int64_t>(std::clamp(round_ms / launch_ms, 1.0, 1e5));
    });
  }
  for (int round = 0; round < kSustainedRounds; ++round) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      attempt(contenders[i], [&] {
        contenders[i].run->sustained_ms.push_back(time_chain(device, contenders[i], counts[i]));
        note_ranks(contenders[i], &BenchRank::sustained_ms);
      });
    }
  }
}

void bench_all(Device& device, std::vector<Contender>& contenders, const Case& c, const std::vector<Tensor>& inputs,
               const BenchPlan& plan) {
  double case_bytes = 0;
  for (const Tensor& tensor : inputs) case_bytes += static_cast<double>(tensor.bytes.size());
  // Sharded cases use one set: their tensors are larger than a cache.
  const size_t n_sets = plan.sustained && !is_tensor_parallel(c) ? sets_for(case_bytes, device.cache_bytes()) : 1;
  for (size_t set = 0; set < n_sets; ++set) {
    std::vector<BufferPtr> shared;
    for (Contender& contender : contenders) {
      attempt(contender, [&] {
        auto stage = std::make_unique<Stage>(device, *contender.candidate->kernel, c, "");
        for (size_t i = 0; shared.size() < inputs.size(); ++i) {
          shared.push_back(stage->make_buffer("input", c.pass->inputs[i]));
          if (shared[i]) shared[i]->upload(inputs[i].bytes.data());
        }
        stage->inputs = shared;
        stage->make_outputs_and_workspace();
        contender.run->workspace_bytes = static_cast<double>(stage->workspace_bytes());
        contender.sets.push_back(std::move(stage));
      });
    }
  }
  for (Contender& contender : contenders) attempt(contender, [&] { warm_up(device, contender); });
  if (plan.burst) time_burst(contenders, plan.repeats);
  if (plan.sustained) time_sustained(device, contenders, plan.sustained_ms);
  device.synchronize("end of timing");
}

}  // namespace

BenchResult bench_candidates(Device& device, const std::vector<const Candidate*>& candidates, const Case& c,
                             const std::vector<Tensor>& inputs, const BenchPlan& plan) {
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
    contenders.push_back({candidates[i], &run, {}});
  }
  try {
    result.copy_gbps = measure_copy(device);
    bench_all(device, contenders, c, inputs, plan);
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
