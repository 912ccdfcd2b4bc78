// SPDX-License-Identifier: Apache-2.0
// Histogram and grid of error ratios.
#include "judge/error_map.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace checkop {
namespace {

/// The smallest shift that divides `extent` into at most kMostCells cells.
int shift_of(int64_t extent) {
  int shift = 0;
  while (((extent - 1) >> shift) >= ErrorMapper::kMostCells) ++shift;
  return shift;
}

int64_t cells_of(int64_t extent, int shift) { return extent > 0 ? ((extent - 1) >> shift) + 1 : 0; }

/// Histogram bins of non-negative ratios, in a loop that compilers vectorise.
void bins_of(const double* ratios, size_t count, uint32_t* bins) {
  constexpr int kBias = 1023, kOffset = kBias + ErrorMap::kLowest - 1, kMantissa = 52;
  for (size_t i = 0; i < count; ++i) {
    const int exponent = static_cast<int>(std::bit_cast<uint64_t>(ratios[i]) >> kMantissa);
    const int above = exponent < kOffset ? 0 : exponent - kOffset;
    bins[i] = static_cast<uint32_t>(above < ErrorMap::kBins ? above : ErrorMap::kBins - 1);
  }
}

}  // namespace

double largest_of(const double* x, size_t n) {
  constexpr size_t kLanes = 4;  // independent maxima, so that compilers vectorise the loop
  std::array<double, kLanes> most;
  most.fill(x[0]);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) most[l] = most[l] < x[i + l] ? x[i + l] : most[l];
  }
  for (; i < n; ++i) most[0] = std::max(most[0], x[i]);
  return std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
}

char error_level(double ratio) {
  constexpr int kWithin = 36, kBeyond = 26;
  if (ratio < 0) return ' ';
  if (ratio == 0) return '.';
  if (!(ratio < HUGE_VAL)) return '!';
  const double octaves = std::log2(ratio);
  if (ratio > 1) {
    const int level = std::max(static_cast<int>(std::min(std::ceil(octaves), kBeyond + 1.0)), 1);
    return level > kBeyond ? '!' : static_cast<char>('A' + level - 1);
  }
  const int level = static_cast<int>(std::clamp(std::ceil(3 * octaves), 1.0 - kWithin, 0.0)) + kWithin - 1;
  return static_cast<char>(level < 10 ? '0' + level : 'a' + (level - 10));
}

ErrorMapper::ErrorMapper(int64_t rows, int64_t columns) : row_shift_(shift_of(rows)), column_shift_(shift_of(columns)) {
  columns_ = cells_of(columns, column_shift_);
  largest_.assign(static_cast<size_t>(cells_of(rows, row_shift_) * columns_), -1);
}

void ErrorMapper::add(int64_t row, int64_t column, const double* ratios, size_t count, double largest) {
  constexpr size_t kStep = 256;
  std::array<uint32_t, kStep> bins;
  for (size_t at = 0; at < count; at += kStep) {
    const size_t n = std::min(kStep, count - at);
    bins_of(ratios + at, n, bins.data());
    for (size_t i = 0; i < n; ++i) ++histograms_[i % kHistograms][bins[i]];
  }
  double* const cells = &largest_[static_cast<size_t>((row >> row_shift_) * columns_)];
  const auto cell_of = [&](size_t i) {
    return static_cast<size_t>((column + static_cast<int64_t>(i)) >> column_shift_);
  };
  if (cell_of(0) == cell_of(count - 1)) {
    cells[cell_of(0)] = std::max(cells[cell_of(0)], largest);
    return;
  }
  for (size_t i = 0; i < count;) {
    const size_t cell = cell_of(i);
    const int64_t end = (static_cast<int64_t>(cell) + 1) << column_shift_;
    const size_t n = std::min(count - i, static_cast<size_t>(end - column) - i);
    cells[cell] = std::max(cells[cell], largest_of(ratios + i, n));
    i += n;
  }
}

void ErrorMapper::merge(const ErrorMapper& other) {
  for (size_t h = 0; h < kHistograms; ++h)
    for (size_t i = 0; i < ErrorMap::kBins; ++i) histograms_[h][i] += other.histograms_[h][i];
  for (size_t i = 0; i < largest_.size(); ++i) largest_[i] = std::max(largest_[i], other.largest_[i]);
}

ErrorMap ErrorMapper::map() const {
  ErrorMap map;
  for (const auto& histogram : histograms_)
    for (size_t i = 0; i < histogram.size(); ++i) map.histogram[i] += histogram[i];
  map.rows_per_cell = int64_t{1} << row_shift_;
  map.columns_per_cell = int64_t{1} << column_shift_;
  for (size_t at = 0; at < largest_.size(); at += static_cast<size_t>(columns_)) {
    std::string line;
    for (int64_t c = 0; c < columns_; ++c) line += error_level(largest_[at + static_cast<size_t>(c)]);
    map.cells.push_back(std::move(line));
  }
  return map;
}

}  // namespace checkop
