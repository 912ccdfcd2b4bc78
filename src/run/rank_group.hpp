// SPDX-License-Identifier: Apache-2.0
// The ranks of a case that they share: a stage each, launched side by side.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run/rank.hpp"

namespace checkop {

/// Ranks are threads of this process, each on its device, or other processes; see Device::of_rank() and
/// Device::processes().
class RankGroup {
 public:
  /// Gives every rank its part of `whole`, whose inputs and outputs are complete, and a workspace.
  RankGroup(Device& device, const checkop_kernel& kernel, const Stage& whole);

  void make_workspace(size_t extra);
  void poison(const InitialState& initial);

  /// Calls the candidate once for every rank, each in a thread of its own, and waits for all. Once one rank has
  /// returned, the others have `limit` to do so: what does not return is a timeout, and keeps its buffers for good.
  LaunchStatus launch(std::chrono::milliseconds limit, const LaunchMode& mode, const RankTiming& timing = {});
  /// Of the latest launch.
  const std::vector<RankRun>& runs() const { return runs_; }

  /// Puts the outputs of the latest launch together in `whole`. Those that every rank has are rank 0's; where another
  /// has other bits, appends a sentence, unless there is one of that output already.
  void gather(Stage& whole, std::vector<std::string>& differences);

  void check_guards(std::vector<std::string>& violations);
  void check_inputs(const Stage& whole, std::vector<std::string>& modified) const;
  size_t workspace_bytes() const;
  size_t workspace_bytes(int32_t rank) const { return ranks_[static_cast<size_t>(rank)]->workspace_bytes(); }

 private:
  /// The part of input `i` of `whole` that a rank has, as its buffer holds it.
  static std::vector<std::byte> part_of(const Stage& whole, size_t i, const RankPart& place);
  Device& device_of(int32_t rank);
  void note_runs(const std::vector<std::optional<RankLaunchStatus>>& answers);
  void gather_parts(Stage& whole, size_t i);
  void gather_copies(Stage& whole, size_t i, std::vector<std::string>& differences);

  Device& device_;
  std::vector<std::shared_ptr<Rank>> ranks_;  ///< shared with their threads
  std::vector<RankPart> places_;
  std::vector<RankRun> runs_;
};

/// Why the ranks of `c` are more than can share a case where the first has `device`; empty when they are not.
std::string why_too_many_ranks(const Case& c, const DeviceInfo& device);

}  // namespace checkop
