// SPDX-License-Identifier: Apache-2.0
// Sentences on changed inputs and different ranks, one per tensor.
#include "run/stage_notes.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace checkop {

void note_modified_inputs(const std::vector<BufferPtr>& buffers, const ContentOf& content,
                          const std::vector<Tensor>& host, std::vector<std::string>& modified) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!buffers[i] || buffers[i]->is_as_given()) continue;
    const std::string prefix = host[i].name + ": ";
    const auto known = [&](const std::string& line) { return line.starts_with(prefix); };
    if (std::any_of(modified.begin(), modified.end(), known)) continue;
    const BitDifference bits = buffers[i]->difference_from(content(i));
    if (bits.different == 0) continue;
    modified.push_back(fmt::format("{}{} element{} changed, first at index {}", prefix, bits.different,
                                   bits.different == 1 ? "" : "s", bits.first_index));
  }
}

void note_modified_inputs(const Stage& stage, const std::vector<Tensor>& host, std::vector<std::string>& modified) {
  note_modified_inputs(
      stage.inputs, [&](size_t i) { return host[i].bytes.data(); }, host, modified);
  stage.check_rank_inputs(modified);
}

void note_rank_differences(const Stage& stage, RunResult& result) {
  for (const std::string& sentence : stage.rank_differences()) {
    const std::string prefix = sentence.substr(0, sentence.find(' '));
    const auto told = [&](const std::string& known) { return known.starts_with(prefix); };
    if (std::none_of(result.rank_differences.begin(), result.rank_differences.end(), told))
      result.rank_differences.push_back(sentence);
  }
}

}  // namespace checkop
