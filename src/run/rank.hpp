// SPDX-License-Identifier: Apache-2.0
// A rank as its group sees it, wherever it runs: buffers that hold its part of a case, and launches on them.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "run/stage.hpp"

namespace checkop {

/// Launches back to back that are timed on the device.
struct RankTiming {
  int64_t count = 0;    ///< 0: one launch, which is not
  double cover_us = 0;  ///< Device::time_ms()
  bool flush = false;   ///< the cache, before
};

/// A launch of all ranks, as each of them is told of it.
struct RankLaunch {
  LaunchMode mode = {};
  RankTiming timing = {};
  std::string meeting;                  ///< where ranks meet on devices that need it: Device::name_meeting()
  std::chrono::milliseconds limit{};    ///< for what a rank waits for
  std::atomic<bool> is_broken = false;  ///< a rank failed: what the others wait for will not come
};

/// What became of a rank's launch.
struct RankLaunchStatus {
  LaunchStatus status;
  double ms = 0;               ///< until its work was done, or of one timed launch
  bool is_broken_off = false;  ///< because another rank had failed, which says more
  bool has_died = false;       ///< with its process, of which explain() knows more
};

/// Members but explain() and give_up() throw Stopped when the rank's process is gone, DeviceError as its device does.
class Rank {
 public:
  virtual ~Rank() = default;
  /// Fills input `i`, which is present.
  virtual void upload(size_t i, const std::vector<std::byte>& bytes) = 0;
  /// Makes outputs and workspace. Call once all inputs are there.
  virtual void prepare() = 0;
  virtual void make_workspace(size_t extra) = 0;
  virtual size_t workspace_bytes() const = 0;
  virtual void poison(const InitialState& initial) = 0;

  /// Calls the candidate, in the thread of the caller, and waits for the rank's work. Throws nothing.
  virtual RankLaunchStatus launch(const RankLaunch& launch, checkop_host_comm* host_comm) = 0;
  /// Waits a while to learn how the rank died, and says so in the answer.
  virtual void explain(RankLaunchStatus& answer) = 0;
  /// From any thread: ends what the rank's launch waits for.
  virtual void give_up() noexcept = 0;

  virtual std::vector<std::byte> input(size_t i) = 0;
  virtual std::vector<std::byte> output(size_t i) = 0;
  virtual bool input_as_uploaded(size_t i) = 0;
  virtual void check_guards(std::vector<std::string>& violations) = 0;
  /// Its device, host and process; nothing of a launch.
  virtual RankRun describe() const = 0;
};

/// A rank of this process.
class LocalRank final : public Rank {
 public:
  LocalRank(Device& device, const checkop_kernel& kernel, const Case& c, const std::string& suffix,
            const TensorLayout& layout, const RankPart& place);

  void upload(size_t i, const std::vector<std::byte>& bytes) override;
  void prepare() override;
  void make_workspace(size_t extra) override;
  size_t workspace_bytes() const override;
  void poison(const InitialState& initial) override;
  RankLaunchStatus launch(const RankLaunch& launch, checkop_host_comm* host_comm) override;
  void explain(RankLaunchStatus&) override {}
  void give_up() noexcept override;
  std::vector<std::byte> input(size_t i) override;
  std::vector<std::byte> output(size_t i) override;
  bool input_as_uploaded(size_t i) override;
  void check_guards(std::vector<std::string>& violations) override;
  RankRun describe() const override;
  size_t input_bytes(size_t i) const { return stage_.inputs.at(i)->bytes(); }
  const RankPart& place() const { return *stage_.place(); }

 private:
  void run(const RankLaunch& launch, checkop_host_comm* host_comm, RankLaunchStatus& result);
  void time(const RankTiming& timing, checkop_host_comm* host_comm, void* comm, RankLaunchStatus& result);

  Device& device_;
  Stage stage_;
};

/// A rank of this process, on that device.
RankRun describe_rank(const Device& device, int32_t rank);

/// The processes that hold ranks 1 and up of cases that ranks share.
class RankProcesses {
 public:
  virtual ~RankProcesses() = default;
  /// A rank of the process with the number place.rank. Throws Stopped when that does not come.
  virtual std::unique_ptr<Rank> make_rank(const checkop_kernel& kernel, const Case& c, const std::string& suffix,
                                          const TensorLayout& layout, const RankPart& place) = 0;
};

}  // namespace checkop
