// SPDX-License-Identifier: Apache-2.0
// One rank of a group, in this process or another: buffers with its part of a case, and launches on them.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "run/stage.hpp"

namespace checkop {

/// Back-to-back launches that are timed on the device.
struct RankTiming {
  int64_t count = 0;    ///< 0: one launch, not timed
  double cover_us = 0;  ///< see Device::time_ms()
  bool flush = false;   ///< flush the cache first
};

/// A launch of all ranks, as passed to each of them.
struct RankLaunch {
  LaunchMode mode = {};
  RankTiming timing = {};
  std::string comm_id;                ///< of the ranks' communicator, for devices that need one; see Device::comm_id()
  std::chrono::milliseconds limit{};  ///< how long a rank may wait
  std::atomic<bool> is_broken = false;  ///< a rank failed, so the others must stop waiting
};

/// The result of a rank's launch.
struct RankLaunchStatus {
  LaunchStatus status;
  double ms = 0;               ///< until the rank's work was done, or of one timed launch
  bool is_broken_off = false;  ///< stopped only because another rank had failed
  bool has_died = false;       ///< the rank's process died; explain() finds out more
};

/// All members but explain() and give_up() throw Stopped if the rank's process is gone, DeviceError if its device
/// fails.
class Rank {
 public:
  virtual ~Rank() = default;
  /// Fills input `i`, which must be present.
  virtual void upload(size_t i, const std::vector<std::byte>& bytes) = 0;
  /// Makes outputs and workspace. Call after all inputs were uploaded.
  virtual void prepare() = 0;
  virtual void make_workspace(size_t extra) = 0;
  virtual size_t workspace_bytes() const = 0;
  virtual void poison(const InitialState& initial) = 0;

  /// Calls the candidate in the caller's thread and waits for the rank's work. Does not throw.
  virtual RankLaunchStatus launch(const RankLaunch& launch, checkop_host_comm* host_comm) = 0;
  /// Waits a while to learn how the rank died, and adds it to `answer`.
  virtual void explain(RankLaunchStatus& answer) = 0;
  /// Ends everything that the rank's launch waits for. Thread-safe.
  virtual void give_up() noexcept = 0;

  virtual std::vector<std::byte> input(size_t i) = 0;
  virtual std::vector<std::byte> output(size_t i) = 0;
  virtual bool input_as_uploaded(size_t i) = 0;
  virtual void check_guards(std::vector<std::string>& violations) = 0;
  /// The rank's device, host and process, without data of a launch.
  virtual RankRun describe() const = 0;
};

/// A rank in this process.
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

/// A rank in this process, on `device`.
RankRun describe_rank(const Device& device, int32_t rank);

/// The processes of ranks 1 and up, for cases shared by ranks.
class RankProcesses {
 public:
  virtual ~RankProcesses() = default;
  /// A rank in process number place.rank. Throws Stopped if that process does not connect.
  virtual std::unique_ptr<Rank> make_rank(const checkop_kernel& kernel, const Case& c, const std::string& suffix,
                                          const TensorLayout& layout, const RankPart& place) = 0;
};

}  // namespace checkop
