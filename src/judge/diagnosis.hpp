// SPDX-License-Identifier: Apache-2.0
// Describes the pattern of a wrong output. Pure, and only run on failure.
#pragma once

#include <functional>
#include <map>
#include <string>
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
  std::map<int64_t, NearbyRow> nearby;  ///< gold of rows_to_compare(), as far as it is available
  std::vector<MaskOf> masks;
  bool poisoned = true;  ///< the memory of the output was filled with the poison before the launch
};

/// Some failing rows and their neighbours.
std::vector<int64_t> rows_to_compare(const FailureSummary& failures, int64_t total);

/// One sentence on the values and positions of the failing elements; "" if neither shows a pattern.
///   values:    not written, zeros, one value, the gold of the row before or after, a multiple of the gold, truncated,
///              fewer bits than the output's dtype
///   positions: behind the last whole tile of columns or rows, in columns or rows that repeat with a tile's width, only
///              where a mask is 0
/// A guess from a sample of failing elements, to help the reader; no verdict depends on it.
std::string diagnose(const Suspect& suspect);

}  // namespace checkop
