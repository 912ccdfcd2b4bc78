// SPDX-License-Identifier: Apache-2.0
// Adds forbidden effects of launches to a result, as sentences.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "run/run_result.hpp"
#include "run/stage.hpp"

namespace checkop {

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
