// SPDX-License-Identifier: Apache-2.0
// The entropy of the softmax of a row, in fp32.
//   entropy = log(s) + M,  s = sum_v exp(-b_v),  M = sum_v exp(-b_v) b_v / s,  b_v = max_w z_w - z_v
#pragma once

#include "cpu/native.hpp"

namespace native {

/// The sums of some logits of a row. A logit of -inf adds nothing.
struct EntropySums {
  float max = -std::numeric_limits<float>::infinity(), sum = 0.0f, weighted = 0.0f;

  float mean() const { return weighted / sum; }
  float entropy() const { return std::log(sum) + mean(); }
  float probability(float z) const { return std::exp(z - max) / sum; }
  /// The derivative of the entropy by a logit z.
  float gradient(float z) const {
    const float p = probability(z);
    return p == 0 ? 0.0f : p * ((max - z) - mean());  // z may be -inf
  }
};

/// Merges the sums of two sets of logits, the earlier on the left.
struct MergeEntropySums {
  EntropySums operator()(const EntropySums& a, const EntropySums& b) const {
    EntropySums all{std::max(a.max, b.max)};
    for (const EntropySums& s : {a, b}) {
      if (s.sum == 0) continue;  // only -inf, or nothing
      const float up = all.max - s.max, scale = std::exp(-up);
      all.sum += s.sum * scale;
      all.weighted += scale * (s.weighted + up * s.sum);
    }
    return all;
  }
};

inline EntropySums entropy_sums(const float* z, int64_t n) {
  EntropySums s;
  for (int64_t i = 0; i < n; ++i) s.max = z[i] > s.max ? z[i] : s.max;
  if (std::isinf(s.max) && s.max < 0) return s;
  s.sum = blocked_sum(n, [=, max = s.max](int64_t i) { return std::exp(z[i] - max); });
  s.weighted = blocked_sum(n, [=, max = s.max](int64_t i) {
    const float below = max - z[i], e = std::exp(-below);
    return e == 0 ? 0.0f : e * below;  // below may be infinite
  });
  return s;
}

}  // namespace native
