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

namespace checkop {
namespace {

/// The adder of an architecture: adds `width` products and the accumulator at once, and keeps `fraction` bits below the
/// largest exponent.
struct Unit {
  size_t width;
  int fraction;
};
constexpr Unit kSm90{static_cast<size_t>(kTensorCoreBlock), 25};
constexpr Unit kSm80{8, 24};

constexpr int64_t kTileColumns = 64;             // columns per task: a block's part of them stays in the L1 cache
constexpr int64_t kRows = 256;                   // rows whose accumulators stay in the L2 cache
constexpr int64_t kDepth = 1024;                 // depth of y that is decoded at once
constexpr int64_t kElements = int64_t{1} << 24;  // elements of x (128 MiB when decoded) and of results at once
constexpr uint32_t kNan = 0x7fffffff;

// Exponents that mark zero, and infinity or NaN. The sum with any other exponent still shows the mark.
constexpr int kZero = -10000, kSpecial = 12000;

/// fp16 or bf16: |value| = significand * 2^(exponent - fraction).
struct Format {
  int fraction, bias, exponent_mask;

  explicit Format(DType dtype)
      : fraction(info(dtype).precision - 1),
        bias(1 - info(dtype).min_exponent),
        exponent_mask((1 << (15 - fraction)) - 1) {}

  struct Number {
    int significand;  ///< includes the sign
    int exponent;     ///< kZero for 0, kSpecial for infinities and NaN
  };
  Number split(uint16_t bits) const {
    const int field = bits >> fraction & exponent_mask, low = bits & ((1 << fraction) - 1);
    const int size = field == 0 ? low : low | 1 << fraction;
    return {(bits & 0x8000) != 0 ? -size : size, field == exponent_mask ? kSpecial
                                                 : size == 0            ? kZero
                                                                        : std::max(field, 1) - bias};
  }
  float value(uint16_t bits) const {
    const Number number = split(bits);
    if (number.exponent != kSpecial)
      return std::ldexp(static_cast<float>(number.significand), number.exponent - fraction);
    if ((bits & ((1 << fraction) - 1)) != 0) return std::numeric_limits<float>::quiet_NaN();
    return (bits & 0x8000) != 0 ? -INFINITY : INFINITY;
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

/// Truncates a double to the 24 significand bits of a normal fp32 number.
double cut_normal(double exact) {
  constexpr uint64_t kDropped = (uint64_t{1} << (53 - 24)) - 1;
  return std::bit_cast<double>(std::bit_cast<uint64_t>(exact) & ~kDropped);
}

/// `exact` truncated toward zero to fp32; infinite beyond its range.
float cut(double exact) {
  if (std::abs(exact) < 0x1p-126) return static_cast<float>(static_cast<int>(exact * 0x1p149)) * 0x1p-149f;
  return static_cast<float>(cut_normal(exact));
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
  std::array<int, kTensorCoreBlock> product, exponent;
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
  double sum = aligned(before.significand, unit.fraction - 23, top - before.exponent);
  for (size_t i = 0; i < unit.width; ++i) {
    sum += aligned(product[i], unit.fraction - 2 * format.fraction, top - exponent[i]);
  }
  return cut(sum * power_of_two(top - unit.fraction));
}

// --- Many elements at a time -----------------------------------------------------------------------------------------

/// Decoded elements of an operand. K is padded with zeros.
struct Elements {
  std::vector<float> value;
  std::vector<int16_t> exponent;
  std::vector<uint16_t> bits;

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

/// Adds the `width` products at `place`. A product is exact in fp32, and so is its multiple by a power of two; the
/// conversion to an integer truncates it. Returns false, and changes nothing, for infinities and NaN, and for exponents
/// so extreme that a product could underflow but still count, or a sum could overflow.
template <size_t width, int fraction>
bool fast_block(const Place& place, Accumulators& accumulators) {
  constexpr int kLeast = -90, kMost = 120;
  constexpr size_t n = kTileColumns;
  std::array<int16_t, n> top;
  for (size_t j = 0; j < n; ++j) {
    const int bits = std::bit_cast<int>(accumulators[j]) & 0x7fffffff;
    top[j] = static_cast<int16_t>(bits == 0 ? kZero : std::max(bits >> 23, 1) - 127);
  }
  for (size_t i = 0; i < width; ++i) {
    const int16_t own = place.x.exponent[place.x_at + i];
    const int16_t* const exponent = &place.y.exponent[(place.y_at + i) * n];
    for (size_t j = 0; j < n; ++j) top[j] = std::max(top[j], static_cast<int16_t>(own + exponent[j]));
  }
  int misfits = 0;
  std::array<float, n> scale;
  for (size_t j = 0; j < n; ++j) {
    const int exponent = std::max<int>(top[j], kLeast), all_zero = top[j] < kZero / 2;
    misfits += (exponent != top[j] && all_zero == 0) | (exponent > kMost);
    scale[j] = std::bit_cast<float>(static_cast<uint32_t>(127 + fraction - exponent) << 23);
  }
  if (misfits > 0) return false;
  // Two sums, because 16 products, each below 2^27, and the accumulator, below 2^26, could overflow an int.
  std::array<int, n> low, high{};
  for (size_t j = 0; j < n; ++j) low[j] = static_cast<int>(accumulators[j] * scale[j]);
  for (size_t i = 0; i < width; ++i) {
    const float factor = place.x.value[place.x_at + i];
    const float* const value = &place.y.value[(place.y_at + i) * n];
    std::array<int, n>& sum = i < 8 ? low : high;
    for (size_t j = 0; j < n; ++j) sum[j] += static_cast<int>(factor * value[j] * scale[j]);
  }
  for (size_t j = 0; j < n; ++j) {
    const double sum = static_cast<double>(low[j]) + static_cast<double>(high[j]);
    accumulators[j] = static_cast<float>(cut_normal(sum / static_cast<double>(scale[j])));
  }
  return true;
}

/// The same for any operands and accumulators.
void any_block(const Unit& unit, const Format& format, const Place& place, Accumulators& accumulators) {
  for (size_t j = 0; j < kTileColumns; ++j) {
    std::array<uint16_t, kTensorCoreBlock> column;
    for (size_t i = 0; i < unit.width; ++i) column[i] = place.y.bits[(place.y_at + i) * kTileColumns + j];
    accumulators[j] = block(unit, format, &place.x.bits[place.x_at], column.data(), accumulators[j]);
  }
}

/// Adds kTensorCoreBlock products, `width` at a time.
void add_block(int64_t width, const Format& format, const Place& place, Accumulators& accumulators) {
  if (width == kTensorCoreBlock) {
    if (!fast_block<kSm90.width, kSm90.fraction>(place, accumulators)) any_block(kSm90, format, place, accumulators);
    return;
  }
  for (size_t i = 0; i < kTensorCoreBlock; i += static_cast<size_t>(width)) {
    const Place at{place.x, place.y, place.x_at + i, place.y_at + i};
    if (width == 1) {
      const float factor = at.x.value[at.x_at];
      const float* const value = &at.y.value[at.y_at * kTileColumns];
      for (size_t j = 0; j < kTileColumns; ++j) accumulators[j] = std::fma(factor, value[j], accumulators[j]);
    } else if (!fast_block<kSm80.width, kSm80.fraction>(at, accumulators)) {
      any_block(kSm80, format, at, accumulators);
    }
  }
}

uint16_t stored_bits(const Tensor& tensor, int64_t index) {
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

/// Computes x * y for the rows `xs` and the `width` columns of y from `first` on.
std::vector<Accumulators> tile(const ModelOrder& order, DType dtype, const std::vector<Elements>& xs, const View& y,
                               int64_t first, int64_t width) {
  const Format format(dtype);
  const int64_t k = y.rows(), blocks = (k + kTensorCoreBlock - 1) / kTensorCoreBlock;
  const int64_t run = std::max<int64_t>(1, (blocks + order.parts - 1) / order.parts);
  Elements ys;
  std::vector<Accumulators> sums(xs.size(), Accumulators{}), part = sums;
  for (int64_t at = 0; at < blocks; ++at) {
    const int64_t begin = at * kTensorCoreBlock, taken = begin / kDepth * kDepth;
    if (begin == taken) {
      ys.resize(kDepth * kTileColumns);
      for (int64_t i = taken; i < std::min(k, taken + kDepth); ++i) {
        for (int64_t j = 0; j < width; ++j)
          ys.set(format, static_cast<size_t>((i - taken) * kTileColumns + j), y.bits(i, first + j));
      }
    }
    if (at % run == 0) part.assign(xs.size(), Accumulators{});
    for (size_t r = 0; r < xs.size(); ++r)
      add_block(order.width, format, {xs[r], ys, static_cast<size_t>(begin), static_cast<size_t>(begin - taken)},
                part[r]);
    if (at + 1 < blocks && (at + 1) % run != 0) continue;
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

void emit_tensor_core_product(const ModelArgs& args, int index, const Factor& x, const Factor& y, const Tensor* bias) {
  const DType dtype = x.tensor->dtype;
  const Format format(dtype);
  const View left{x}, right{y};
  const int64_t k = left.columns(), n = right.columns();
  const int64_t depth = (k + kTensorCoreBlock - 1) / kTensorCoreBlock * kTensorCoreBlock;
  const RowSet& chosen = args.rows(index);
  const int64_t total = chosen.count(left.rows()),
                step = std::clamp<int64_t>(kElements / std::max({n, depth, int64_t{1}}), 1, kRows);
  std::vector<float> added(static_cast<size_t>(n), 0.0f);
  if (bias != nullptr) added = decoded(bias->dtype, bias->bytes.data(), added.size());
  for (int64_t row = 0; row < total; row += step) {
    const int64_t rows = std::min(step, total - row);
    std::vector<Elements> xs(static_cast<size_t>(rows));
    args.parallel_for(rows, [&](int64_t r) {
      Elements& own = xs[static_cast<size_t>(r)];
      own.resize(depth);
      for (int64_t i = 0; i < k; ++i) own.set(format, static_cast<size_t>(i), left.bits(chosen.at(row + r), i));
    });
    std::vector<float> values(static_cast<size_t>(rows * n));
    args.parallel_for((n + kTileColumns - 1) / kTileColumns, [&](int64_t task) {
      const int64_t first = task * kTileColumns, width = std::min(kTileColumns, n - first);
      const std::vector<Accumulators> sums = tile(args.order, dtype, xs, right, first, width);
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

}  // namespace checkop
