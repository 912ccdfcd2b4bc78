// SPDX-License-Identifier: Apache-2.0
// Which logits of a row stay after top_k and top_p.
#pragma once

#include <numeric>

#include "cpu/logit_transform.hpp"

namespace native {

struct Truncation {
  int64_t top_k = 0;
  float top_p = 1;
  bool keep_target = false;

  explicit Truncation(const checkop_call& c)
      : top_k(static_cast<int64_t>(exact_attribute(c, "top_k"))),
        top_p(attribute(c, "top_p")),
        keep_target(attribute(c, "keep_target") != 0) {}

  bool is_none() const { return top_k == 0 && top_p == 1; }

  /// Columns that stay, in ascending order: the first top_k by logit, then by index; of these the fewest first ones
  /// whose exponentials reach top_p of their sum. x: logits; z: what the transform makes of them, in the same order.
  std::vector<int64_t> columns(const float* x, const float* z, int64_t vocab, int64_t target) const {
    std::vector<int64_t> order(static_cast<size_t>(vocab));
    std::iota(order.begin(), order.end(), int64_t{0});
    const auto is_before = [x](int64_t a, int64_t b) {
      if (std::isnan(x[a]) != std::isnan(x[b])) return std::isnan(x[b]);
      return x[a] == x[b] || std::isnan(x[a]) ? a < b : x[a] > x[b];
    };
    int64_t count = top_k > 0 ? std::min(top_k, vocab) : vocab;
    std::partial_sort(order.begin(), order.begin() + count, order.end(), is_before);
    const float max = z[order[0]];
    if (top_p < 1 && std::isfinite(max)) {
      double total = 0, sum = 0;
      const auto term = [&](int64_t i) { return std::exp(z[order[static_cast<size_t>(i)]] - max); };
      for (int64_t i = 0; i < count; ++i) total += term(i);
      int64_t n = 0;
      do sum += term(n++);
      while (n < count && sum < static_cast<double>(top_p) * total);
      count = n;
    }
    order.resize(static_cast<size_t>(count));
    if (keep_target && std::find(order.begin(), order.end(), target) == order.end()) order.push_back(target);
    std::sort(order.begin(), order.end());
    return order;
  }
};

}  // namespace native
