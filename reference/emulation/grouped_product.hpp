// SPDX-License-Identifier: Apache-2.0
// Products of rows with the matrix of their expert as kernels compute them, and their faults: of grouped_gemm and
// masked_grouped_gemm.
#pragma once

#include <array>

#include "emulation/row_groups.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kRestMultiplied{"rest_multiplied", "rows of no expert are multiplied by 0 and counted",
                                           "nonfinite"};
inline constexpr FaultSpec kNotTransposed{"not_transposed", "the matrix of an expert is read in the other order"};

/// The matrix of an expert [n_dim, k_dim].
inline Matrix matrix_of(const EmulationArgs& args, const Matrix& b, int64_t expert) {
  const int64_t n_dim = args.in(1).shape[1];
  Matrix own = rows_of(b, expert * n_dim, (expert + 1) * n_dim);
  if (!args.arithmetic.has(kNotTransposed.name)) return own;
  Matrix other = Matrix::zeros(n_dim, b.columns);
  for (size_t i = 0; i < own.values.size(); ++i) {
    const auto rows = static_cast<size_t>(n_dim), columns = static_cast<size_t>(b.columns);
    other.values[i % rows * columns + i / rows] = own.values[i];
  }
  return other;
}

/// Stores rows x of the groups, each times its matrix, as the forward pass does and da.
inline void store_rows(const EmulationArgs& args, const std::vector<Group>& groups, const Matrix& x, const Matrix& b,
                       bool transposed, std::vector<double>& to) {
  const int64_t columns = x.rows() == 0 ? 0 : std::ssize(to) / x.rows();
  for_each_part(args.arithmetic, groups, [&](int64_t first, int64_t end, int64_t matrix) {
    if (end <= first) return;
    const Matrix own = matrix_of(args, b, matrix);
    const Matrix part = product(args, {rows_of(x, first, end)}, {own, transposed});
    std::copy(part.values.begin(), part.values.end(), to.begin() + first * columns);
  });
}

/// Stores the sums of g^T x over the rows of each group, as db has them.
inline void store_sums(const EmulationArgs& args, const std::vector<Group>& groups, const Matrix& g, const Matrix& x,
                       std::vector<double>& to) {
  const Arithmetic& a = args.arithmetic;
  const int64_t size = args.in(1).shape[1] * args.in(1).shape[2];
  std::vector<double> before(static_cast<size_t>(size));
  for (const Group& group : groups) {
    const bool has_rest = a.has(kRestCounted.name) || a.has(kRestMultiplied.name);
    const int64_t end = has_rest ? group.rest_end : group.end;
    Matrix own_x = rows_of(x, group.first, end);
    for (int64_t row = group.end; row < end && a.has(kRestMultiplied.name); ++row)
      for (int64_t k = 0; k < own_x.columns; ++k) own_x.row(row - group.first)[k] *= 0;
    const Matrix own_g = rows_of(g, group.first, end);
    const Matrix db = product(args, {own_g, true}, {own_x});
    const auto at = to.begin() + group.matrix * size;
    if (end == group.first) {
      if (a.has(kEmptyStale.name)) std::copy(before.begin(), before.end(), at);
      continue;
    }
    for (int64_t i = 0; i < size; ++i) {
      const double carried = a.has(kNotReset.name) ? before[static_cast<size_t>(i)] : 0;
      at[i] = carried + static_cast<double>(db.values[static_cast<size_t>(i)]);
    }
    std::copy_n(at, size, before.begin());
  }
}

/// Faults of the rows of c.
inline constexpr std::array kGroupedForwardFaults{
    faults::kLastKDropped, faults::kLastKTileDropped, faults::kBf16Accumulator,
    faults::kBf16Partials, faults::kPartialLost,      faults::kTf32Factors,
    kGroupSpills,          kPartialTileLost,          kPreviousExpert,
    kFirstExpertForAll,    kEmptyUncounted,           kNoExpertComputed,
    kNotTransposed};
/// Faults of da and db.
inline constexpr std::array kGroupedBackwardFaults{faults::kLastKDropped,
                                                   faults::kLastKTileDropped,
                                                   faults::kBf16Accumulator,
                                                   faults::kBf16Partials,
                                                   faults::kPartialLost,
                                                   faults::kTf32Factors,
                                                   kGroupSpills,
                                                   kPartialTileLost,
                                                   kPreviousExpert,
                                                   kFirstExpertForAll,
                                                   kEmptyUncounted,
                                                   kNoExpertComputed,
                                                   kRestCounted,
                                                   kRestMultiplied,
                                                   kEmptyStale,
                                                   kNotReset,
                                                   kNotTransposed};

}  // namespace checkop::emulation
