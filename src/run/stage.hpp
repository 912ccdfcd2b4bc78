// SPDX-License-Identifier: Apache-2.0
// Guarded buffers for one case, and launches of a candidate on them.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "abi/check_operator.h"
#include "case/case.hpp"
#include "device/buffers.hpp"
#include "run/layout.hpp"
#include "run/run_result.hpp"

namespace checkop {

using BufferPtr = std::shared_ptr<GuardedBuffer>;  // shared: contexts use the full batch's weights

class Call;       // the structs that a candidate gets; in stage.cpp
class RankGroup;  // rank_group.hpp

/// Whether `bytes` is a small part of the device's memory (1/16 at most).
bool is_small(const Device& device, size_t bytes);

/// Ends a run with a status other than ok.
struct Stopped {
  RunStatus status;
  std::string message;
  /// Entries of RunResult::modified_inputs and RunResult::guard_violations; "": none.
  std::string modified_input = {}, guard_violation = {};
};

/// The result of one call to a candidate; `stopped` is set unless it was ok.
struct LaunchStatus {
  std::optional<Stopped> stopped;
  std::string message;
};

/// A rank and its tensor-parallel part: [begin, end) of the parallel dimension, which has extent `total`.
struct RankPart {
  int32_t rank = 0, world_size = 1;
  int64_t begin = 0, end = 0, total = 0;
};

/// The content of outputs and workspace before a launch, and how it is launched.
struct InitialState {
  uint64_t outputs = 0;       ///< 0 or 1: the poison of that number; 2: zeros
  uint64_t workspace = 0xff;  ///< value of every byte
  LaunchMode mode = {};
  uint64_t draw = 0;  ///< of drawn_poison(): which values poison has
};

/// Buffers for the full batch or some of its rows. If ranks share the case, its tensors are whole, and each rank has a
/// stage of its own with its part. A launch then launches all ranks and joins their outputs here.
class Stage {
 public:
  /// `suffix` ends buffer names in messages: " (batch: the last row alone)". `place` is set if this stage is a rank.
  Stage(Device& device, const checkop_kernel& kernel, Case c, std::string suffix, const TensorLayout& layout = {},
        const std::optional<RankPart>& place = {});
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  /// A buffer for the tensor `spec` of this stage's case; nullptr if the tensor is absent.
  BufferPtr make_buffer(std::string_view role, const TensorSpec& spec);

  /// Call after `inputs` are complete.
  void make_outputs_and_workspace();
  /// Replaces the workspace by one that is `extra` bytes larger than requested. Call after outputs were made.
  void make_workspace(size_t extra);

  /// Poisons with the patterns of `run` (0 or 1), launches and waits. Returns the candidate's message. Throws Stopped
  /// if the launch fails, DeviceError if the device does.
  std::string launch(int run);
  /// The same with another initial state.
  std::string launch(const InitialState& initial);

  /// What every element of an output was before the latest launch().
  uint64_t poison_before(DType dtype) const;

  /// Fills outputs and workspace with `initial`.
  void poison(const InitialState& initial);
  /// Poisons one element of each output; `draw` says which. Not for ranks.
  void poison_element(const InitialState& initial, uint64_t draw);
  /// Calls the candidate once, without changing the buffers first. The communicators are those of a rank.
  LaunchStatus invoke(checkop_host_comm* host_comm, void* comm);

  /// Copies of the outputs on the device; nullptr for outputs that are absent or not small.
  std::vector<BufferPtr> copy_outputs();

  /// How a tensor lies in its buffer. If ranks share the case, only their own inputs are arranged.
  Placement placement_of(const TensorSpec& spec) const;
  /// Padding elements behind each run of `spec`'s last dimension.
  int64_t padding_of(const TensorSpec& spec) const;
  const Case& stage_case() const { return case_; }

  /// Enqueues one launch on the stream without waiting, for timing. The candidate gets the same structs every time.
  /// Throws Stopped if the launch fails.
  void enqueue();
  /// Milliseconds per launch, of `count` launches back to back, behind the work of `prepare`. If ranks share the case,
  /// of the slowest rank, and with `flush_ranks` each flushes its cache. Throws Stopped if a launch fails.
  double time_ms(int64_t count, double cover_us, bool flush_ranks, const std::function<void()>& prepare,
                 double& unseen_ms);
  /// The same of launches on several stages of a candidate in turns, `count` in all. Not for ranks. `unseen_ms`: how
  /// long a process of the candidate ran outside of the time of all launches; 0 if it has none. A process on a GPU
  /// reports the time itself if launches are covered; otherwise this process's clock takes it, with the overhead of
  /// launching.
  static double time_turns_ms(const std::vector<Stage*>& stages, int64_t count, double cover_us,
                              const std::function<void()>& prepare, double& unseen_ms);
  /// Milliseconds of one launch on each of the stages, by this process's clock: with `prepare`, and until the device is
  /// idle. With `recorded` they are recorded before that, where the candidate allows it. Only for a candidate on a GPU
  /// in a process of its own.
  static double whole_ms(const std::vector<Stage*>& stages, bool recorded, const std::function<void()>& prepare);

  /// Appends a sentence for every changed guard band. Skips sentences that are there already, as stages share buffers.
  void check_guards(std::vector<std::string>& violations);
  /// Appends a sentence for every changed input of a rank, unless `modified` has one for it.
  void check_rank_inputs(std::vector<std::string>& modified) const;
  /// One sentence for each output that all ranks hold and whose bits on some rank differ from rank 0.
  const std::vector<std::string>& rank_differences() const { return rank_differences_; }
  /// The ranks' results in the latest launch; empty unless several ranks share the case.
  std::vector<RankRun> rank_runs() const;

  /// Frees all buffers but the inputs, and returns these.
  std::vector<BufferPtr> release_inputs();
  size_t workspace_bytes() const;  ///< of all ranks
  size_t workspace_bytes(int32_t rank) const;
  const TensorLayout& layout() const { return layout_; }
  const std::string& suffix() const { return suffix_; }
  const std::optional<RankPart>& place() const { return place_; }

  std::vector<BufferPtr> inputs, outputs;  ///< nullptr if absent
  std::unique_ptr<GuardedBuffer> workspace;
  double elapsed_ms = 0;  ///< of the latest launch; if ranks share the case, of the slowest rank
  /// How long ranks wait for each other, during exchanges and at the end. Set before outputs are made.
  std::chrono::milliseconds rank_limit{60'000};

 private:
  std::string launch(const InitialState& initial, int run);
  const checkop_call* call();
  static std::vector<const checkop_call*> calls_of(const std::vector<Stage*>& stages);

  InitialState initial_;        ///< of the latest launch()
  std::shared_ptr<Call> call_;  ///< used by enqueue()
  Case case_;
  Device& device_;
  const checkop_kernel& kernel_;
  std::string suffix_;
  TensorLayout layout_;
  std::optional<RankPart> place_;
  std::unique_ptr<RankGroup> ranks_;  ///< nullptr unless ranks share the case
  std::vector<std::string> rank_differences_;
};

// --- Forbidden effects of launches, as sentences ---

/// The original content of buffer i on the host. Called only if the buffer has changed.
using ContentOf = std::function<const std::byte*(size_t i)>;

/// Adds a sentence for every changed input, unless `modified` has one for it. Skips buffers that are nullptr.
void note_modified_inputs(const std::vector<BufferPtr>& buffers, const ContentOf& content,
                          const std::vector<Tensor>& host, std::vector<std::string>& modified);

/// The same for all inputs of a stage, whose original content is `host`, and for the inputs of its ranks.
void note_modified_inputs(const Stage& stage, const std::vector<Tensor>& host, std::vector<std::string>& modified);

/// Adds the stage's rank differences, except for outputs that have a sentence already.
void note_rank_differences(const Stage& stage, RunResult& result);

}  // namespace checkop
