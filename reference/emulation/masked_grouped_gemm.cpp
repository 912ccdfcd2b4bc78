// SPDX-License-Identifier: Apache-2.0
// Emulates masked_grouped_gemm as kernels compute it.
#include "emulation/grouped_product.hpp"

namespace checkop {
namespace masked_grouped_gemm {
namespace {

using namespace emulation;

constexpr FaultSpec kReadPacked{"read_packed", "rows are read as if no expert had room for more", "nonfinite"};
constexpr FaultSpec kRestLeft{"rest_left",
                              "rows behind an expert's count keep what lay there: those of the one before"};

std::vector<Group> groups_of(const EmulationArgs& args) {
  return masked_groups(args.arithmetic, args.integers(2), args.in(0).shape[1]);
}

/// Input `index`, whose rows are those of experts, as the kernel reads it.
Matrix rows_read(const EmulationArgs& args, int index, const std::vector<Group>& groups) {
  Matrix x = factor(args, index);
  if (!args.arithmetic.has(kReadPacked.name)) return x;
  const Matrix stored = x;
  int64_t before = 0;
  for (const Group& group : groups) {
    for (int64_t row = group.first; row < group.end; ++row)
      std::copy_n(stored.row(before + row - group.first), x.columns, x.row(row));
    before += group.end - group.first;
  }
  return x;
}

/// Stores c or da.
void store_masked_rows(const EmulationArgs& args, const std::vector<Group>& groups, const Matrix& x, bool transposed) {
  std::vector<double>& to = args.out(0);
  store_rows(args, groups, x, factor(args, 1), transposed, to);
  for (size_t e = 1; e < groups.size() && args.arithmetic.has(kRestLeft.name); ++e) {
    const int64_t columns = std::ssize(to) / x.rows(), size = std::ssize(to) / std::ssize(groups);
    std::copy(to.begin() + groups[e].end * columns - size, to.begin() + groups[e].rest_end * columns - size,
              to.begin() + groups[e].end * columns);
  }
}

void forward(const EmulationArgs& args) {
  const std::vector<Group> groups = groups_of(args);
  store_masked_rows(args, groups, rows_read(args, 0, groups), true);
}

void backward(const EmulationArgs& args) {
  const std::vector<Group> groups = groups_of(args);
  const Matrix g = rows_read(args, 3, groups);
  store_masked_rows(args, groups, g, false);
  store_sums(args, groups, g, rows_read(args, 0, groups), args.out(1));
}

constexpr std::array kOwnFaults{kReadPacked, kRestLeft};
constexpr auto kForwardFaults = joined(of_masked(kGroupedForwardFaults), kOwnFaults);
constexpr auto kBackwardFaults = joined(of_masked(kGroupedBackwardFaults), kOwnFaults);

}  // namespace
}  // namespace masked_grouped_gemm

extern const Emulation kMaskedGroupedGemmForward, kMaskedGroupedGemmBackward;
const Emulation kMaskedGroupedGemmForward{masked_grouped_gemm::forward, masked_grouped_gemm::kForwardFaults};
const Emulation kMaskedGroupedGemmBackward{masked_grouped_gemm::backward, masked_grouped_gemm::kBackwardFaults};

}  // namespace checkop
