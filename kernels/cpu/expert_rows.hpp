// SPDX-License-Identifier: Apache-2.0
// Shared by the CPU candidates named "native" whose rows belong to experts: where the rows of each lie.
#pragma once

#include "cpu/rows.hpp"

namespace native {

/// Where the rows of experts lie in tensors of rows.
enum class RowLayout {
  successive,  ///< [rows, columns]; offsets[e] <= r < offsets[e + 1]
  masked,      ///< [experts, capacity, columns]; the first counts[e] of each
};

/// The rows of each expert: begins[e] <= r < ends[e] of all rows, one behind the other.
struct ExpertRows {
  /// Refuses `given` unless they are offsets, or counts, of the experts of `a`.
  ExpertRows(const checkop_tensor& a, const checkop_tensor& given, RowLayout layout, int64_t experts, int64_t rows) {
    const auto* const numbers = static_cast<const int32_t*>(given.data);
    if (layout == RowLayout::successive) {
      Extent bounds{"experts + 1", experts + 1};
      check_vector(given, "offsets", CHECKOP_I32, bounds);
      check_offsets(numbers, experts, rows, 1);
      begins.assign(numbers, numbers + experts);
      ends.assign(numbers + 1, numbers + 1 + experts);
      return;
    }
    if (a.rank != 3) throw Refusal(CHECKOP_FAILED, "a: expected rank 3");
    Extent of_a{"experts", experts}, of_counts{"experts", experts};
    of_a.bind(a.shape[0], "a");
    check_vector(given, "counts", CHECKOP_I32, of_counts);
    const int64_t capacity = a.shape[1];
    for (int64_t e = 0; e < experts; ++e) {
      if (numbers[e] < 0 || numbers[e] > capacity)
        throw Refusal(CHECKOP_FAILED, "counts[" + std::to_string(e) + "] = " + std::to_string(numbers[e]) +
                                          " is outside [0, " + std::to_string(capacity) + "]");
      begins.push_back(e * capacity);
      ends.push_back(e * capacity + numbers[e]);
    }
  }

  int64_t experts() const { return std::ssize(begins); }
  int64_t first(int64_t e) const { return begins[static_cast<size_t>(e)]; }
  int64_t count(int64_t e) const { return ends[static_cast<size_t>(e)] - first(e); }

  std::vector<int64_t> begins, ends;
};

}  // namespace native
