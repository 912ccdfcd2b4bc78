// SPDX-License-Identifier: Apache-2.0
// Outputs that are exact: rows of an input that are moved bit by bit, and integers.
#pragma once

#include <vector>

#include "operator/operator.hpp"

namespace checkop {

/// Stands for no row, in place of a row's number.
inline constexpr int64_t kNoRow = -1;

/// Emits output `index`: row r is row from[r] of `source`, or zeros for kNoRow.
void emit_moved_rows(const GoldArgs& args, int index, const Tensor& source, const std::vector<int64_t>& from);

/// Emits output `index`, an integer tensor with `columns` elements a row.
void emit_integers(const GoldArgs& args, int index, const std::vector<int64_t>& values, int64_t columns = 1);

/// In mode random: gives every row of `rows` a subnormal number, and one of half the largest size, in columns that
/// differ from row to row. A copy keeps the bits of both.
void plant_whole_range(const FillArgs& args, Tensor& rows);

}  // namespace checkop
