// SPDX-License-Identifier: Apache-2.0
// fp8_block_gemm: d = a b^T of e4m3 codes, with a scale for 128 columns of a row of a, and for 128 x 128 codes of b.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/error.hpp"
#include "identity.hpp"
#include "operator/operator.hpp"
#include "product.hpp"

namespace checkop {

extern const Emulation kFp8BlockGemmForward;  // emulation/fp8_block_gemm.cpp

namespace {

constexpr int64_t kBlock = 128;
constexpr std::string_view kRowsOfA = "batch seq k_dim", kRowsOfD = "batch seq n_dim";
constexpr TensorSpec kA{"a", kRowsOfA, Fill::normal, "", DType::e4m3, false, /*constant=*/true};
constexpr TensorSpec kScaleA{"scale_a", "batch seq k_dim/128", Fill::normal, "", DType::f32, false, /*constant=*/true};
constexpr TensorSpec kB{"b", "n_dim k_dim", Fill::normal, "", DType::e4m3, false, /*constant=*/true};
constexpr TensorSpec kScaleB{"scale_b", "n_dim/128 k_dim/128", Fill::normal, "", DType::f32, false, /*constant=*/true};
enum Input : int { kOfA, kOfScaleA, kOfB, kOfScaleB };

constexpr std::array kForwardIn{kA, kScaleA, kB, kScaleB};
constexpr std::array kForwardOut{OutputSpec{{"d", kRowsOfD}, Numerics::contraction, "k_dim/128", /*sampled=*/true}};

enum Attr : size_t { kAccBits, kAccTerms };
constexpr std::array kAttrs{
    AttrSpec{"acc_bits", 14,
             "bits that an addition keeps of its largest addend: 14 of FP8 tensor cores of sm_90, 24 of fp32"},
    AttrSpec{"acc_terms", 32, "products that are added at once, to what was added before; 1 of ordinary units"}};

/// Elements [first, first + columns of a row) of codes, times their scales, exact in fp64.
void decode_scaled(const Tensor& codes, const Tensor& scales, int64_t row, int64_t row_of_scales, double* to) {
  const int64_t columns = codes.shape.back();
  static thread_local std::vector<double> factors;
  factors.resize(static_cast<size_t>(scales.shape.back()));
  decode_row(scales, row_of_scales, factors);
  info(codes.dtype).decode(codes.bytes.data() + row * columns, to, static_cast<size_t>(columns));
  for (int64_t k = 0; k < columns; ++k) to[k] *= factors[static_cast<size_t>(k / kBlock)];
}

/// Rows of a or b as numbers, and their squares.
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

/// Gold of fp8_block_gemm.
///   in:  a[batch, seq, k_dim], b[n_dim, k_dim] e4m3
///        scale_a[batch, seq, k_dim/128], scale_b[n_dim/128, k_dim/128] fp32
///   out: d[batch, seq, n_dim] = sum_k (a scale_a[k/128]) (b scale_b[n/128, k/128])
/// The sums of 128 products each are added up in fp32, hence the magnitude of a product; see emit_product(). Within one
/// of them FP8 tensor cores keep few bits: an instruction truncates every addend to 2^(1 - acc_bits) of the largest.
/// That is not above the size of partial sums, |sum| + sqrt(sum of squares) of a block. So
///   rounding = ((acc_terms + 1) (128/acc_terms) 2^(1 - acc_bits)/u + 3) sum over blocks of that size,  u = 2^-24
/// One large product and 127 that are lost beside it err by almost half of that. Sources: DeepGEMM's
/// sm90_fp8_gemm_1d2d.cuh; truncation as in Xie, Wang and Yang, "MMA-Sim", arXiv 2511.10909, and Khattak and Mikaitis,
/// arXiv 2512.07004. Not verified on a GPU here.
void forward(const GoldArgs& args) {
  constexpr int64_t kTileRows = 128, kTileColumns = 256;
  const Tensor &a = args.in(kOfA), &b = args.in(kOfB);
  const int64_t k_dim = b.shape.back(), n_dim = b.shape.front();
  const RowSet& chosen = args.rows(0);
  const int64_t rows = chosen.count(a.count() / k_dim);
  const double units = units_of_block(args.attrs);
  Rows of_a;
  std::vector<double> value, magnitude, rounding;
  for (int64_t first = 0; first < rows; first += kTileRows) {
    const int64_t m = std::min(kTileRows, rows - first);
    of_a.resize(m, k_dim);
    for (int64_t r = 0; r < m; ++r)
      decode_scaled(a, args.in(kOfScaleA), chosen.at(first + r), chosen.at(first + r),
                    &of_a.value[static_cast<size_t>(r * k_dim)]);
    of_a.square_all();
    for (auto* array : {&value, &magnitude, &rounding}) array->assign(static_cast<size_t>(m * n_dim), 0.0);
    args.parallel_for((n_dim + kTileColumns - 1) / kTileColumns, [&](int64_t task) {
      static thread_local Rows of_b;
      static thread_local std::vector<double> sum, squares;
      const int64_t column = task * kTileColumns, n = std::min(kTileColumns, n_dim - column);
      of_b.resize(n, k_dim);
      for (int64_t j = 0; j < n; ++j)
        decode_scaled(b, args.in(kOfScaleB), column + j, (column + j) / kBlock,
                      &of_b.value[static_cast<size_t>(j * k_dim)]);
      of_b.square_all();
      sum.resize(static_cast<size_t>(m * n)), squares.resize(sum.size());
      for (int64_t k = 0; k < k_dim; k += kBlock) {
        const int64_t terms = std::min(kBlock, k_dim - k);
        dense_product(false, true, m, n, terms, &of_a.value[static_cast<size_t>(k)], k_dim,
                      &of_b.value[static_cast<size_t>(k)], k_dim, 0.0, sum.data(), n);
        dense_product(false, true, m, n, terms, &of_a.square[static_cast<size_t>(k)], k_dim,
                      &of_b.square[static_cast<size_t>(k)], k_dim, 0.0, squares.data(), n);
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
      args.sink({0, chosen.at(first + r), 1, n_dim, &value[at], &magnitude[at], &rounding[at]});
    }
  }
}

/// A matrix of numbers in fp64: codes times their scales, of which `rows_of_scale` rows share one.
Tensor dequantised(const IdentityArgs& args, int codes, int scales, int64_t rows_of_scale) {
  const Tensor& of = args.in(codes);
  const int64_t columns = of.shape.back();
  Tensor values(of.name, DType::f64, {of.count() / columns, columns});
  args.parallel_for(values.shape.front(), [&](int64_t row) {
    decode_scaled(of, args.in(scales), row, row / rows_of_scale,
                  reinterpret_cast<double*>(values.bytes.data()) + row * columns);
  });
  return values;
}

Factor matrix(const Tensor& t, bool transposed = false) { return {&t, t.shape.front(), t.shape.back(), transposed}; }

/// Freivalds' check of the product of dequantised operands. What tensor cores lose adds to an element at most units
/// times sum_k |a_k b_jk|; the root of the squares of that over j is at most sum_k |a_k| sqrt(sum_j b_jk^2).
void identities(const IdentityArgs& args) {
  constexpr double kDeviations = 7;
  const Tensor a = dequantised(args, kOfA, kOfScaleA, 1), b = dequantised(args, kOfB, kOfScaleB, kBlock);
  const int64_t columns = b.shape.back();
  std::vector<double> norms(static_cast<size_t>(columns)), row(norms.size());
  for (int64_t j = 0; j < b.shape.front(); ++j) {
    decode_row(b, j, row);
    for (size_t k = 0; k < row.size(); ++k) norms[k] += row[k] * row[k];
  }
  for (double& norm : norms) norm = std::sqrt(norm);
  const double units = kDeviations * units_of_block(args.attrs);
  const auto* const values = reinterpret_cast<const double*>(a.bytes.data());
  IdentityArgs part = args;
  part.sink = [&](Residual residual) {
    double size = 0;
    for (int64_t k = 0; k < columns; ++k)
      size += std::abs(values[residual.row * columns + k]) * norms[static_cast<size_t>(k)];
    residual.rounding += units * size;
    args.sink(residual);
  };
  check_product(part, 0, matrix(a), matrix(b, true));
}

Work work(const GoldArgs& args) {
  return {2.0 * static_cast<double>(args.in(kOfA).count()) * static_cast<double>(args.in(kOfB).shape.front())};
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, identities, work, &kFp8BlockGemmForward}};

void validate(const CaseSizes& sizes) {
  const double bits = sizes.attrs[kAccBits], terms = sizes.attrs[kAccTerms];
  if (!(bits >= 8 && bits <= 24 && bits == std::floor(bits)))
    throw InputError("--acc-bits", fmt::format("expected a whole number from 8 to 24, got {}", bits),
                     "14 is that of FP8 tensor cores of sm_90, 24 that of fp32");
  if (!(terms >= 1 && terms <= 128 && terms == std::floor(terms)))
    throw InputError("--acc-terms", fmt::format("expected a whole number from 1 to 128, got {}", terms),
                     "32 is that of FP8 tensor cores, 1 that of ordinary units");
}

/// Codes of the whole range, and scales with which numbers of a are of size 1 and sums of both, too. Every second row
/// of a, and every second one of b, has no number below 0: where they meet, whatever is lost is lost to one side. Some
/// rows of a have a block 2^10 times as large as the others, or one with a scale of 0.
void refine(const FillArgs& args) {
  constexpr double kCodes = 128;
  const bool draws = args.mode == InputMode::random;
  for (const char* name : {"a", "b"}) {
    Tensor& codes = *args.find(name);
    const int64_t columns = codes.shape.back();
    for (int64_t i = 0; i < codes.count() && draws; ++i) {
      const double x = kCodes * codes.at(i);
      codes.set(i, i / columns % 2 == 1 ? std::abs(x) : x);
    }
  }
  const double of_sum = std::sqrt(static_cast<double>(args.dim("k_dim")));
  for (const char* name : {"scale_a", "scale_b"}) {
    Tensor& scales = *args.find(name);
    const bool is_of_a = name == std::string_view("scale_a");
    const int64_t blocks = scales.shape.back();
    for (int64_t i = 0; i < scales.count(); ++i) {
      const int64_t row = i / blocks, block = i % blocks;
      double scale = 0.5;
      if (draws) scale = (0.5 + args.uniform(name, static_cast<uint64_t>(i))) / (is_of_a ? kCodes : kCodes * of_sum);
      if (draws && is_of_a && row % 8 == 5 && block == 0) scale *= 1024;
      if (draws && is_of_a && row % 8 == 6 && block == 1) scale = 0;
      scales.set(i, scale);
    }
  }
}

}  // namespace

extern const Operator kFp8BlockGemm;
constexpr Operator kFp8BlockGemm{
    "fp8_block_gemm", "reduction", "d = (a scale_a) (b scale_b)^T, a scale for 128 columns of a, and 128 x 128 of b",
    "batch seq",      kAttrs,      kPasses,
    validate,         refine};

}  // namespace checkop
