// SPDX-License-Identifier: Apache-2.0
// The ranks of a shared case, launched side by side.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run/rank.hpp"

namespace checkop {

/// Ranks are threads of this process, each on its own device, or other processes; see Device::of_rank() and
/// Device::processes().
class RankGroup {
 public:
  /// Gives each rank a workspace and its part of `whole`, whose inputs and outputs must be complete.
  RankGroup(Device& device, const checkop_kernel& kernel, const Stage& whole);

  void make_workspace(size_t extra);
  void poison(const InitialState& initial);

  /// Calls the candidate once per rank, each in its own thread, and waits for all. Once a rank has returned, the others
  /// have `limit` to return. A rank that does not return is a timeout, and its buffers are never freed.
  LaunchStatus launch(std::chrono::milliseconds limit, const LaunchMode& mode, const RankTiming& timing = {});
  /// The ranks' results in the latest launch.
  const std::vector<RankRun>& runs() const { return runs_; }

  /// Joins the outputs of the latest launch in `whole`. An output that every rank holds is taken from rank 0; if it has
  /// other bits on another rank, appends a sentence, unless `differences` already has one for that output.
  void gather(Stage& whole, std::vector<std::string>& differences);

  void check_guards(std::vector<std::string>& violations);
  void check_inputs(const Stage& whole, std::vector<std::string>& modified) const;
  size_t workspace_bytes() const;
  size_t workspace_bytes(int32_t rank) const { return ranks_[static_cast<size_t>(rank)]->workspace_bytes(); }

 private:
  /// A rank's part of input `i` of `whole`, as its buffer holds it.
  static std::vector<std::byte> part_of(const Stage& whole, size_t i, const RankPart& place);
  static std::vector<std::byte> contiguous_part_of(const Stage& whole, size_t i, const RankPart& place);
  Device& device_of(int32_t rank);
  void note_runs(const std::vector<std::optional<RankLaunchStatus>>& answers);
  void gather_parts(Stage& whole, size_t i);
  void gather_copies(Stage& whole, size_t i, std::vector<std::string>& differences);

  Device& device_;
  std::vector<std::shared_ptr<Rank>> ranks_;  ///< shared with the threads of launches
  std::vector<RankPart> places_;
  std::vector<RankRun> runs_;
};

/// Why `c` has too many ranks, if rank 0 uses `device`; "" if it has not.
std::string why_too_many_ranks(const Case& c, const DeviceInfo& device);

}  // namespace checkop
