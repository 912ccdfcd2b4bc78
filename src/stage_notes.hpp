// SPDX-License-Identifier: Apache-2.0
// What launches did that they must not do, as sentences of a result.
#pragma once

#include <cstddef>
#include <string>
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

}  // namespace checkop
