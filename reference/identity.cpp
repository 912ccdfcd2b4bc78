// SPDX-License-Identifier: Apache-2.0
// Computes residuals of products, masked rows and logit gradients.
#include "identity.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "softmax.hpp"

namespace checkop {
namespace {

constexpr double kDeviations = 7;       // a correct row fails with probability 2*exp(-24.5) = 5e-11
constexpr int64_t kColumnBlock = 1024;  // columns per task when a stored matrix is used transposed

/// A matrix times a vector, and its squared elements times another vector.
struct Applied {
  std::vector<double> value, square;
};

/// f * x and f.^2 * y, with f transposed if f.transposed, and rounded to TF32 if `tf32`.
Applied apply(const IdentityArgs& args, const Factor& f, const std::vector<double>& x, const std::vector<double>& y,
              bool tf32 = false) {
  const int64_t rows = f.transposed ? f.columns : f.rows;
  Applied result{std::vector<double>(static_cast<size_t>(rows)), std::vector<double>(static_cast<size_t>(rows))};
  if (!f.transposed) {
    args.parallel_for(rows, [&](int64_t r) {
      static thread_local std::vector<double> row, square;
      row.resize(x.size()), square.resize(x.size());
      decode_block(f, r, 1, 0, f.columns, row.data(), square.data());
      if (tf32) round_to_tf32(row, square);
      std::array<double, 2> sum{};
      for (size_t j = 0; j < x.size(); ++j) sum[0] += row[j] * x[j], sum[1] += square[j] * y[j];
      result.value[static_cast<size_t>(r)] = sum[0], result.square[static_cast<size_t>(r)] = sum[1];
    });
    return result;
  }
  args.parallel_for((rows + kColumnBlock - 1) / kColumnBlock, [&](int64_t task) {
    const int64_t first = task * kColumnBlock, n = std::min(kColumnBlock, rows - first);
    std::array<double, kColumnBlock> row, square;
    for (int64_t s = 0; s < f.rows; ++s) {
      decode_block(f, s, 1, first, n, row.data(), square.data());
      if (tf32) round_to_tf32({row.data(), static_cast<size_t>(n)}, square);
      const double xs = x[static_cast<size_t>(s)], ys = y[static_cast<size_t>(s)];
      for (int64_t j = 0; j < n; ++j) {
        const auto from = static_cast<size_t>(j), to = static_cast<size_t>(first + j);
        result.value[to] += row[from] * xs, result.square[to] += square[from] * ys;
      }
    }
  });
  return result;
}

}  // namespace

void check_product(const IdentityArgs& args, int index, const Factor& x, const Factor& y, const Tensor* bias,
                   int64_t first_row) {
  const Tensor& out = *args.out(index);
  const int64_t n = y.transposed ? y.rows : y.columns, m = x.transposed ? x.columns : x.rows;
  std::vector<double> signs(static_cast<size_t>(n));
  for (size_t j = 0; j < signs.size(); ++j) signs[j] = args.sign("freivalds" + std::to_string(index), j);
  const std::vector<double> ones(signs.size(), 1.0);
  const bool tf32 = args.recipes.has(kTf32Operands);
  const Applied of_y = apply(args, y, signs, ones, tf32);
  const Applied expected = apply(args, x, of_y.value, of_y.square, tf32);
  const Applied got = apply(args, {&out, m, n, false, first_row}, signs, ones);
  double bias_sum = 0, bias_square = 0;
  for (int64_t j = 0; bias != nullptr && j < n; ++j) {
    const double b = bias->at(j);
    bias_sum += b * signs[static_cast<size_t>(j)], bias_square += b * b;
  }
  const double least_normal = std::ldexp(1.0, info(out.dtype).min_exponent);
  const double of_subnormals = static_cast<double>(n) * least_normal * least_normal;
  for (size_t r = 0; r < got.value.size(); ++r) {
    const double product_square = 2 * (got.square[r] + bias_square);  // of (output - bias)
    const double squares = 3 * (product_square + expected.square[r] + bias_square);
    const double stored =
        got.square[r] + (expected.square[r] + bias_square > 0 ? of_subnormals : 0);  // zeros are exact
    // What the recipes allow for; see rounds_partials() and rounds_product().
    double rounded = args.recipes.has(kPartials) ? (product_square / 2 + expected.square[r]) / 3 : 0;
    if (bias != nullptr && args.recipes.has(recipe::kProduct)) rounded += product_square;
    args.sink({"freivalds", index, first_row + static_cast<int64_t>(r), got.value[r] - expected.value[r] - bias_sum,
               kDeviations * std::sqrt(squares),
               kDeviations * args.recipes.in_units(args.recipes.case_unit() * std::sqrt(rounded)),
               kDeviations * std::sqrt(stored)});
  }
}

void check_zero_rows(const IdentityArgs& args, int index, const std::vector<char>& active) {
  const Tensor& out = *args.out(index);
  const int64_t columns = out.count() / std::max<int64_t>(1, std::ssize(active));
  args.parallel_for(std::ssize(active), [&](int64_t r) {
    if (active[static_cast<size_t>(r)] != 0) return;
    static thread_local std::vector<double> row;
    row.resize(static_cast<size_t>(columns));
    decode_row(out, r, row);
    double largest = 0;
    for (const double value : row) {
      if (!(std::abs(value) <= largest)) largest = std::abs(value);
      if (value != value) break;  // a NaN stays
    }
    args.sink({"masked_zero", index, r, largest, 0, 0, 0});
  });
}

void check_row_sums(const IdentityArgs& args, int index, int logits, int grad, const std::vector<char>& active,
                    const LogitTransform& transform, double unit, double unit_of_dz) {
  const Tensor& out = *args.out(index);
  const int64_t vocab = out.shape.back();
  const double log_vocab = std::log(static_cast<double>(vocab));
  const double least_normal = std::ldexp(1.0, info(out.dtype).min_exponent);
  const double of_rounded = unit == 0 ? 0 : args.recipes.in_units(std::expm1(unit * log_vocab) + unit * least_normal);
  args.parallel_for(std::ssize(active), [&](int64_t r) {
    if (active[static_cast<size_t>(r)] == 0) return;
    RowScratch& s = row_scratch(vocab);
    decode_row(args.in(logits), r, s.z);
    decode_row(out, r, s.value);
    double max = -INFINITY, sum = 0, size = 0;
    for (const double x : s.z) max = std::max(max, x);
    const TransformedLogit largest = transform(max);
    for (const double dz : s.value) sum += dz, size += std::abs(dz);
    const double g = std::abs(args.in(grad).at(r)) * largest.slope.value;
    // Stored values err by half an ulp: u_out times their size, or times the smallest normal number if that is larger.
    // Not if g is 0: then the whole row is exactly 0.
    double stored = 0;
    for (const double dz : s.value) stored += g == 0 ? 0 : std::max(std::abs(dz), least_normal);
    // lse_rounding() with mean_spread, log_sum <= log V and |lse| <= |max| + log V; then sum p*argument in the same
    // way.
    const double lse = kArgumentUnits * log_vocab + kExpUnits + 3 * log_vocab + 2 * std::abs(largest.z.value);
    // Two exponentials of each transformed logit: sum p |z| <= |max| + log V.
    const double of_slope = largest.slope.rounding / largest.slope.value;
    const double of_logits = 2 * (largest.z.rounding + of_slope * log_vocab);
    const double rounding = of_logits + lse + kExpUnits + 2 + (kArgumentUnits + 1) * log_vocab;
    const double flushed = kFlushUnits * static_cast<double>(vocab);
    // Rounded gradients of transformed logits, before they are divided by the temperature.
    const double of_dz =
        args.recipes.in_units(unit_of_dz) * (size + static_cast<double>(vocab) * least_normal * largest.slope.value);
    args.sink(
        {"row_sum", index, r, sum, g, g * (rounding + flushed + of_rounded) + (2 + of_slope) * size + of_dz, stored});
  });
}

}  // namespace checkop
