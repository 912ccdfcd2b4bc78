// SPDX-License-Identifier: Apache-2.0
// FP64 matrix products of stored tensors, streamed by blocks of rows.
#include "product.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>

namespace checkop {
namespace {

constexpr int64_t kBlockElements = int64_t{1} << 24;    // 128 MiB of doubles in each large scratch array
constexpr int64_t kTileRows = 128, kTileColumns = 256;  // per task: large enough for dgemm to pay for its packing

/// Extent of a block with other extent `other`, at most `most`.
int64_t block_extent(int64_t other, int64_t most) { return std::clamp<int64_t>(kBlockElements / other, 16, most); }

/// A decoded block of an operand, and its squares; `leading` is the leading dimension as stored.
struct Block {
  std::vector<double> value, square;
  int64_t leading = 0;
};

/// Decodes stored rows [first, first + count) into `block`, at as many columns of `columns`, from the begin-th on, as
/// fit.
void gather_columns(const Factor& f, const RowSet& columns, int64_t begin, int64_t first, int64_t count, Block& block) {
  const auto width = static_cast<size_t>(f.columns);
  std::vector<double> row(width), square(width);
  for (int64_t r = first; r < first + count; ++r) {
    decode_block(f, r, 1, 0, f.columns, row.data(), square.data());
    for (int64_t i = 0; i < block.leading; ++i) {
      const auto from = static_cast<size_t>(columns.at(begin + i)), to = static_cast<size_t>(r * block.leading + i);
      block.value[to] = row[from], block.square[to] = square[from];
    }
  }
}

/// Decodes in parallel n of the operand's `rows`, from the begin-th on; if the operand is transposed, these are columns
/// of the stored matrix.
void decode_rows(const GoldArgs& args, const Factor& f, const RowSet& rows, int64_t begin, int64_t n, Block& block) {
  const int64_t inner = f.transposed ? f.rows : f.columns;
  block.value.resize(static_cast<size_t>(n * inner));
  block.square.resize(static_cast<size_t>(n * inner));
  block.leading = f.transposed ? n : inner;
  const int64_t stored_rows = f.transposed ? f.rows : n;
  args.parallel_for((stored_rows + kTileRows - 1) / kTileRows, [&](int64_t task) {
    const int64_t first = task * kTileRows, count = std::min(kTileRows, stored_rows - first);
    const auto at = static_cast<size_t>(first * block.leading);
    if (rows.all) {
      decode_block(f, f.transposed ? first : begin + first, count, f.transposed ? begin : 0, block.leading,
                   &block.value[at], &block.square[at]);
    } else if (f.transposed) {
      gather_columns(f, rows, begin, first, count, block);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        const size_t to = at + static_cast<size_t>(i * inner);
        decode_block(f, rows.at(begin + first + i), 1, 0, inner, &block.value[to], &block.square[to]);
      }
    }
  });
}

/// decode_rows(), then rounds to TF32 where that recipe is active.
void decode_operand(const GoldArgs& args, const Factor& f, const RowSet& rows, int64_t begin, int64_t n, Block& block) {
  decode_rows(args, f, rows, begin, n, block);
  if (args.recipes.has(kTf32Operands)) round_to_tf32(block.value, block.square);
}

/// Emits empty sums: the weight's gradient of a batch without rows.
void emit_zeros(const GoldArgs& args, int index, int64_t rows, int64_t columns) {
  const std::vector<double> zeros(static_cast<size_t>(columns), 0.0);
  args.for_rows(index, rows, [&](int64_t row) {
    args.sink({index, row, 1, columns, zeros.data(), zeros.data(), zeros.data()});
  });
}

}  // namespace

void decode_block(const Factor& matrix, int64_t row, int64_t rows, int64_t column, int64_t columns, double* value,
                  double* square) {
  const DTypeInfo& type = info(matrix.tensor->dtype);
  for (int64_t r = 0; r < rows; ++r) {
    const auto offset = static_cast<size_t>((matrix.first_row + row + r) * matrix.columns + column) * type.bytes;
    type.decode(matrix.tensor->bytes.data() + offset, value + r * columns, static_cast<size_t>(columns));
  }
  std::transform(value, value + rows * columns, square, [](double v) { return v * v; });
}

void round_to_tf32(std::span<double> value, std::span<double> square) {
  for (size_t i = 0; i < value.size(); ++i) {
    value[i] = ActiveRecipes::round_to_tf32(value[i]);
    square[i] = value[i] * value[i];
  }
}

/// The callers parallelise; OpenBLAS would split sums by its own number of threads. Set before anything forks: its
/// handler of forks starts all threads again, and ends the process where it can't.
[[maybe_unused]] const bool is_single_threaded = [] {
  openblas_set_num_threads(1);
  return true;
}();

void dense_product(bool transpose_x, bool transpose_y, int64_t m, int64_t n, int64_t k, const double* x, int64_t ldx,
                   const double* y, int64_t ldy, double alpha, double* out, int64_t ldout) {
  cblas_dgemm(CblasRowMajor, transpose_x ? CblasTrans : CblasNoTrans, transpose_y ? CblasTrans : CblasNoTrans,
              static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1.0, x, static_cast<int>(ldx), y,
              static_cast<int>(ldy), alpha, out, static_cast<int>(ldout));
}

void emit_product(const GoldArgs& args, int index, const Factor& x, const Factor& y, const Tensor* bias) {
  static const RowSet kAll;
  const RowSet& chosen = args.rows(index);
  const int64_t total = x.transposed ? x.columns : x.rows, k = x.transposed ? x.rows : x.columns;
  const int64_t m = chosen.count(total), n = y.transposed ? y.rows : y.columns;
  if (k == 0) return emit_zeros(args, index, total, n);
  const int64_t row_block = block_extent(std::max(n, k), 512), column_block = block_extent(k, 2048);
  // y is read by columns: column j of y is row j of its transpose.
  const Factor columns_of_y{y.tensor, y.rows, y.columns, !y.transposed, y.first_row};
  Block xs, ys;
  std::vector<double> value, magnitude, b(static_cast<size_t>(n), 0.0);
  const bool rounds_partials = args.recipes.has(kPartials);
  const bool rounds_product = bias != nullptr && args.recipes.has(recipe::kProduct);
  if (bias != nullptr) info(bias->dtype).decode(bias->bytes.data(), b.data(), b.size());
  for (int64_t row = 0; row < m; row += row_block) {
    const int64_t rows = std::min(row_block, m - row);
    decode_operand(args, x, chosen, row, rows, xs);
    value.resize(static_cast<size_t>(rows * n));
    magnitude.resize(static_cast<size_t>(rows * n));
    for (int64_t column = 0; column < n; column += column_block) {
      const int64_t columns = std::min(column_block, n - column);
      decode_operand(args, columns_of_y, kAll, column, columns, ys);
      const int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
      const int64_t column_tiles = (columns + kTileColumns - 1) / kTileColumns;
      args.parallel_for(row_tiles * column_tiles, [&](int64_t task) {
        const int64_t r = task / column_tiles * kTileRows, c = task % column_tiles * kTileColumns;
        const int64_t tile_rows = std::min(kTileRows, rows - r), tile_columns = std::min(kTileColumns, columns - c);
        const int64_t x_at = x.transposed ? r : r * xs.leading, y_at = y.transposed ? c * ys.leading : c;
        const auto out_at = static_cast<size_t>(r * n + column + c);
        dense_product(x.transposed, y.transposed, tile_rows, tile_columns, k, &xs.value[static_cast<size_t>(x_at)],
                      xs.leading, &ys.value[static_cast<size_t>(y_at)], ys.leading, 0.0, &value[out_at], n);
        dense_product(x.transposed, y.transposed, tile_rows, tile_columns, k, &xs.square[static_cast<size_t>(x_at)],
                      xs.leading, &ys.square[static_cast<size_t>(y_at)], ys.leading, 0.0, &magnitude[out_at], n);
      });
    }
    args.parallel_for(rows, [&](int64_t r) {
      static thread_local std::vector<double> rounding, spread, deviation;
      for (auto* array : {&rounding, &spread, &deviation}) array->assign(static_cast<size_t>(n), 0.0);
      const auto at = static_cast<size_t>(r * n);
      for (size_t i = at; i < at + static_cast<size_t>(n); ++i) {
        const double product = value[i], squares = magnitude[i], added = b[i - at];
        magnitude[i] = std::abs(product) + std::sqrt(squares) + std::abs(added);
        value[i] += added;
        if (rounds_partials) {
          const Spread of_parts = args.recipes.of_terms(index, product * product / 2 + squares,
                                                        std::sqrt(static_cast<double>(k) * squares));
          spread[i - at] = of_parts.most, deviation[i - at] = of_parts.deviation;
        }
        if (rounds_product) {
          const Rounded rounded = args.recipes.round(index, product, magnitude[i] - std::abs(added), 0);
          value[i] = rounded.value + added, magnitude[i] = 0;
          rounding[i - at] = args.recipes.in_units(rounded.slack) + std::abs(value[i]);
        }
      }
      args.sink({index, chosen.at(row + r), 1, n, &value[at], &magnitude[at], rounding.data(),
                 rounds_partials ? spread.data() : nullptr, rounds_partials ? deviation.data() : nullptr});
    });
  }
}

}  // namespace checkop
