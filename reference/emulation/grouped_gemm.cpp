// SPDX-License-Identifier: Apache-2.0
// Emulates grouped_gemm as kernels compute it.
#include <array>

#include "emulation/common.hpp"

namespace checkop {
namespace {

using namespace emulation;

constexpr int64_t kTile = 8;  // rows

constexpr FaultSpec kTileSpills{"tile_spills", "the last tile of a group writes over the first rows of the next"};
constexpr FaultSpec kPartialTileLost{"partial_tile_lost",
                                     "rows behind the last whole tile of a group are not computed"};
constexpr FaultSpec kPreviousExpert{"previous_expert", "the first row of a group gets the expert before it"};
constexpr FaultSpec kFirstExpertForAll{"first_expert_for_all", "all rows get the first expert"};
constexpr FaultSpec kEmptyUncounted{"empty_uncounted", "experts without rows are passed over, and later ones move up"};
constexpr FaultSpec kRestComputed{"rest_computed", "rows of no expert get the last one", "nonfinite"};
constexpr FaultSpec kRestCounted{"rest_counted", "rows of no expert count in the last one's gradient", "nonfinite"};
constexpr FaultSpec kRestMultiplied{"rest_multiplied", "rows of no expert are multiplied by 0 and counted",
                                    "nonfinite"};
constexpr FaultSpec kEmptyStale{"empty_stale", "an expert without rows keeps what lay in its gradient: another's"};
constexpr FaultSpec kNotReset{"not_reset", "an expert's gradient begins with that of the one before"};
constexpr FaultSpec kNotTransposed{"not_transposed", "the matrix of an expert is read in the other order"};

/// The rows of one expert as the emulated kernel sees them.
struct Group {
  int64_t first, end, expert, matrix;
};

std::vector<Group> groups_of(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<int64_t> offsets = args.integers(2);
  std::vector<Group> groups;
  int64_t filled = 0;
  for (int64_t e = 0; e + 1 < std::ssize(offsets); ++e) {
    Group group{offsets[static_cast<size_t>(e)], offsets[static_cast<size_t>(e) + 1], e, e};
    if (a.has(kFirstExpertForAll.name)) group.matrix = 0;
    if (a.has(kEmptyUncounted.name)) group.matrix = filled;
    if (group.end > group.first) ++filled;
    groups.push_back(group);
  }
  return groups;
}

Matrix rows_of(const Matrix& m, int64_t first, int64_t end) {
  return {{m.values.begin() + first * m.columns, m.values.begin() + end * m.columns}, m.columns};
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
  const Arithmetic& a = args.arithmetic;
  const int64_t columns = x.rows() == 0 ? 0 : std::ssize(to) / x.rows();
  std::vector<Group> groups = groups_of(args);
  if (a.has(kRestComputed.name)) groups.push_back({groups.back().end, x.rows(), 0, groups.back().matrix});
  const auto put = [&](int64_t first, int64_t end, int64_t matrix) {
    if (end <= first) return;
    const Matrix own = matrix_of(args, b, matrix);
    const Matrix part = product(args, {rows_of(x, first, end)}, {own, transposed});
    std::copy(part.values.begin(), part.values.end(), to.begin() + first * columns);
  };
  for (const Group& group : groups) {
    const int64_t whole = group.first + (group.end - group.first) / kTile * kTile;
    put(group.first, a.has(kPartialTileLost.name) ? whole : group.end, group.matrix);
    if (a.has(kPreviousExpert.name) && group.expert > 0 && group.end > group.first)
      put(group.first, group.first + 1, group.matrix - 1);
  }
  for (const Group& group : groups) {
    const int64_t tiles_end = group.first + (group.end - group.first + kTile - 1) / kTile * kTile;
    if (a.has(kTileSpills.name)) put(group.end, std::min(tiles_end, groups.back().end), group.matrix);
  }
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
                                    kTileSpills,           kPartialTileLost,          kPreviousExpert,
                                    kFirstExpertForAll,    kEmptyUncounted,           kRestComputed,
                                    kNotTransposed};
constexpr std::array kBackwardFaults{faults::kLastKDropped,
                                     faults::kLastKTileDropped,
                                     faults::kBf16Accumulator,
                                     faults::kBf16Partials,
                                     faults::kPartialLost,
                                     faults::kTf32Factors,
                                     kTileSpills,
                                     kPartialTileLost,
                                     kPreviousExpert,
                                     kFirstExpertForAll,
                                     kEmptyUncounted,
                                     kRestComputed,
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
