// SPDX-License-Identifier: Apache-2.0
// Where an output errs and by how much, in a few kilobytes: a histogram, and a grid over rows and columns.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace checkop {

/// Histogram and grid of error ratios. A ratio is an element's error over its allowed error; above 1 it failed.
struct ErrorMap {
  static constexpr int kBins = 64, kLowest = -48;
  /// Bin 0: ratios below 2^kLowest, including 0. Bin i: [2^(kLowest+i-1), 2^(kLowest+i)). The last bin has no upper end
  /// and also holds non-finite ratios.
  std::array<int64_t, kBins> histogram{};
  int64_t rows_per_cell = 1, columns_per_cell = 1;  ///< powers of two, so that cells align with the tiles of kernels
  /// One string per row of cells, one character per cell, for the largest ratio in the cell:
  ///   '.'             0
  ///   '0'-'9','a'-'z' steps of a third of a power of two; upper ends 2^(-35/3) ... 1
  ///   'A'-'Z'         steps of a power of two; upper ends 2 ... 2^26
  ///   '!'             larger, or not finite
  ///   ' '             not compared
  std::vector<std::string> cells;

  bool empty() const { return cells.empty(); }
};

/// Collects an ErrorMap, from one thread at a time.
class ErrorMapper {
 public:
  static constexpr int64_t kMostCells = 64;  ///< per side of the grid

  ErrorMapper(int64_t rows, int64_t columns);

  /// Adds `count` ratios of the row, from `column` on; none is negative or NaN. `largest` is the largest of them.
  void add(int64_t row, int64_t column, const double* ratios, size_t count, double largest);
  /// Adds what `other`, of the same extents, has collected.
  void merge(const ErrorMapper& other);

  ErrorMap map() const;

 private:
  /// Several histograms, because neighbours often fall into one bin, and an increment waits for the increment before
  /// it.
  static constexpr size_t kHistograms = 4;
  int64_t columns_;  ///< of cells
  int row_shift_, column_shift_;
  std::array<std::array<int64_t, ErrorMap::kBins>, kHistograms> histograms_{};
  std::vector<double> largest_;  ///< by cell; negative: nothing there
};

/// The largest of n >= 1 numbers; may ignore a NaN.
double largest_of(const double* x, size_t n);

/// The character of a cell.
char error_level(double ratio);

}  // namespace checkop
