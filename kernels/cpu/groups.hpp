// SPDX-License-Identifier: Apache-2.0
// Shared by the CPU candidates named "native" that standardise rewards: the groups of completions.
#pragma once

#include "cpu/native.hpp"

namespace native {

/// Group i consists of completions [bounds[i], bounds[i + 1]): those of `given`, or of samples_per_prompt without it.
inline std::vector<int64_t> group_bounds(const checkop_call& c, const checkop_tensor& given, int64_t batch) {
  std::vector<int64_t> bounds;
  if (given.data == nullptr && given.rank == 0) {
    const auto samples = static_cast<int64_t>(attribute(c, "samples_per_prompt"));
    if (samples < 2 || batch % samples != 0)
      throw Refusal(CHECKOP_FAILED, "samples_per_prompt is " + std::to_string(samples) +
                                        ", expected a divisor of the batch of " + std::to_string(batch) +
                                        " that is at least 2");
    for (int64_t i = 0; i <= batch; i += samples) bounds.push_back(i);
    return bounds;
  }
  Extent length{"group_bounds"};
  check_vector(given, "group_boundaries", CHECKOP_I64, length);
  const auto* data = static_cast<const int64_t*>(given.data);
  bounds.assign(data, data + length.value);
  bool right = bounds.size() >= 2 && bounds.front() == 0 && bounds.back() == batch;
  for (size_t i = 1; i < bounds.size(); ++i) right = right && bounds[i] > bounds[i - 1];
  if (!right)
    throw Refusal(CHECKOP_FAILED,
                  "group_boundaries must start with 0, increase, and end with the batch of " + std::to_string(batch));
  return bounds;
}

}  // namespace native
