// SPDX-License-Identifier: Apache-2.0
// Launches the contexts of a case and compares bits.
#pragma once

#include <vector>

#include "runner.hpp"
#include "stage.hpp"

namespace checkop {

/// Where the content of each tensor begins.
std::vector<const std::byte*> first_bytes(const std::vector<Tensor>& host);

/// Adds a sentence for every input whose bytes are no longer the host's, unless one says so of it already.
/// `content[i]` is what buffer i held on the host; nullptr for one that is not to be looked at.
void note_modified_inputs(const std::vector<BufferPtr>& buffers, const std::vector<const std::byte*>& content,
                          const std::vector<Tensor>& host, std::vector<std::string>& modified);

/// Of a stage's inputs and of those of its ranks.
void note_modified_inputs(const Stage& stage, const std::vector<const std::byte*>& content,
                          const std::vector<Tensor>& host, std::vector<std::string>& modified);
/// Adds what the stage's launches showed, but for outputs that a sentence tells of already.
void note_rank_differences(const Stage& stage, RunResult& result);

/// What the first launch of the full batch left.
struct FirstOutputs {
  const std::vector<Tensor>& host;
  const std::vector<BufferPtr>& there;  ///< on the device, as of Stage::copy_outputs()
};

/// Launches the contexts that `checks` ask for and fills `result` with what they did to the bits of `first`. `full`
/// holds the full batch; its per-row tensors are freed on the way.
void run_contexts(Device& device, const checkop_kernel& kernel, const Case& c, const std::vector<Tensor>& inputs,
                  const FirstOutputs& first, const RunChecks& checks, Stage& full, RunResult& result);

}  // namespace checkop
