// SPDX-License-Identifier: Apache-2.0
// Models tensor core blocks: one element at a time in integer arithmetic, and many at a time where fp32 gives the same
// bits.
#include "tensor_core.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "row_groups.hpp"

namespace checkop {
namespace {

/// The adder of an architecture: adds `width` products and the accumulator at once, keeps `fraction` bits below the
/// largest exponent, and `precision` bits of the sum.
struct Unit {
  size_t width;
  int fraction, precision;
};
constexpr Unit kSm90{static_cast<size_t>(kTensorCoreBlock), 25, 24};
constexpr Unit kSm90Codes{static_cast<size_t>(kTensorCoreCodes), 13, 14};
constexpr Unit kSm80{8, 24, 24};
constexpr size_t kMostProducts = kSm90Codes.width;

constexpr int64_t kTileColumns = 64;             // columns per task: a block's part of them stays in the L1 cache
constexpr int64_t kRows = 256;                   // rows whose accumulators stay in the L2 cache
constexpr int64_t kDepth = 1024;                 // depth of y that is decoded at once
constexpr int64_t kElements = int64_t{1} << 24;  // elements of x (128 MiB when decoded) and of results at once
constexpr uint32_t kNan = 0x7fffffff;

int64_t products_of_block(DType factors) { return factors == DType::e4m3 ? kTensorCoreCodes : kTensorCoreBlock; }

// Exponents that mark zero, and infinity or NaN. The sum with any other exponent still shows the mark.
constexpr int kZero = -10000, kSpecial = 12000;

/// fp16, bf16 or e4m3: |value| = significand * 2^(exponent - fraction).
struct Format {
  int fraction, bias, sign;
  int top;      ///< the size of infinity, or of the largest number of e4m3
  int special;  ///< infinities and NaN begin here

  explicit Format(DType dtype)
      : fraction(info(dtype).precision - 1),
        bias(1 - info(dtype).min_exponent),
        sign(static_cast<int>(info(dtype).sign)),
        top(static_cast<int>(info(dtype).top)),
        special(dtype == DType::e4m3 ? top + 1 : top) {}

  struct Number {
    int significand;  ///< includes the sign
    int exponent;     ///< kZero for 0, kSpecial for infinities and NaN
  };
  Number split(uint16_t bits) const {
    const int size = bits & (sign - 1), field = size >> fraction, low = size & ((1 << fraction) - 1);
    const int significand = field == 0 ? low : low | 1 << fraction;
    return {(bits & sign) != 0 ? -significand : significand, size >= special    ? kSpecial
                                                             : significand == 0 ? kZero
                                                                                : std::max(field, 1) - bias};
  }
  float value(uint16_t bits) const {
    const Number number = split(bits);
    if (number.exponent != kSpecial)
      return std::ldexp(static_cast<float>(number.significand), number.exponent - fraction);
    if ((bits & (sign - 1)) > top) return std::numeric_limits<float>::quiet_NaN();
    return (bits & sign) != 0 ? -INFINITY : INFINITY;
  }
};

/// A finite fp32 number: |value| = significand * 2^(exponent - 23).
struct Accumulator {
  int significand, exponent;

  explicit Accumulator(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const int field = static_cast<int>(bits >> 23 & 0xff), low = static_cast<int>(bits & 0x7fffff);
    const int size = field == 0 ? low : low | 0x800000;
    significand = (bits >> 31) != 0 ? -size : size;
    exponent = size == 0 ? kZero : std::max(field, 1) - 127;
  }
};

/// significand * 2^shift / 2^drop, truncated toward zero.
int aligned(int significand, int shift, int drop) {
  const int size = (significand < 0 ? -significand : significand) << shift >> std::min(drop, 31);
  return significand < 0 ? -size : size;
}

/// 2^exponent for a normal double.
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(std::max(exponent, -1022) + 1023) << 52);
}

/// Truncates a double to `precision` significand bits.
double cut_normal(double exact, int precision) {
  const uint64_t dropped = (uint64_t{1} << (53 - precision)) - 1;
  return std::bit_cast<double>(std::bit_cast<uint64_t>(exact) & ~dropped);
}

/// `exact` truncated toward zero to fp32 with `precision` significand bits; infinite beyond its range.
float cut(double exact, int precision) {
  if (!(std::abs(exact) < 0x1p-126)) return static_cast<float>(cut_normal(exact, precision));
  const int least = -125 - precision;
  return std::ldexp(static_cast<float>(static_cast<int>(std::ldexp(exact, -least))), least);
}

/// The block's result if an operand or the accumulator is infinite or NaN: the sum of IEEE 754, with a single NaN
/// pattern.
float special_block(const Unit& unit, const Format& format, const uint16_t* x, const uint16_t* y, float accumulator) {
  double sum = accumulator;  // infinite, NaN, or irrelevant
  for (size_t i = 0; i < unit.width; ++i) {
    if (format.split(x[i]).exponent != kSpecial && format.split(y[i]).exponent != kSpecial) continue;
    sum += static_cast<double>(format.value(x[i])) * static_cast<double>(format.value(y[i]));
  }
  return std::isnan(sum) ? std::bit_cast<float>(kNan) : static_cast<float>(sum);
}

float block(const Unit& unit, const Format& format, const uint16_t* x, const uint16_t* y, float accumulator) {
  const Accumulator before(accumulator);
  std::array<int, kMostProducts> product, exponent;
  int top = before.exponent;
  bool special = !std::isfinite(accumulator);
  for (size_t i = 0; i < unit.width; ++i) {
    const Format::Number a = format.split(x[i]), b = format.split(y[i]);
    special |= a.exponent == kSpecial || b.exponent == kSpecial;
    product[i] = a.significand * b.significand;
    exponent[i] = a.exponent + b.exponent;
    top = std::max(top, exponent[i]);
  }
  if (special) return special_block(unit, format, x, y, accumulator);
  const int finer = std::max(unit.fraction - 23, 0), coarser = std::max(23 - unit.fraction, 0);
  double sum = aligned(before.significand, finer, top - before.exponent + coarser);
  for (size_t i = 0; i < unit.width; ++i) {
    sum += aligned(product[i], unit.fraction - 2 * format.fraction, top - exponent[i]);
  }
  return cut(sum * power_of_two(top - unit.fraction), unit.precision);
}

// --- Many elements at a time -----------------------------------------------------------------------------------------

/// Decoded elements of an operand. K is padded with zeros.
struct Elements {
  std::vector<float> value;
  std::vector<int16_t> exponent;
  std::vector<uint16_t> bits;
  std::vector<float> scale;  ///< of a row of x: for every kScaledCodes codes; empty if there are no scales

  void resize(int64_t count) {
    value.assign(static_cast<size_t>(count), 0);
    exponent.assign(static_cast<size_t>(count), kZero);
    bits.assign(static_cast<size_t>(count), 0);
  }
  void set(const Format& format, size_t at, uint16_t stored) {
    value[at] = format.value(stored);
    exponent[at] = static_cast<int16_t>(format.split(stored).exponent);
    bits[at] = stored;
  }
};

using Accumulators = std::array<float, kTileColumns>;

/// The position of a block: in a row of x, and in kTileColumns columns of y with layout [k, kTileColumns].
struct Place {
  const Elements &x, &y;
  size_t x_at, y_at;  ///< indices in k
};

/// Adds the products at `place`. A product is exact in fp32, and so is its multiple by a power of two; the
/// conversion to an integer truncates it. Returns false, and changes nothing, for infinities and NaN, and for exponents
/// so extreme that a product could underflow but still count, or a sum could overflow.
template <Unit unit>
bool fast_block(const Place& place, Accumulators& accumulators) {
  constexpr int kLeast = -90, kMost = 120;
  constexpr size_t n = kTileColumns;
  std::array<int16_t, n> top;
  for (size_t j = 0; j < n; ++j) {
    const int bits = std::bit_cast<int>(accumulators[j]) & 0x7fffffff;
    top[j] = static_cast<int16_t>(bits == 0 ? kZero : std::max(bits >> 23, 1) - 127);
  }
  for (size_t i = 0; i < unit.width; ++i) {
    const int16_t own = place.x.exponent[place.x_at + i];
    const int16_t* const exponent = &place.y.exponent[(place.y_at + i) * n];
    for (size_t j = 0; j < n; ++j) top[j] = std::max(top[j], static_cast<int16_t>(own + exponent[j]));
  }
  int misfits = 0;
  std::array<float, n> scale;
  for (size_t j = 0; j < n; ++j) {
    const int exponent = std::max<int>(top[j], kLeast), all_zero = top[j] < kZero / 2;
    misfits += (exponent != top[j] && all_zero == 0) | (exponent > kMost);
    scale[j] = std::bit_cast<float>(static_cast<uint32_t>(127 + unit.fraction - exponent) << 23);
  }
  if (misfits > 0) return false;
  // Two sums, because 16 products, each below 2^27, and the accumulator, below 2^26, could overflow an int. Those of
  // codes are below 2^15.
  std::array<int, n> low, high{};
  for (size_t j = 0; j < n; ++j) low[j] = static_cast<int>(accumulators[j] * scale[j]);
  for (size_t i = 0; i < unit.width; ++i) {
    const float factor = place.x.value[place.x_at + i];
    const float* const value = &place.y.value[(place.y_at + i) * n];
    std::array<int, n>& sum = i < 8 ? low : high;
    for (size_t j = 0; j < n; ++j) sum[j] += static_cast<int>(factor * value[j] * scale[j]);
  }
  for (size_t j = 0; j < n; ++j) {
    const double sum = static_cast<double>(low[j]) + static_cast<double>(high[j]);
    accumulators[j] = static_cast<float>(cut_normal(sum / static_cast<double>(scale[j]), unit.precision));
  }
  return true;
}

/// The same for any operands and accumulators.
void any_block(const Unit& unit, const Format& format, const Place& place, Accumulators& accumulators) {
  for (size_t j = 0; j < kTileColumns; ++j) {
    std::array<uint16_t, kMostProducts> column;
    for (size_t i = 0; i < unit.width; ++i) column[i] = place.y.bits[(place.y_at + i) * kTileColumns + j];
    accumulators[j] = block(unit, format, &place.x.bits[place.x_at], column.data(), accumulators[j]);
  }
}

template <Unit unit>
void add_block(const Format& format, const Place& place, Accumulators& accumulators) {
  if (!fast_block<unit>(place, accumulators)) any_block(unit, format, place, accumulators);
}

/// Adds `count` products, `width` at a time.
void add_products(int64_t count, int64_t width, const Format& format, const Place& place, Accumulators& accumulators) {
  for (size_t i = 0; i < static_cast<size_t>(count); i += static_cast<size_t>(width)) {
    const Place at{place.x, place.y, place.x_at + i, place.y_at + i};
    if (width == 1) {
      const float factor = at.x.value[at.x_at];
      const float* const value = &at.y.value[at.y_at * kTileColumns];
      for (size_t j = 0; j < kTileColumns; ++j) accumulators[j] = std::fma(factor, value[j], accumulators[j]);
    } else if (width == kTensorCoreCodes) {
      add_block<kSm90Codes>(format, at, accumulators);
    } else if (width == kTensorCoreBlock) {
      add_block<kSm90>(format, at, accumulators);
    } else {
      add_block<kSm80>(format, at, accumulators);
    }
  }
}

uint16_t stored_bits(const Tensor& tensor, int64_t index) {
  if (tensor.dtype == DType::e4m3) return std::to_integer<uint16_t>(tensor.bytes.data()[index]);
  uint16_t bits;
  std::memcpy(&bits, tensor.bytes.data() + static_cast<size_t>(index) * sizeof bits, sizeof bits);
  return bits;
}

std::vector<float> decoded(DType dtype, const std::byte* stored, size_t n) {
  std::vector<double> values(n);
  info(dtype).decode(stored, values.data(), n);
  return {values.begin(), values.end()};
}

void round_to(DType dtype, Accumulators& values) {
  const std::vector<double> wide(values.begin(), values.end());
  std::array<std::byte, kTileColumns * sizeof(uint16_t)> stored;
  info(dtype).encode(wide.data(), stored.data(), wide.size());
  std::ranges::copy(decoded(dtype, stored.data(), wide.size()), values.begin());
}

/// An operand as it is used: transposed if it says so.
struct View {
  const Factor& factor;

  int64_t rows() const { return factor.transposed ? factor.columns : factor.rows; }
  int64_t columns() const { return factor.transposed ? factor.rows : factor.columns; }
  uint16_t bits(int64_t row, int64_t column) const {
    if (factor.transposed) std::swap(row, column);
    return stored_bits(*factor.tensor, (factor.first_row + row) * factor.columns + column);
  }
};

/// The scales of `row` of an operand.
std::vector<float> scales_of(const CodeScales& scales, int64_t row) {
  const int64_t blocks = scales.tensor->shape.back();
  std::vector<float> of_row(static_cast<size_t>(blocks));
  std::memcpy(of_row.data(),
              scales.tensor->bytes.data() +
                  static_cast<size_t>((scales.first_row + row / scales.rows_of_scale) * blocks) * sizeof(float),
              of_row.size() * sizeof(float));
  return of_row;
}

/// sums = fma(scale_x * scale_y, of_block, sums) for the `block`-th kScaledCodes codes.
void add_scaled(const Accumulators& of_block, float scale_x, const std::vector<std::vector<float>>& scales_y,
                size_t block, Accumulators& sums) {
  for (size_t j = 0; j < scales_y.size(); ++j) sums[j] = std::fma(scale_x * scales_y[j][block], of_block[j], sums[j]);
}

/// Computes x * y for the rows `xs` and the `width` columns of y from `first` on.
std::vector<Accumulators> tile(const ModelOrder& order, const std::vector<Elements>& xs, const View& y,
                               const CodeScales* scales, int64_t first, int64_t width) {
  const DType dtype = y.factor.tensor->dtype;
  const Format format(dtype);
  const int64_t k = y.rows(), step = products_of_block(dtype), blocks = (k + step - 1) / step;
  // A run has whole groups; each group of codes that share a scale has accumulators of its own.
  const int64_t scaled = scales == nullptr ? 1 : kScaledCodes / step, groups = (blocks + scaled - 1) / scaled;
  const int64_t run = scaled * std::max<int64_t>(1, (groups + order.parts - 1) / order.parts);
  const int64_t chain = scales == nullptr ? run : scaled;
  std::vector<std::vector<float>> scales_y;
  for (int64_t j = 0; j < width && scales != nullptr; ++j) scales_y.push_back(scales_of(*scales, first + j));
  Elements ys;
  std::vector<Accumulators> sums(xs.size(), Accumulators{}), accumulators = sums, scaled_sums = sums;
  std::vector<Accumulators>& part = scales == nullptr ? accumulators : scaled_sums;
  for (int64_t at = 0; at < blocks; ++at) {
    const int64_t begin = at * step, taken = begin / kDepth * kDepth;
    if (begin == taken) {
      ys.resize(kDepth * kTileColumns);
      for (int64_t i = taken; i < std::min(k, taken + kDepth); ++i) {
        for (int64_t j = 0; j < width; ++j)
          ys.set(format, static_cast<size_t>((i - taken) * kTileColumns + j), y.bits(i, first + j));
      }
    }
    const auto ends = [&](int64_t length) { return at + 1 == blocks || (at + 1) % length == 0; };
    if (at % run == 0) part.assign(xs.size(), Accumulators{});
    if (at % chain == 0) accumulators.assign(xs.size(), Accumulators{});
    for (size_t r = 0; r < xs.size(); ++r) {
      const Place place{xs[r], ys, static_cast<size_t>(begin), static_cast<size_t>(begin - taken)};
      add_products(step, order.width, format, place, accumulators[r]);
      const auto group = static_cast<size_t>(at / scaled);
      if (scales != nullptr && ends(chain)) add_scaled(accumulators[r], xs[r].scale[group], scales_y, group, part[r]);
    }
    if (!ends(run)) continue;
    for (size_t r = 0; r < xs.size(); ++r) {
      if (order.narrow) round_to(dtype, part[r]);
      for (size_t j = 0; j < kTileColumns; ++j) sums[r][j] = at < run ? part[r][j] : sums[r][j] + part[r][j];
    }
  }
  return sums;
}

}  // namespace

float tensor_core_block(DType factors, const uint16_t* x, const uint16_t* y, float accumulator) {
  return block(kSm90, Format(factors), x, y, accumulator);
}

float tensor_core_code_block(const uint8_t* x, const uint8_t* y, float accumulator) {
  std::array<uint16_t, kSm90Codes.width> wide_x, wide_y;
  std::copy_n(x, wide_x.size(), wide_x.begin()), std::copy_n(y, wide_y.size(), wide_y.begin());
  return block(kSm90Codes, Format(DType::e4m3), wide_x.data(), wide_y.data(), accumulator);
}

void emit_tensor_core_product(const ModelArgs& args, int index, const Factor& x, const Factor& y, const Tensor* bias,
                              const ProductScales* scales) {
  const Format format(x.tensor->dtype);
  const View left{x}, right{y};
  const int64_t k = left.columns(), n = right.columns(), block = products_of_block(x.tensor->dtype);
  const int64_t depth = (k + block - 1) / block * block;
  const RowSet& chosen = args.rows(index);
  const int64_t total = chosen.count(left.rows()),
                step = std::clamp<int64_t>(kElements / std::max({n, depth, int64_t{1}}), 1, kRows);
  const CodeScales* const scales_y = scales == nullptr ? nullptr : &scales->y;
  std::vector<float> added(static_cast<size_t>(n), 0.0f);
  if (bias != nullptr) added = decoded(bias->dtype, bias->bytes.data(), added.size());
  for (int64_t row = 0; row < total; row += step) {
    const int64_t rows = std::min(step, total - row);
    std::vector<Elements> xs(static_cast<size_t>(rows));
    args.parallel_for(rows, [&](int64_t r) {
      Elements& own = xs[static_cast<size_t>(r)];
      own.resize(depth);
      for (int64_t i = 0; i < k; ++i) own.set(format, static_cast<size_t>(i), left.bits(chosen.at(row + r), i));
      if (scales != nullptr) own.scale = scales_of(scales->x, chosen.at(row + r));
    });
    std::vector<float> values(static_cast<size_t>(rows * n));
    args.parallel_for((n + kTileColumns - 1) / kTileColumns, [&](int64_t task) {
      const int64_t first = task * kTileColumns, width = std::min(kTileColumns, n - first);
      const std::vector<Accumulators> sums = tile(args.order, xs, right, scales_y, first, width);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = 0; j < width; ++j) {
          const float sum = sums[static_cast<size_t>(r)][static_cast<size_t>(j)];
          values[static_cast<size_t>(r * n + first + j)] =
              bias == nullptr ? sum : sum + added[static_cast<size_t>(first + j)];
        }
      }
    });
    for (int64_t r = 0; r < rows; ++r) args.sink(index, chosen.at(row + r), values.data() + r * n);
  }
}

void emit_tensor_core_part(const ModelArgs& args, int index, int64_t first, const Factor& x, const Factor& y,
                           const ProductScales* scales) {
  std::vector<RowSet> own(args.row_sets.size(), RowSet{false, {}});
  own[static_cast<size_t>(index)] = {false, rows_within(args.rows(index), first, View{x}.rows())};
  ModelArgs part = args;
  part.row_sets = own;
  part.sink = [&](int output, int64_t row, const float* values) { args.sink(output, first + row, values); };
  emit_tensor_core_product(part, index, x, y, nullptr, scales);
}

}  // namespace checkop
