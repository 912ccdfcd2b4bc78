// SPDX-License-Identifier: Apache-2.0
// Multiplies codes with scales for blocks of 128 terms, and draws them.
#include "fp8_product.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "identity.hpp"
#include "tensor_core.hpp"

namespace checkop::fp8_product {
namespace {

/// Rows as numbers, and their squares.
struct Rows {
  std::vector<double> value, square;

  void resize(int64_t rows, int64_t columns) { value.resize(static_cast<size_t>(rows * columns)), square = value; }
  void square_all() {
    std::transform(value.begin(), value.end(), square.begin(), [](double x) { return x * x; });
  }
};

/// What a block of 128 products may err by, in roundings of fp32 and relative to the size of its partial sums: every
/// addend of every addition loses less than 2^(1 - acc_bits) of the largest one. Then the product of two scales, that
/// with the sum, and storing it.
double units_of_block(std::span<const double> attrs) {
  constexpr double kOfScales = 3, kUnit = 0x1p-24;
  const double terms = attrs[kAccTerms], addends = (terms + 1) * std::ceil(kBlock / terms);
  return addends * std::ldexp(1.0, 1 - static_cast<int>(attrs[kAccBits])) / kUnit + kOfScales;
}

}  // namespace

void validate(const CaseSizes& sizes) {
  const double bits = sizes.attrs[kAccBits], terms = sizes.attrs[kAccTerms];
  if (!(bits >= 8 && bits <= 24 && bits == std::floor(bits)))
    throw InputError("--acc-bits", fmt::format("expected a whole number from 8 to 24, got {}", bits),
                     "14 is that of FP8 tensor cores of sm_90, 24 that of fp32");
  if (!(terms >= 1 && terms <= 128 && terms == std::floor(terms)))
    throw InputError("--acc-terms", fmt::format("expected a whole number from 1 to 128, got {}", terms),
                     "32 is that of FP8 tensor cores, 1 that of ordinary units");
}

void ScaledCodes::decode(int64_t row, double* to) const {
  static thread_local std::vector<double> factors;
  factors.resize(static_cast<size_t>(scales.shape.back()));
  decode_row(scales, first_scale_row + row / rows_of_scale, factors);
  const std::byte* const from = codes.bytes.data() + (first_row + row) * codes.shape.back() + first_column;
  info(codes.dtype).decode(from, to, static_cast<size_t>(columns));
  for (int64_t k = 0; k < columns; ++k) to[k] *= factors[static_cast<size_t>((first_column + k) / kBlock)];
}

Tensor ScaledCodes::dequantised(const IdentityArgs& args, int64_t rows) const {
  Tensor values(codes.name, DType::f64, {rows, columns});
  args.parallel_for(rows,
                    [&](int64_t row) { decode(row, reinterpret_cast<double*>(values.bytes.data()) + row * columns); });
  return values;
}

void emit_product(const GoldArgs& args, int output, int64_t first_row, std::span<const int64_t> rows,
                  const ScaledCodes& x, const ScaledCodes& y, int64_t n_dim) {
  constexpr int64_t kTileRows = 128, kTileColumns = 256;
  const int64_t k_dim = x.columns;
  const double units = units_of_block(args.attrs);
  Rows of_x;
  std::vector<double> value, magnitude, rounding;
  for (int64_t first = 0; first < std::ssize(rows); first += kTileRows) {
    const int64_t m = std::min(kTileRows, std::ssize(rows) - first);
    of_x.resize(m, k_dim);
    for (int64_t r = 0; r < m; ++r) x.decode(rows[static_cast<size_t>(first + r)], of_x.value.data() + r * k_dim);
    of_x.square_all();
    for (auto* array : {&value, &magnitude, &rounding}) array->assign(static_cast<size_t>(m * n_dim), 0.0);
    args.parallel_for((n_dim + kTileColumns - 1) / kTileColumns, [&](int64_t task) {
      static thread_local Rows of_y;
      static thread_local std::vector<double> sum, squares;
      const int64_t column = task * kTileColumns, n = std::min(kTileColumns, n_dim - column);
      of_y.resize(n, k_dim);
      for (int64_t j = 0; j < n; ++j) y.decode(column + j, of_y.value.data() + j * k_dim);
      of_y.square_all();
      sum.resize(static_cast<size_t>(m * n)), squares.resize(sum.size());
      for (int64_t k = 0; k < k_dim; k += kBlock) {
        const int64_t terms = std::min(kBlock, k_dim - k);
        dense_product(false, true, m, n, terms, &of_x.value[static_cast<size_t>(k)], k_dim,
                      &of_y.value[static_cast<size_t>(k)], k_dim, 0.0, sum.data(), n);
        dense_product(false, true, m, n, terms, &of_x.square[static_cast<size_t>(k)], k_dim,
                      &of_y.square[static_cast<size_t>(k)], k_dim, 0.0, squares.data(), n);
        for (int64_t i = 0; i < m * n; ++i) {
          const auto from = static_cast<size_t>(i), to = static_cast<size_t>(i / n * n_dim + column + i % n);
          value[to] += sum[from], magnitude[to] += squares[from];
          rounding[to] += units * (std::abs(sum[from]) + std::sqrt(squares[from]));
        }
      }
    });
    for (size_t i = 0; i < value.size(); ++i) magnitude[i] = std::abs(value[i]) + std::sqrt(magnitude[i]);
    for (int64_t r = 0; r < m; ++r) {
      const auto at = static_cast<size_t>(r * n_dim);
      args.sink({output, first_row + rows[static_cast<size_t>(first + r)], 1, n_dim, &value[at], &magnitude[at],
                 &rounding[at]});
    }
  }
}

void model_product(const ModelArgs& args, int output, int64_t first_row, int64_t rows, const ScaledCodes& x,
                   const ScaledCodes& y, int64_t n) {
  const ProductScales scales{{&x.scales, x.rows_of_scale, x.first_scale_row},
                             {&y.scales, y.rows_of_scale, y.first_scale_row}};
  emit_tensor_core_part(args, output, first_row, {&x.codes, rows, x.columns, false, x.first_row},
                        {&y.codes, n, y.columns, true, y.first_row}, &scales);
}

void check_product(const IdentityArgs& args, int output, int64_t first_row, const Tensor& x, const Tensor& y) {
  constexpr double kDeviations = 7;
  const int64_t columns = y.shape.back();
  std::vector<double> norms(static_cast<size_t>(columns)), row(norms.size());
  for (int64_t j = 0; j < y.shape.front(); ++j) {
    decode_row(y, j, row);
    for (size_t k = 0; k < row.size(); ++k) norms[k] += row[k] * row[k];
  }
  for (double& norm : norms) norm = std::sqrt(norm);
  const double units = kDeviations * units_of_block(args.attrs);
  const auto* const values = reinterpret_cast<const double*>(x.bytes.data());
  IdentityArgs part = args;
  part.sink = [&](Residual residual) {
    double size = 0;
    for (int64_t k = 0; k < columns; ++k)
      size += std::abs(values[(residual.row - first_row) * columns + k]) * norms[static_cast<size_t>(k)];
    residual.rounding += units * size;
    args.sink(residual);
  };
  checkop::check_product(part, output, {&x, x.shape.front(), columns}, {&y, y.shape.front(), columns, true}, nullptr,
                         first_row);
}

void draw(const FillArgs& args, std::string_view codes_name, std::string_view scales_name, int64_t terms,
          bool of_rows) {
  constexpr double kCodes = 128;
  constexpr int64_t kSmallRow = 3;
  constexpr int kSubnormal = 14;  // 128 2^-14 is half the least normal number
  const bool draws = args.mode == InputMode::random;
  Tensor &codes = *args.find(codes_name), &scales = *args.find(scales_name);
  const int64_t columns = codes.shape.back(), blocks = scales.shape.back();
  std::vector<double> values(static_cast<size_t>(columns));
  for (int64_t row = 0; row * columns < codes.count() && draws; ++row) {
    const double factor = std::ldexp(kCodes, of_rows && row % 8 == kSmallRow ? -kSubnormal : 0);
    decode_row(codes, row, values);
    for (double& x : values) x = factor * (row % 2 == 1 ? std::abs(x) : x);
    encode_row(codes, row, values);
  }
  const double divisor = kCodes * std::sqrt(static_cast<double>(terms));
  for (int64_t i = 0; i < scales.count(); ++i) {
    const int64_t row = i / blocks, block = i % blocks;
    double scale = 0.5;
    if (draws) scale = (0.5 + args.uniform(scales_name, static_cast<uint64_t>(i))) / divisor;
    if (draws && of_rows && row % 8 == kSmallRow) scale = std::ldexp(scale, kSubnormal);
    if (draws && of_rows && row % 8 == 5 && block == 0) scale *= 1024;
    if (draws && of_rows && row % 8 == 6 && block == 1) scale = 0;
    scales.set(i, scale);
  }
}

}  // namespace checkop::fp8_product
