// SPDX-License-Identifier: Apache-2.0
// Emulated products and softmax rows.
#include "emulation/common.hpp"

#include "recipes.hpp"

namespace checkop::emulation {

Matrix product(const EmulationArgs& args, Operand x, Operand y) {
  const int64_t rows = x.rows(), columns = y.columns(), terms = x.columns();
  Matrix out = Matrix::zeros(rows, columns);
  if (terms == 0) return out;
  const int64_t x_step = x.transposed ? x.m.columns : 1, y_step = y.transposed ? 1 : y.m.columns;
  const int64_t y_next = y.transposed ? y.m.columns : 1;
  // Tasks are parts of rows, because a sample may have one row only.
  constexpr int64_t kPart = 256;
  const int64_t parts = (columns + kPart - 1) / kPart;
  args.parallel_for(rows * parts, [&](int64_t i) {
    const int64_t r = i / parts, first = i % parts * kPart, count = std::min(kPart, columns - first);
    const float* left = x.m.values.data() + (x.transposed ? r : r * x.m.columns);
    args.arithmetic.dots(count, out.row(r) + first, terms, left, x_step, y.m.values.data() + first * y_next, y_step,
                         y_next);
  });
  return out;
}

SoftmaxRow softmax_row(const Arithmetic& arithmetic, const float* z, int64_t n) {
  constexpr int64_t kPadded = 128;  // vocabularies are padded to a multiple of it
  const int64_t tile = arithmetic.tile_of(n);
  SoftmaxRow row;
  row.max = arithmetic.has(kMaximumNotSubtracted.name) ? 0
            : arithmetic.has(kMaximumOfFirstTile.name) ? *std::max_element(z, z + std::max<int64_t>(tile, 1))
                                                       : *std::max_element(z, z + n);
  if (arithmetic.has(kTileOfInfinities.name) && tile > 0 && *std::max_element(z, z + tile) == -INFINITY) row.max = NAN;
  const int64_t stale = arithmetic.has(kSumNotRescaled.name) ? (n + 1) / 2 : 0;
  const float stale_max = *std::max_element(z, z + stale);
  row.sum =
      arithmetic.sum(n, [&](int64_t v) { return arithmetic.exponential(z[v] - (v < stale ? stale_max : row.max)); });
  if (arithmetic.has(kPaddedColumnCounted.name)) {
    const int64_t rest = n % kPadded, padding = kPadded - rest;  // a whole tile even if no padding is needed
    row.sum += static_cast<float>(padding) * arithmetic.exponential(-row.max);
  }
  return row;
}

void logp_gradient_row(const Arithmetic& arithmetic, const SoftmaxRow& row, const float* z, int64_t n, int64_t id,
                       float g, double* to) {
  const bool dropped = arithmetic.has(kSoftmaxTermDropped.name), flipped = arithmetic.has(kSoftmaxSignFlipped.name),
             rounds = arithmetic.rounds(recipe::kLogp);
  g = arithmetic.rounded_if(arithmetic.rounds(recipe::kUpstream), g);
  for (int64_t v = 0; v < n; ++v) {
    float p = rounds ? arithmetic.exponential(arithmetic.rounded_if(true, row.logp(z[v])))
                     : arithmetic.exponential(z[v] - row.max) / row.sum;
    if (dropped) p = 0;
    if (flipped) p = -p;
    to[v] = g * ((v == id ? 1.0F : 0.0F) - p);
  }
}

}  // namespace checkop::emulation
