// SPDX-License-Identifier: Apache-2.0
// What launches did that they must not do, as sentences of a result.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "run/run_result.hpp"
#include "run/stage.hpp"

namespace checkop {

/// What buffer i was given, on the host. Called where it has other content now.
using ContentOf = std::function<const std::byte*(size_t i)>;

/// Adds a sentence for every input whose bytes are no longer what it was given, unless one says so of it already.
/// nullptr: not to be looked at.
void note_modified_inputs(const std::vector<BufferPtr>& buffers, const ContentOf& content,
                          const std::vector<Tensor>& host, std::vector<std::string>& modified);

/// Of all of a stage's inputs, which have the content of `host`, and of those of its ranks.
void note_modified_inputs(const Stage& stage, const std::vector<Tensor>& host, std::vector<std::string>& modified);

/// Adds what the stage's launches showed, but for outputs that a sentence tells of already.
void note_rank_differences(const Stage& stage, RunResult& result);

}  // namespace checkop
