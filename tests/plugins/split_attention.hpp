// SPDX-License-Identifier: Apache-2.0
// Correct attention of one query, in float, whose keys are added up in parts: for candidates whose parts depend on what
// they must not depend on.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "plugins/call.hpp"

namespace test_plugin {

struct KeyAndValue {
  const float *key, *value;
};

/// Row `at` of o[.., head_dim], from row `at` of q and its keys, of which there is at least one. `ends`: where the
/// parts end. Returns the logarithm of the sum of the exponentials.
inline float attend_in_parts(const checkop_tensor& q, const checkop_tensor& o, int64_t at,
                             const std::vector<KeyAndValue>& keys, const std::vector<int64_t>& ends) {
  const int64_t width = q.shape[q.rank - 1];
  const float* const query = static_cast<const float*>(q.data) + at * width;
  std::vector<float> scores;
  for (const auto& [key, value] : keys) {
    float sum = 0;
    for (int64_t d = 0; d < width; ++d) sum += query[d] * key[d];
    scores.push_back(sum / std::sqrt(static_cast<float>(width)));
  }
  const float max = *std::max_element(scores.begin(), scores.end());
  std::vector<float> all(static_cast<size_t>(width));
  float total = 0;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    std::vector<float> part(all.size());
    float sum = 0;
    for (auto j = static_cast<size_t>(begin); j < static_cast<size_t>(end); ++j) {
      const float p = std::exp(scores[j] - max);
      sum += p;
      for (size_t d = 0; d < part.size(); ++d) part[d] += p * keys[j].value[d];
    }
    total += sum, begin = end;
    for (size_t d = 0; d < all.size(); ++d) all[d] += part[d];
  }
  for (size_t d = 0; d < all.size(); ++d)
    static_cast<float*>(o.data)[at * width + static_cast<int64_t>(d)] = all[d] / total;
  return max + std::log(total);
}

/// The ends of `parts` parts of n keys, of nearly equal length.
inline std::vector<int64_t> evenly(int64_t n, int64_t parts) {
  std::vector<int64_t> ends;
  for (int64_t part = 1; part <= parts; ++part) ends.push_back(part * n / parts);
  return ends;
}

/// The ends of parts that begin at multiples of 8 keys, of which the first lies at -`offset`.
inline std::vector<int64_t> by_eight(int64_t n, int64_t offset = 0) {
  std::vector<int64_t> ends;
  for (int64_t end = 8 - offset % 8; end < n; end += 8) ends.push_back(end);
  ends.push_back(n);
  return ends;
}

}  // namespace test_plugin
