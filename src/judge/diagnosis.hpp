// SPDX-License-Identifier: Apache-2.0
// What a wrong output looks like. Pure, and only run on failure.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "judge/failures.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// A row of the gold, and what each of its elements may err by.
struct NearbyRow {
  std::vector<double> value, allowed;
};

/// An input that masks elements of the output, by row and column of the output.
struct MaskOf {
  std::string name;
  std::function<bool(int64_t, int64_t)> is_zero;
};

/// All of one output as a matrix.
struct Suspect {
  DType dtype;
  const std::byte* got;
  MatrixView view;
  const RowSet& rows;  ///< that were compared
  const FailureSummary& failures;
  std::map<int64_t, NearbyRow> nearby;  ///< of rows_to_compare(), as far as their gold is at hand
  std::vector<MaskOf> masks;
};

/// Some failing rows, and those before and after them.
std::vector<int64_t> rows_to_compare(const FailureSummary& failures, int64_t total);

/// One sentence of what the failing elements are and where, as far as either can be told; "" otherwise.
///   what:  not written, zeros, one value, the gold of the row before or after, a multiple of the gold, truncated, of
///          fewer bits than the output's dtype
///   where: behind the last whole tile of columns or rows, in columns or rows that repeat with a tile's width, only
///          where a mask is 0
/// A guess from a sample of failing elements, for the reader; no verdict depends on it.
std::string diagnose(const Suspect& suspect);

}  // namespace checkop
