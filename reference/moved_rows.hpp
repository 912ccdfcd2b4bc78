// SPDX-License-Identifier: Apache-2.0
// Outputs that are exact: rows of an input that are moved bit by bit, and integers.
#pragma once

#include <vector>

#include "operator/operator.hpp"

namespace checkop {

/// In place of a row's number: there is none.
inline constexpr int64_t kNoRow = -1;

/// Emits output `index`: row r is row from[r] of `source`, or zeros for kNoRow.
void emit_moved_rows(const GoldArgs& args, int index, const Tensor& source, const std::vector<int64_t>& from);

/// Emits output `index`, an integer tensor with `columns` elements a row.
void emit_integers(const GoldArgs& args, int index, const std::vector<int64_t>& values, int64_t columns = 1);

}  // namespace checkop
