// SPDX-License-Identifier: Apache-2.0
// Emulates masked_grouped_gemm as kernels compute it.
#include "emulation/grouped_product.hpp"

namespace checkop {
namespace {

using namespace emulation;

constexpr FaultSpec kCountOfNext{"count_of_next", "an expert has as many rows as the next one", "nonfinite"};
constexpr FaultSpec kLastRowLost{"last_row_lost", "the last row of an expert is left out"};
constexpr FaultSpec kReadPacked{"read_packed", "rows are read as if no expert had room for more"};
constexpr FaultSpec kRestLeft{"rest_left",
                              "rows behind an expert's count keep what lay there: those of the one before"};

std::vector<Group> masked_groups(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<int64_t> counts = args.integers(2);
  const int64_t experts = std::ssize(counts), capacity = args.in(0).shape[1];
  std::vector<Group> groups;
  for (int64_t e = 0; e < experts; ++e) {
    int64_t count = counts[static_cast<size_t>(a.has(kCountOfNext.name) ? (e + 1) % experts : e)];
    if (a.has(kLastRowLost.name)) count = std::max<int64_t>(0, count - 1);
    groups.push_back({e * capacity, e * capacity + count, e, e, (e + 1) * capacity, experts * capacity});
  }
  return with_matrices(a, groups);
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
  const std::vector<Group> groups = masked_groups(args);
  store_masked_rows(args, groups, rows_read(args, 0, groups), true);
}

void backward(const EmulationArgs& args) {
  const std::vector<Group> groups = masked_groups(args);
  const Matrix g = rows_read(args, 3, groups);
  store_masked_rows(args, groups, g, false);
  store_sums(args, groups, g, rows_read(args, 0, groups), args.out(1));
}

/// The faults of products of groups, in the words of this layout, and its own.
template <size_t n>
constexpr auto with_own(std::array<FaultSpec, n> faults) {
  for (FaultSpec& fault : faults) {
    if (fault.name == kGroupSpills.name)
      fault.meaning = "the last tile of an expert writes over the rows behind its count";
    if (fault.name == kNoExpertComputed.name) fault.meaning = "rows behind an expert's count are computed";
    if (fault.name == kRestCounted.name) fault.meaning = "rows behind an expert's count are summed up in its gradient";
    if (fault.name == kRestMultiplied.name)
      fault.meaning = "rows behind an expert's count are multiplied by 0 and summed up";
  }
  return joined(faults, std::array{kCountOfNext, kLastRowLost, kReadPacked, kRestLeft});
}

constexpr auto kForwardFaults = with_own(kGroupedForwardFaults);
constexpr auto kBackwardFaults = with_own(kGroupedBackwardFaults);

}  // namespace

extern const Emulation kMaskedGroupedGemmForward, kMaskedGroupedGemmBackward;
const Emulation kMaskedGroupedGemmForward{forward, kForwardFaults};
const Emulation kMaskedGroupedGemmBackward{backward, kBackwardFaults};

}  // namespace checkop
