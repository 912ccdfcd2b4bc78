// SPDX-License-Identifier: Apache-2.0
// Describes the pattern of a wrong output. Pure, and only run on failure.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "judge/failures.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// A row of the gold, and the allowed error of each element.
struct NearbyRow {
  std::vector<double> value, allowed;
};

/// An input that masks elements of the output; is_zero takes a row and a column of the output.
struct MaskOf {
  std::string name;
  std::function<bool(int64_t, int64_t)> is_zero;
};

/// A wrong output, seen as a matrix, and what is known about it.
struct Suspect {
  DType dtype;
  const std::byte* got;
  MatrixView view;
  const RowSet& rows;  ///< the rows that were compared
  const FailureSummary& failures;
  std::map<int64_t, NearbyRow> nearby;  ///< gold of all compared rows or of rows_to_compare(), as far as available
  std::vector<MaskOf> masks;
  std::vector<std::pair<std::string, int64_t>> dims;  ///< name and extent of each dimension of the output
  bool poisoned = true;  ///< the memory of the output was filled with the poison before the launch
};

/// What the failing elements have in common.
struct Pattern {
  std::string text;  ///< "the failing elements are zeros, only in columns 192 to 199, behind the last whole tile of 64"
  /// Whether the text describes every compared element, so that a known fault with the same result would be a guess.
  bool complete = false;
};

/// Some failing rows, their neighbours, the first and the last row.
std::vector<int64_t> rows_to_compare(const FailureSummary& failures, int64_t total);

/// One sentence on the values and positions of the failing elements; "" if neither shows a pattern.
///   values:    not written, NaN, flushed to zero, zeros, one value, the gold of other rows, columns or of a transposed
///              block, the largest of each row, a multiple of the gold, truncated, fewer bits than the output's dtype
///   positions: one element, the last columns or rows, often behind the last whole tile, columns or rows that repeat
///              with a tile's width, one index of a dimension, only where a mask is 0
/// Looks at a sample of failing elements, to help the reader; no verdict depends on it.
Pattern diagnose(const Suspect& suspect);

}  // namespace checkop
