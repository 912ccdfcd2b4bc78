// SPDX-License-Identifier: Apache-2.0
// A rank in this process.
#include "run/rank.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/paths.hpp"

namespace checkop {

LocalRank::LocalRank(Device& device, const checkop_kernel& kernel, const Case& c, const std::string& suffix,
                     const TensorLayout& layout, const RankPart& place)
    : device_(device), stage_(device, kernel, c, suffix, layout, place) {
  for (const TensorSpec& spec : c.pass->inputs) stage_.inputs.push_back(stage_.make_buffer("input", spec));
}

void LocalRank::upload(size_t i, const std::vector<std::byte>& bytes) { stage_.inputs[i]->upload(bytes.data()); }
void LocalRank::prepare() { stage_.make_outputs_and_workspace(); }
void LocalRank::make_workspace(size_t extra) { stage_.make_workspace(extra); }
size_t LocalRank::workspace_bytes() const { return stage_.workspace_bytes(); }
void LocalRank::poison(const InitialState& initial) {
  stage_.poison(initial);
  device_.synchronize(fmt::format("poison outputs of rank {}", place().rank));  // also before work on other streams
}
void LocalRank::give_up() noexcept { device_.abort_comms(); }
std::vector<std::byte> LocalRank::input(size_t i) { return stage_.inputs[i]->content(); }
std::vector<std::byte> LocalRank::output(size_t i) { return stage_.outputs[i]->content(); }
bool LocalRank::input_as_uploaded(size_t i) { return stage_.inputs[i]->is_as_given(); }
void LocalRank::check_guards(std::vector<std::string>& violations) { stage_.check_guards(violations); }

RankLaunchStatus LocalRank::launch(const RankLaunch& launch, checkop_host_comm* host_comm) {
  RankLaunchStatus result;
  const auto stop = [&](RunStatus status, const std::string& why) {
    const std::string said = result.status.stopped ? result.status.stopped->message : result.status.message;
    result.status.stopped = Stopped{status, said.empty() ? why : fmt::format("{} ({})", why, said)};
  };
  try {
    run(launch, host_comm, result);
  } catch (const LaunchModeUnsupported& e) {  // a failure may be due to the launch mode: the plain launch worked
    stop(RunStatus::unsupported, e.what());
  } catch (const DeviceError& e) {
    stop(e.sticky() ? RunStatus::crashed : RunStatus::failed, e.what());
  }
  return result;
}

void LocalRank::run(const RankLaunch& launch, checkop_host_comm* host_comm, RankLaunchStatus& result) {
  const RankPart& place = *stage_.place();
  device_.make_current();
  void* comm = device_.info().kind == "cpu" ? host_comm : nullptr;
  if (!launch.comm_id.empty()) comm = device_.join_comm(launch.comm_id, place.rank, place.world_size, launch.limit);
  if (launch.timing.count > 0) return time(launch.timing, host_comm, comm, result);
  const auto start = Clock::now();
  device_.run(launch.mode, [&] {
    result.status = stage_.invoke(host_comm, comm);
    return !result.status.stopped;
  });
  if (result.status.stopped) return;
  if (const auto unfinished = device_.finish(launch.limit, launch.is_broken)) {
    result.is_broken_off = launch.is_broken;
    result.status.stopped = Stopped{unfinished->is_late ? RunStatus::timeout : RunStatus::failed, unfinished->why};
    return;
  }
  device_.synchronize(fmt::format("run of rank {}", place.rank));
  result.ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void LocalRank::time(const RankTiming& timing, checkop_host_comm* host_comm, void* comm, RankLaunchStatus& result) {
  if (timing.flush) device_.flush_cache();
  device_.synchronize("begin of timing");
  if (host_comm->barrier(host_comm) != 0) {  // so that no rank waits for another within its time
    result.status.stopped = Stopped{RunStatus::failed, host_comm->error(host_comm)};
    return;
  }
  const auto launch_all = [&] {
    for (int64_t i = 0; i < timing.count && !result.status.stopped; ++i) result.status = stage_.invoke(host_comm, comm);
  };
  result.ms = device_.time_ms(launch_all, timing.cover_us, [] {}) / static_cast<double>(timing.count);
}

RankRun LocalRank::describe() const { return describe_rank(device_, place().rank); }

RankRun describe_rank(const Device& device, int32_t rank) {
  const DeviceInfo info = device.info();
  const std::string index = info.kind == "cpu" ? "" : fmt::format(":{}", info.index);
  return {rank, fmt::format("{}{} {}", info.kind, index, info.name), host_name(), getpid(), 0, ""};
}

}  // namespace checkop
