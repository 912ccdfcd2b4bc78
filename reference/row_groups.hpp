// SPDX-License-Identifier: Apache-2.0
// Successive groups of rows, one for each expert: where they begin, their data, and the rows of no expert.
#pragma once

#include <string_view>
#include <vector>

#include "operator/operator.hpp"

namespace checkop {

/// The rows offsets[e] <= r < offsets[e + 1] of every expert e.
struct RowGroups {
  RowGroups(int64_t rows_, const Tensor& given);

  int64_t experts() const { return std::ssize(offsets) - 1; }
  int64_t first(int64_t expert) const { return offsets[static_cast<size_t>(expert)]; }
  int64_t count(int64_t expert) const { return first(expert + 1) - first(expert); }
  int64_t end() const { return offsets.back(); }
  /// 1 for every row that an expert has, and for every expert that has a row.
  std::vector<char> used_rows() const;
  std::vector<char> used_experts() const;

  /// Throws InputError unless the groups follow each other within the rows, at multiples of `align`.
  void require_order(int64_t align = 1) const;

  int64_t rows;
  std::vector<int64_t> offsets;
};

/// Those of `rows` that lie in [first, first + count), counted from `first` on.
std::vector<int64_t> rows_within(const RowSet& rows, int64_t first, int64_t count);

/// Draws `offsets` with the loads that routing produces: one expert has about half of all rows, some have none. If rows
/// are to be left out, some rows at the end belong to no expert, and hold payloads in the tensors `of_rows`. Groups
/// begin at multiples of `align`.
RowGroups draw_row_groups(const FillArgs& args, std::initializer_list<std::string_view> of_rows, int64_t align = 1);

}  // namespace checkop
