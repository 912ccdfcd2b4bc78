// SPDX-License-Identifier: Apache-2.0
// Shared by the native candidates that normalise rows: roots, gradients of rows, gradients of weights.
#pragma once

#include "cpu/native.hpp"

namespace native {

inline float inverse_rms(const float* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
}

/// gw[h] becomes s (gw - x s^2 c), c = mean_h(gw x), s = inverse_rms(x): the gradient of a normalised row. On entry gw
/// holds the gradient of the weighted row times the weights.
inline void normalised_row_gradient(const float* x, float s, int64_t n, float* gw) {
  const float c = dot(gw, x, n) / static_cast<float>(n) * s * s;
  for (int64_t h = 0; h < n; ++h) gw[h] = s * (gw[h] - x[h] * c);
}

constexpr int64_t kNormRowBlock = 64;  // rows in one partial sum of a weight's gradient: a chain of 64, then the tree

/// Sums over rows: calls add(r, begin, end, sum) for every row r, which adds row r's columns [begin, end) to sum[0 ...
/// end - begin), then stores the sums. Threads divide the columns; every thread takes the rows in the same order.
template <class Add>
void store_row_sums(const checkop_tensor& to, int64_t rows, int64_t columns, Add add) {
  parallel_for(columns, 2 * rows * columns, [&](int64_t begin, int64_t end) {
    const auto n = static_cast<size_t>(end - begin);
    VectorTree tree;
    tree.add(std::vector<float>(n));  // there may be no rows
    for (int64_t first = 0; first < rows; first += kNormRowBlock) {
      std::vector<float> sum(n);
      for (int64_t r = first; r < std::min(first + kNormRowBlock, rows); ++r) add(r, begin, end, sum);
      tree.add(std::move(sum));
    }
    store(to, begin, end - begin, tree.finish().data());
  });
}

}  // namespace native
