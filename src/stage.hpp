// SPDX-License-Identifier: Apache-2.0
// A stage: guarded buffers for one case, and the launch of a candidate on them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "buffers.hpp"
#include "case.hpp"
#include "check_operator.h"
#include "runner.hpp"

namespace checkop {

using BufferPtr = std::shared_ptr<GuardedBuffer>;  // shared: subsets of rows use the full batch's weights

class Call;  // what a candidate sees of a stage; in stage.cpp

/// Whether no case will miss so much of the device's memory.
bool is_small(const Device& device, size_t bytes);

/// Ends the run with anything but ok.
struct Stopped {
  RunStatus status;
  std::string message;
};

/// Where the elements of tensors lie.
struct Layout {
  size_t offset = 0;        ///< bytes past a 256-byte boundary, rounded up to whole elements
  int64_t row_padding = 0;  ///< elements behind each run of the last dimension, in per-row tensors of rank 2 or more
};

/// What a launch finds.
struct Found {
  uint64_t outputs = 0;       ///< 0 or 1: that output poison; 2: zeros
  uint64_t workspace = 0xff;  ///< in every byte
  Manner manner = {};
};

/// One arrangement of buffers: the full batch or some of its rows.
class Stage {
 public:
  /// `suffix` ends the names of buffers in messages: " (batch: the last row alone)".
  Stage(Device& device, const checkop_kernel& kernel, Case c, std::string suffix, const Layout& layout = {})
      : case_(std::move(c)), device_(device), kernel_(kernel), suffix_(std::move(suffix)), layout_(layout) {}

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
  std::string launch(const Found& found);

  /// Copies of the outputs on the device; nullptr for what is absent or not small.
  std::vector<BufferPtr> copy_outputs();

  /// Elements behind each run of `spec`'s last dimension.
  int64_t padding_of(const TensorSpec& spec) const;
  const Case& stage_case() const { return case_; }

  /// Puts one run on the stream and waits for nothing; for timing. The candidate sees the same structs every time.
  /// Throws Stopped unless it succeeded.
  void enqueue();

  /// Appends a sentence for every guard band that was written to, unless it is there already: stages share buffers.
  void check_guards(std::vector<std::string>& violations);

  std::vector<BufferPtr> inputs, outputs;  ///< nullptr: absent
  std::unique_ptr<GuardedBuffer> workspace;
  double elapsed_ms = 0;  ///< of the latest launch

 private:
  std::string launch(const Found& found, int run);

  std::shared_ptr<Call> call_;  ///< of enqueue()
  Case case_;
  Device& device_;
  const checkop_kernel& kernel_;
  std::string suffix_;
  Layout layout_;
};

}  // namespace checkop
