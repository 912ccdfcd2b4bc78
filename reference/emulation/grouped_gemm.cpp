// SPDX-License-Identifier: Apache-2.0
// Emulates grouped_gemm as kernels compute it.
#include <array>

#include "emulation/row_groups.hpp"

namespace checkop {
namespace {

using namespace emulation;

constexpr FaultSpec kRestMultiplied{"rest_multiplied", "rows of no expert are multiplied by 0 and counted",
                                    "nonfinite"};
constexpr FaultSpec kNotTransposed{"not_transposed", "the matrix of an expert is read in the other order"};

std::vector<Group> groups_of(const EmulationArgs& args) {
  return emulation::groups_of(args.arithmetic, args.integers(2));
}

/// The matrix of an expert [n_dim, k_dim].
Matrix matrix_of(const EmulationArgs& args, const Matrix& b, int64_t expert) {
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
void store_rows(const EmulationArgs& args, const Matrix& x, const Matrix& b, bool transposed, std::vector<double>& to) {
  const int64_t columns = x.rows() == 0 ? 0 : std::ssize(to) / x.rows();
  for_each_part(args.arithmetic, groups_of(args), x.rows(), [&](int64_t first, int64_t end, int64_t matrix) {
    if (end <= first) return;
    const Matrix own = matrix_of(args, b, matrix);
    const Matrix part = product(args, {rows_of(x, first, end)}, {own, transposed});
    std::copy(part.values.begin(), part.values.end(), to.begin() + first * columns);
  });
}

void forward(const EmulationArgs& args) { store_rows(args, factor(args, 0), factor(args, 1), true, args.out(0)); }

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Matrix x = factor(args, 0), b = factor(args, 1), g = factor(args, 3);
  store_rows(args, g, b, false, args.out(0));
  std::vector<Group> groups = groups_of(args);
  if (a.has(kRestCounted.name) || a.has(kRestMultiplied.name)) groups.back().end = x.rows();
  const int64_t size = args.in(1).shape[1] * args.in(1).shape[2];
  std::vector<double> before(static_cast<size_t>(size));
  for (const Group& group : groups) {
    Matrix own_x = rows_of(x, group.first, group.end);
    const int64_t given_end = args.integers(2).back();
    for (int64_t row = given_end; row < group.end && a.has(kRestMultiplied.name); ++row)
      for (int64_t k = 0; k < own_x.columns; ++k) own_x.row(row - group.first)[k] *= 0;
    const Matrix own_g = rows_of(g, group.first, group.end);
    const Matrix db = product(args, {own_g, true}, {own_x});
    const auto to = args.out(1).begin() + group.matrix * size;
    if (group.end == group.first) {
      if (a.has(kEmptyStale.name)) std::copy(before.begin(), before.end(), to);
      continue;
    }
    for (int64_t i = 0; i < size; ++i) {
      const double carried = a.has(kNotReset.name) ? before[static_cast<size_t>(i)] : 0;
      to[i] = carried + static_cast<double>(db.values[static_cast<size_t>(i)]);
    }
    std::copy_n(to, size, before.begin());
  }
}

constexpr std::array kForwardFaults{faults::kLastKDropped, faults::kLastKTileDropped, faults::kBf16Accumulator,
                                    faults::kBf16Partials, faults::kPartialLost,      faults::kTf32Factors,
                                    kGroupSpills,          kPartialTileLost,          kPreviousExpert,
                                    kFirstExpertForAll,    kEmptyUncounted,           kNoExpertComputed,
                                    kNotTransposed};
constexpr std::array kBackwardFaults{faults::kLastKDropped,
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

}  // namespace

extern const Emulation kGroupedGemmForward, kGroupedGemmBackward;
const Emulation kGroupedGemmForward{forward, kForwardFaults};
const Emulation kGroupedGemmBackward{backward, kBackwardFaults};

}  // namespace checkop
