// SPDX-License-Identifier: Apache-2.0
// Result faults. They apply to any operator.
#include "mutate/result_faults.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace checkop {
namespace {

double* row_of(Result& r, int64_t row) { return r.values.data() + row * r.view.columns; }

bool rows_differ(Result& r, int64_t a, int64_t b) {
  return !std::equal(row_of(r, a), row_of(r, a) + r.view.columns, row_of(r, b));
}

void to_zeros(Result& r) { std::fill(r.values.begin(), r.values.end(), 0.0); }

void to_mean(Result& r) {
  double sum = 0, n = 0;
  for (const double x : r.values) {
    if (std::isfinite(x)) sum += x, n += 1;
  }
  if (r.values.size() > 1) std::fill(r.values.begin(), r.values.end(), sum / std::max(n, 1.0));
}

void last_to_nan(Result& r) {
  if (!r.values.empty()) r.values.back() = std::numeric_limits<double>::quiet_NaN();
}

void scale(Result& r, double by) {
  for (double& x : r.values) x *= by;
}
void scale_down(Result& r) { scale(r, 0.995); }
void scale_up(Result& r) { scale(r, 1.02); }
void negate(Result& r) { scale(r, -1); }

/// Overwrites the last row that differs from the row before it; behind it, there may be rows of zeros.
void keep_previous_row(Result& r) {
  for (int64_t row = r.view.rows - 1; row > 0; --row) {
    if (!rows_differ(r, row, row - 1)) continue;
    std::copy_n(row_of(r, row - 1), r.view.columns, row_of(r, row));
    return;
  }
}

/// Swaps the first row with the last row that differs from it.
void swap_rows(Result& r) {
  for (int64_t row = r.view.rows - 1; row > 0; --row) {
    if (!rows_differ(r, 0, row)) continue;
    std::swap_ranges(row_of(r, 0), row_of(r, 0) + r.view.columns, row_of(r, row));
    return;
  }
}

void take_next_rows(Result& r) {
  if (r.view.rows > 1) std::rotate(r.values.begin(), r.values.begin() + r.view.columns, r.values.end());
}

int64_t tile_of(int64_t columns) { return std::min<int64_t>(128, columns / 2); }

void swap_tiles(Result& r) {
  const int64_t tile = tile_of(r.view.columns);
  for (int64_t row = 0; row < r.view.rows && tile > 0; ++row) {
    double* first = row_of(r, row);
    std::swap_ranges(first, first + tile, first + tile);
  }
}

void leave_columns(Result& r, int64_t n) {
  for (int64_t row = 0; row < r.view.rows && n < r.view.columns; ++row)
    std::fill_n(row_of(r, row) + r.view.columns - n, n, 0.0);
}
void leave_last_column(Result& r) { leave_columns(r, 1); }
void leave_last_tile(Result& r) { leave_columns(r, std::max<int64_t>(1, tile_of(r.view.columns))); }

/// Keeps only the largest element of every row, like a gradient without its softmax term.
void keep_largest(Result& r) {
  if (r.view.columns < 2) return;
  for (int64_t row = 0; row < r.view.rows; ++row) {
    double* first = row_of(r, row);
    const auto smaller = [](double a, double b) { return std::abs(a) < std::abs(b); };
    const double* largest = std::max_element(first, first + r.view.columns, smaller);
    for (double* x = first; x < first + r.view.columns; ++x) *x = x == largest ? *x : 0;
  }
}

/// Doubles the median element: the largest would be too easy to find, and a tiny one may double within its bound.
void double_one(Result& r) {
  std::vector<size_t> order;  // without the zeros of masked rows
  for (size_t i = 0; i < r.values.size(); ++i) {
    if (r.values[i] != 0) order.push_back(i);
  }
  if (order.empty()) return;
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(order.size() / 2);
  std::nth_element(order.begin(), middle, order.end(),
                   [&](size_t a, size_t b) { return std::abs(r.values[a]) < std::abs(r.values[b]); });
  r.values[*middle] *= 2;
}

void transpose_block(Result& r) {
  constexpr int64_t kBlock = 8;
  if (r.view.rows < kBlock || r.view.columns < kBlock) return;
  for (int64_t i = 0; i < kBlock; ++i) {
    for (int64_t j = i + 1; j < kBlock; ++j) std::swap(row_of(r, i)[j], row_of(r, j)[i]);
  }
}

/// Moves stored elements toward zero if they were rounded away from it.
void truncate(Result& r) {
  if (r.spec.numerics == Numerics::exact) return;
  const size_t bytes = info(r.stored.dtype).bytes;
  for (size_t i = 0; i < r.values.size(); ++i) {
    std::byte* element = r.stored.bytes.data() + i * bytes;
    if (!(std::abs(r.stored.at(static_cast<int64_t>(i))) > std::abs(r.values[i]))) continue;
    uint64_t bits = 0;
    std::copy_n(element, bytes, reinterpret_cast<std::byte*>(&bits));  // little-endian, like all of the checker
    --bits;
    std::copy_n(reinterpret_cast<const std::byte*>(&bits), bytes, element);
  }
}

constexpr std::array kResultFaults{
    ResultFault{{"zeros", "all zeros"}, to_zeros},
    ResultFault{{"constant", "the mean of the right results everywhere"}, to_mean},
    ResultFault{{"nan", "the last element is NaN", "nonfinite"}, last_to_nan},
    ResultFault{{"scaled_0.995", "all results times 0.995"}, scale_down},
    ResultFault{{"scaled_1.02", "all results times 1.02"}, scale_up},
    ResultFault{{"negated", "all results with the other sign"}, negate},
    ResultFault{{"stale_row", "the last row holds the result of the one before"}, keep_previous_row},
    ResultFault{{"rows_swapped", "the first and the last row have changed places"}, swap_rows},
    ResultFault{{"next_row", "every row holds the result of the next one"}, take_next_rows},
    ResultFault{{"tiles_swapped", "the first two tiles of columns have changed places"}, swap_tiles},
    ResultFault{{"last_column_left", "the last column of every row stays 0"}, leave_last_column},
    ResultFault{{"last_tile_left", "the last tile of columns of every row stays 0"}, leave_last_tile},
    ResultFault{{"largest_alone", "of every row only the largest element is not 0"}, keep_largest},
    ResultFault{{"one_element_doubled", "one element is twice what it should be"}, double_one},
    ResultFault{{"transposed_block", "the first 8 x 8 block is transposed"}, transpose_block},
    // Not fp32: there the final rounding is only one of many that a bound allows.
    ResultFault{{"truncated", "results are rounded toward zero", "accuracy", "bf16 fp16"}, nullptr, truncate},
};

}  // namespace

std::span<const ResultFault> result_faults() { return kResultFaults; }

}  // namespace checkop
