// SPDX-License-Identifier: Apache-2.0
// Multiplies codes with scales for blocks of 128 terms, and draws them.
#include "fp8_product.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "base/error.hpp"
#include "identity.hpp"
#include "tensor_core.hpp"

namespace checkop::fp8_product {
namespace {

constexpr double kUnit = 0x1p-24, kLeastNormal = 0x1p-6;  // of fp32, of e4m3
/// Roundings of fp32 of a block: the product of two scales, that with the sum, and storing it.
constexpr double kOfScales = 3;

/// Rows as numbers, their squares, and the squares of the sizes as which they are aligned, if they are.
struct Rows {
  int64_t columns = 0;
  std::vector<double> value, square, aligned;

  void resize(int64_t rows, int64_t of_columns, bool aligns) {
    columns = of_columns;
    value.resize(static_cast<size_t>(rows * columns)), square.resize(value.size());
    aligned.resize(aligns ? value.size() : 0);
  }
  void decode(const ScaledCodes& from, int64_t row, int64_t to) {
    double* const numbers = value.data() + to * columns;
    double* const squares = square.data() + to * columns;
    from.decode(row, numbers, squares);
    for (int64_t k = 0; k < columns; ++k) {
      if (!aligned.empty()) aligned[static_cast<size_t>(to * columns + k)] = squares[k] * squares[k];
      squares[k] = numbers[k] * numbers[k];
    }
  }
  /// The squares that say what sums lose.
  const std::vector<double>& added() const { return aligned.empty() ? square : aligned; }
};

/// The unit of a sum of tensor cores: what is cut from an addend, or from the sum, is less than that times the largest
/// addend, or the sum.
double unit_of_sum(std::span<const double> attrs) { return std::ldexp(1.0, 1 - static_cast<int>(attrs[kAccBits])); }

/// Whether several products are added at once, so that they are aligned to the largest one.
bool aligns(std::span<const double> attrs) { return attrs[kAccTerms] > 1; }

/// What a block of 128 products may err by, in roundings of fp32 and relative to the size of its partial sums: every
/// addend of every addition loses less than 2^(1 - acc_bits) of the largest one.
double units_of_block(std::span<const double> attrs) {
  const double terms = attrs[kAccTerms], addends = (terms + 1) * std::ceil(kBlock / terms);
  return addends * unit_of_sum(attrs) / kUnit + kOfScales;
}

/// Sums of the products of a block for a tile of m x n elements, and what they may err by.
class BlockSums {
 public:
  explicit BlockSums(std::span<const double> attrs)
      : units_(units_of_block(attrs)),
        unit_(unit_of_sum(attrs)),
        terms_(static_cast<int64_t>(attrs[kAccTerms])),
        aligns_(fp8_product::aligns(attrs)) {}

  /// Multiplies columns [first, first + columns) of m rows of x and n of y.
  void multiply(int64_t m, int64_t n, const Rows& x, const Rows& y, int64_t first, int64_t columns) {
    sum.resize(static_cast<size_t>(m * n)), squares.resize(sum.size()), root_.resize(sum.size());
    const auto add = [&](const std::vector<double>& of_x, const std::vector<double>& of_y, int64_t k, int64_t terms,
                         double alpha, std::vector<double>& to) {
      dense_product(false, true, m, n, terms, of_x.data() + first + k, x.columns, of_y.data() + first + k, y.columns,
                    alpha, to.data(), n);
    };
    add(x.square, y.square, 0, columns, 0.0, squares);
    root_ = squares;
    if (aligns_) add(x.aligned, y.aligned, 0, columns, 0.0, root_);
    for (double& root : root_) root = std::sqrt(root);
    const int64_t step = aligns_ ? terms_ : columns;
    lost_.assign(sum.size(), 0.0);
    for (int64_t k = 0; k < columns; k += step) {
      // `sum` is still that of the instructions before.
      if (aligns_) add_lost_addends(k == 0);
      add(x.value, y.value, k, std::min(step, columns - k), k == 0 ? 0.0 : 1.0, sum);
      for (size_t i = 0; i < sum.size() && aligns_; ++i) lost_[i] += unit_ * (std::abs(sum[i]) + lost_[i]);
    }
  }

  /// The error of element i, in roundings of fp32.
  double rounding(size_t i) const {
    const double size = std::abs(sum[i]), any_order = units_ * (size + root_[i]);
    return std::max(any_order, lost_[i] / kUnit + kOfScales * (size + lost_[i]));
  }

  std::vector<double> sum, squares;  ///< of the products, as they are

 private:
  void add_lost_addends(bool is_first) {
    const double unit = unit_ * static_cast<double>(terms_);
    for (size_t i = 0; i < sum.size(); ++i) {
      const double before = is_first ? 0 : std::abs(sum[i]) + lost_[i];
      lost_[i] += unit * std::max(root_[i], before);
    }
  }

  double units_, unit_;
  int64_t terms_;
  bool aligns_;
  std::vector<double> root_, lost_;
};

/// Rows of x and of y that give sums of blocks of which tensor cores lose all: small products, each below the last
/// place of what it is added to, which cancels.
enum class Lost : uint8_t {
  no,
  beside_subnormal,  ///< every 32 codes have two products of +-2^-9 and 256, which count as 2^-6 and 256
  between,           ///< products of 256 and 256 in the first 32 codes of a block, of 256 and -256 in the last ones
};

Lost lost_of(int64_t row, bool of_rows) {
  const int64_t kind = row % 8;
  if (kind == (of_rows ? 7 : 4)) return Lost::beside_subnormal;
  return kind == (of_rows ? 4 : 6) ? Lost::between : Lost::no;
}

double number_of(Lost kind, int64_t k, bool of_rows) {
  constexpr int64_t kAtOnce = 32;
  const int64_t in_block = k % kBlock, at = k % kAtOnce;
  if (kind == Lost::between) {
    const bool is_first = in_block < kAtOnce, is_last = in_block >= kBlock - kAtOnce;
    return !is_first && !is_last ? 15 : is_last && !of_rows ? -256 : 256;
  }
  if (at < 2) return of_rows ? std::ldexp(at == 0 ? 1.0 : -1.0, -9) : 256;
  return of_rows ? 1.125 * 0x1p-5 : 7 * 0x1p-9;
}

/// Makes a code of every eighth row NaN, of either sign, the first one, the last one or one between; and in other rows
/// a scale, of every fourth row of scales if rows share them.
void plant_nan(Tensor& codes, Tensor& scales, bool of_rows) {
  constexpr std::array kNan{std::byte{0x7f}, std::byte{0xff}};
  const int64_t columns = codes.shape.back(), blocks = scales.shape.back();
  if (columns == 0) return;
  const int64_t rows = codes.count() / columns, of_scales = scales.count() / blocks;
  for (int64_t row = of_rows ? 2 : 3; row < rows; row += 8) {
    const int64_t kind = row / 8, column = kind % 3 == 0 ? 0 : kind % 3 == 1 ? columns - 1 : row * columns / rows;
    codes.bytes.data()[row * columns + column] = kNan[static_cast<size_t>(kind % 2)];
  }
  for (int64_t row = 1; row < of_scales; row += of_scales == rows ? 8 : 4)
    scales.set(row * blocks + row / 8 % blocks, std::numeric_limits<double>::quiet_NaN());
}

/// What the rows of an operand have that is not finite.
struct NotFinite {
  std::vector<char> not_finite, nan;  ///< 1: some number is not finite, some is NaN

  explicit NotFinite(const Tensor& rows) {
    const auto columns = static_cast<size_t>(rows.shape.back());
    const auto* const values = reinterpret_cast<const double*>(rows.bytes.data());
    for (int64_t r = 0; r < rows.shape.front(); ++r) {
      const std::span row(values + static_cast<size_t>(r) * columns, columns);
      not_finite.push_back(std::all_of(row.begin(), row.end(), [](double x) { return std::isfinite(x); }) ? 0 : 1);
      nan.push_back(std::any_of(row.begin(), row.end(), [](double x) { return std::isnan(x); }) ? 1 : 0);
    }
  }
};

/// Sets rows of fp64 numbers to 0.
void clear_rows(Tensor& rows, const std::vector<char>& cleared) {
  const size_t bytes = static_cast<size_t>(rows.shape.back()) * sizeof(double);
  for (size_t r = 0; r < cleared.size(); ++r)
    if (cleared[r] != 0) std::memset(rows.bytes.data() + r * bytes, 0, bytes);
}

/// Emits the residuals "nan" of rows of output `output`, from `first_row` on, which are products of the rows of x with
/// those of y. If y has rows that are not finite, returns the rows of the output with 0 in their columns.
std::optional<Tensor> check_nan(const IdentityArgs& args, int output, int64_t first_row, const NotFinite& in_x,
                                const NotFinite& in_y) {
  const Tensor& out = *args.out(output);
  const int64_t rows = std::ssize(in_x.not_finite), n = std::ssize(in_y.not_finite);
  std::optional<Tensor> cleared;
  if (std::find(in_y.not_finite.begin(), in_y.not_finite.end(), 1) != in_y.not_finite.end())
    cleared.emplace(out.name, out.dtype, std::vector<int64_t>{rows, n});
  args.parallel_for(rows, [&](int64_t r) {
    static thread_local std::vector<double> got;
    got.resize(static_cast<size_t>(n));
    decode_row(out, first_row + r, got);
    const auto row = static_cast<size_t>(r);
    int64_t wrong = 0;
    for (size_t j = 0; j < got.size(); ++j) {
      const bool must_be = in_x.nan[row] != 0 || in_y.nan[j] != 0;
      const bool may_be = in_x.not_finite[row] != 0 || in_y.not_finite[j] != 0;
      wrong += std::isnan(got[j]) ? !may_be : must_be;
      if (in_y.not_finite[j] != 0) got[j] = 0;
    }
    args.sink({"nan", output, first_row + r, static_cast<double>(wrong), 0, 0, 0});
    if (cleared) encode_row(*cleared, r, got);
  });
  return cleared;
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
  static thread_local std::vector<double> aligned;
  aligned.resize(static_cast<size_t>(columns));
  decode(row, to, aligned.data());
}

void ScaledCodes::decode(int64_t row, double* to, double* aligned) const {
  static thread_local std::vector<double> factors;
  factors.resize(static_cast<size_t>(scales.shape.back()));
  decode_row(scales, first_scale_row + row / rows_of_scale, factors);
  const std::byte* const from = codes.bytes.data() + (first_row + row) * codes.shape.back() + first_column;
  info(codes.dtype).decode(from, to, static_cast<size_t>(columns));
  for (int64_t k = 0; k < columns; ++k) {
    const double factor = factors[static_cast<size_t>((first_column + k) / kBlock)];
    aligned[k] = to[k] == 0 ? 0 : std::abs(factor) * std::max(kLeastNormal, std::abs(to[k]));
    to[k] *= factor;
  }
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
  const bool aligned = aligns(args.attrs);
  Rows of_x;
  std::vector<double> value, magnitude, rounding;
  for (int64_t first = 0; first < std::ssize(rows); first += kTileRows) {
    const int64_t m = std::min(kTileRows, std::ssize(rows) - first);
    of_x.resize(m, k_dim, aligned);
    for (int64_t r = 0; r < m; ++r) of_x.decode(x, rows[static_cast<size_t>(first + r)], r);
    for (auto* array : {&value, &magnitude, &rounding}) array->assign(static_cast<size_t>(m * n_dim), 0.0);
    args.parallel_for((n_dim + kTileColumns - 1) / kTileColumns, [&](int64_t task) {
      static thread_local Rows of_y;
      const int64_t column = task * kTileColumns, n = std::min(kTileColumns, n_dim - column);
      of_y.resize(n, k_dim, aligned);
      for (int64_t j = 0; j < n; ++j) of_y.decode(y, column + j, j);
      BlockSums block(args.attrs);
      for (int64_t k = 0; k < k_dim; k += kBlock) {
        block.multiply(m, n, of_x, of_y, k, std::min(kBlock, k_dim - k));
        for (int64_t i = 0; i < m * n; ++i) {
          const auto from = static_cast<size_t>(i), to = static_cast<size_t>(i / n * n_dim + column + i % n);
          value[to] += block.sum[from], magnitude[to] += block.squares[from], rounding[to] += block.rounding(from);
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

void check_product(const IdentityArgs& args, int output, int64_t first_row, int64_t rows, const ScaledCodes& x,
                   const ScaledCodes& y, int64_t n) {
  constexpr double kDeviations = 7;
  const bool aligned = aligns(args.attrs);
  const int64_t columns = y.columns;
  Tensor of_x = x.dequantised(args, rows), of_y = y.dequantised(args, n);
  const NotFinite in_x(of_x), in_y(of_y);
  clear_rows(of_x, in_x.not_finite), clear_rows(of_y, in_y.not_finite);
  std::vector<double> norms(static_cast<size_t>(columns));
  Rows row;
  row.resize(1, columns, aligned);
  for (int64_t j = 0; j < n; ++j) {
    if (in_y.not_finite[static_cast<size_t>(j)] != 0) continue;
    row.decode(y, j, 0);
    for (size_t k = 0; k < norms.size(); ++k) norms[k] += row.added()[k];
  }
  for (double& norm : norms) norm = std::sqrt(norm);
  const double units = kDeviations * units_of_block(args.attrs);
  IdentityArgs part = args;
  const std::optional<Tensor> cleared = check_nan(args, output, first_row, in_x, in_y);
  std::vector<const Tensor*> outputs(args.outputs.begin(), args.outputs.end());
  if (cleared) outputs[static_cast<size_t>(output)] = &*cleared;
  const int64_t first_of_part = cleared ? 0 : first_row;
  part.outputs = outputs;
  part.sink = [&](Residual residual) {
    const int64_t own_row = residual.row - first_of_part;
    if (in_x.not_finite[static_cast<size_t>(own_row)] != 0) return;
    static thread_local Rows own;
    own.resize(1, columns, aligned);
    own.decode(x, own_row, 0);
    double size = 0;
    for (size_t k = 0; k < norms.size(); ++k) size += std::sqrt(own.added()[k]) * norms[k];
    residual.row = first_row + own_row;
    residual.rounding += units * size;
    args.sink(residual);
  };
  checkop::check_product(part, output, {&of_x, rows, columns}, {&of_y, n, columns, true}, nullptr, first_of_part);
}

void draw(const FillArgs& args, std::string_view codes_name, std::string_view scales_name, int64_t terms,
          bool of_rows) {
  constexpr double kCodes = 128;
  constexpr int64_t kSmallRow = 3;
  constexpr int kSubnormal = 14;  // 128 2^-14 is half the least normal number
  const bool draws = args.mode == InputMode::random || args.mode == InputMode::extreme;
  Tensor &codes = *args.find(codes_name), &scales = *args.find(scales_name);
  const int64_t columns = codes.shape.back(), blocks = scales.shape.back();
  std::vector<double> values(static_cast<size_t>(columns));
  for (int64_t row = 0; row * columns < codes.count() && draws; ++row) {
    const double factor = std::ldexp(kCodes, of_rows && row % 8 == kSmallRow ? -kSubnormal : 0);
    const Lost lost = lost_of(row, of_rows);
    decode_row(codes, row, values);
    for (double& x : values) x = factor * (row % 2 == 1 ? std::abs(x) : x);
    for (int64_t k = 0; k < columns && lost != Lost::no; ++k)
      values[static_cast<size_t>(k)] = number_of(lost, k, of_rows);
    encode_row(codes, row, values);
  }
  const double divisor = kCodes * std::sqrt(static_cast<double>(terms));
  for (int64_t i = 0; i < scales.count(); ++i) {
    const int64_t row = i / blocks, block = i % blocks;
    double scale = 0.5;
    if (draws) scale = (0.5 + args.uniform(scales_name, static_cast<uint64_t>(i))) / divisor;
    const bool is_small = row % 8 == kSmallRow || lost_of(row, of_rows) == Lost::beside_subnormal;
    if (draws && of_rows && is_small) scale = std::ldexp(scale, kSubnormal);
    if (draws && of_rows && row % 8 == 5 && block == 0) scale *= 1024;
    if (draws && of_rows && row % 8 == 6 && block == 1) scale = 0;
    scales.set(i, scale);
  }
  if (args.mode == InputMode::extreme) plant_nan(codes, scales, of_rows);
}

}  // namespace checkop::fp8_product
