// SPDX-License-Identifier: Apache-2.0
// A stage: guarded buffers for one case, and the launch of a candidate on them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "abi/check_operator.h"
#include "case/case.hpp"
#include "device/buffers.hpp"
#include "run/run_result.hpp"

namespace checkop {

using BufferPtr = std::shared_ptr<GuardedBuffer>;  // shared: subsets of rows use the full batch's weights

class Call;       // what a candidate sees of a stage; in stage.cpp
class RankGroup;  // rank_group.hpp

/// Whether no case will miss so much of the device's memory.
bool is_small(const Device& device, size_t bytes);

/// Ends the run with anything but ok.
struct Stopped {
  RunStatus status;
  std::string message;
};

/// What a candidate said to a call; `stopped` unless that was ok.
struct LaunchStatus {
  std::optional<Stopped> stopped;
  std::string message;
};

/// Which rank a stage is, and the part [begin, end) of the sharded dimension, of extent `total`, that it holds.
struct RankPart {
  int32_t rank = 0, world_size = 1;
  int64_t begin = 0, end = 0, total = 0;
};

/// Where the elements of tensors lie.
struct TensorLayout {
  size_t offset = 0;        ///< bytes past a 256-byte boundary, rounded up to whole elements
  int64_t row_padding = 0;  ///< elements behind each run of the last dimension, in per-row tensors of rank 2 or more
};

/// Elements of the buffer of a present tensor.
int64_t buffer_elements(const Case& c, const TensorSpec& spec, const TensorLayout& layout);

/// What a launch finds.
struct InitialState {
  uint64_t outputs = 0;       ///< 0 or 1: that output poison; 2: zeros
  uint64_t workspace = 0xff;  ///< in every byte
  LaunchMode mode = {};
};

/// One arrangement of buffers: the full batch or some of its rows. Where ranks share the case, the tensors here are
/// whole, and each rank is a stage of its own that holds its part: a launch is one of all ranks, whose outputs are then
/// put together here.
class Stage {
 public:
  /// `suffix` ends the names of buffers in messages: " (batch: the last row alone)". `place`: this stage is a rank.
  Stage(Device& device, const checkop_kernel& kernel, Case c, std::string suffix, const TensorLayout& layout = {},
        const std::optional<RankPart>& place = {});
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  /// A buffer for the tensor `spec` of this stage's case; nullptr when the tensor is absent.
  BufferPtr make_buffer(std::string_view role, const TensorSpec& spec);

  /// Call once `inputs` are complete.
  void make_outputs_and_workspace();
  /// The workspace anew, larger than asked for by `extra` bytes. Call once outputs are there.
  void make_workspace(size_t extra);

  /// Poisons with the patterns of `run` (0 or 1), launches and waits. Returns the candidate's message; throws Stopped
  /// unless it succeeded, DeviceError when the device says so.
  std::string launch(int run);
  /// Likewise with what a launch is to find.
  std::string launch(const InitialState& initial);

  /// Fills outputs and workspace with what a launch is to find.
  void poison(const InitialState& initial);
  /// Calls the candidate once on these buffers, whatever lies there. The communicators are a rank's.
  LaunchStatus invoke(checkop_host_comm* host_comm, void* comm);

  /// Copies of the outputs on the device; nullptr for what is absent or not small.
  std::vector<BufferPtr> copy_outputs();

  /// Elements behind each run of `spec`'s last dimension.
  int64_t padding_of(const TensorSpec& spec) const;
  const Case& stage_case() const { return case_; }

  /// Puts one run on the stream and waits for nothing; for timing. The candidate sees the same structs every time.
  /// Throws Stopped unless it succeeded.
  void enqueue();
  /// Milliseconds of one launch, of `count` back to back; where ranks share the case, of the slowest. `flush`: the
  /// cache before. Throws Stopped unless all succeeded.
  double time_ms(int64_t count, double cover_us, bool flush);

  /// Appends a sentence for every guard band that was written to, unless it is there already: stages share buffers.
  void check_guards(std::vector<std::string>& violations);
  /// Appends a sentence for every rank's input that is no longer what it was given, unless one tells of it already.
  void check_rank_inputs(std::vector<std::string>& modified) const;
  /// Where launches left other bits on a rank than on rank 0, in outputs that all ranks have: a sentence an output.
  const std::vector<std::string>& rank_differences() const { return rank_differences_; }
  /// What each rank did in the latest launch; empty unless several share the case.
  std::vector<RankRun> rank_runs() const;

  /// Gives up all buffers but the inputs, which are returned.
  std::vector<BufferPtr> release_inputs();
  size_t workspace_bytes() const;  ///< of all ranks
  size_t workspace_bytes(int32_t rank) const;
  const TensorLayout& layout() const { return layout_; }
  const std::string& suffix() const { return suffix_; }
  const std::optional<RankPart>& place() const { return place_; }

  std::vector<BufferPtr> inputs, outputs;  ///< nullptr: absent
  std::unique_ptr<GuardedBuffer> workspace;
  double elapsed_ms = 0;  ///< of the latest launch; where ranks share the case, of the slowest
  /// How long ranks wait for one of them, when they exchange and in the end. Set before outputs are made.
  std::chrono::milliseconds rank_limit{60'000};

 private:
  std::string launch(const InitialState& initial, int run);

  std::shared_ptr<Call> call_;  ///< of enqueue()
  Case case_;
  Device& device_;
  const checkop_kernel& kernel_;
  std::string suffix_;
  TensorLayout layout_;
  std::optional<RankPart> place_;
  std::unique_ptr<RankGroup> ranks_;  ///< nullptr unless ranks share the case
  std::vector<std::string> rank_differences_;
};

}  // namespace checkop
