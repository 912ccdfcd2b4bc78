// SPDX-License-Identifier: Apache-2.0
// Tensor core blocks in integer arithmetic: one element at a time for every value, tiles at a time for finite ones.
#include "tensor_core.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace checkop {
namespace {

constexpr int kFraction = 25;         // bits of a term below the largest exponent that survive
constexpr int kNone = -100000;        // exponent of a zero: below every other one
constexpr int64_t kTileColumns = 64;  // of the fast path: its arrays stay in the first-level cache
constexpr uint32_t kNan = 0x7fffffff;

/// fp16 or bf16: |value| = significand * 2^(exponent - fraction).
struct Format {
  int fraction, bias, exponent_mask;

  explicit Format(DType dtype)
      : fraction(info(dtype).precision - 1),
        bias(1 - info(dtype).min_exponent),
        exponent_mask((1 << (15 - fraction)) - 1) {}

  struct Number {
    int significand;  ///< with the sign
    int exponent;     ///< kNone for 0
    bool special;     ///< infinite or NaN
  };
  Number split(uint16_t bits) const {
    const int field = bits >> fraction & exponent_mask, low = bits & ((1 << fraction) - 1);
    const int size = field == 0 ? low : low | 1 << fraction;
    return {(bits & 0x8000) != 0 ? -size : size, size == 0 ? kNone : std::max(field, 1) - bias, field == exponent_mask};
  }
  double value(uint16_t bits) const {  // of a special one
    if ((bits & ((1 << fraction) - 1)) != 0) return std::numeric_limits<double>::quiet_NaN();
    return (bits & 0x8000) != 0 ? -INFINITY : INFINITY;
  }
};

struct Accumulator {
  int significand, exponent;  ///< |value| = significand * 2^(exponent - 23)

  explicit Accumulator(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const int field = static_cast<int>(bits >> 23 & 0xff), low = static_cast<int>(bits & 0x7fffff);
    const int size = field == 0 ? low : low | 0x800000;
    significand = (bits >> 31) != 0 ? -size : size;
    exponent = size == 0 ? kNone : std::max(field, 1) - 127;
  }
};

/// significand * 2^shift, cut toward zero after `drop` further places to the right.
int aligned(int significand, int shift, int drop) {
  const int size = (significand < 0 ? -significand : significand) << shift >> std::min(drop, 31);
  return significand < 0 ? -size : size;
}

/// 2^exponent, of a normal double.
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(std::max(exponent, -1022) + 1023) << 52);
}

/// `exact` cut toward zero to fp32, infinite beyond its range.
float cut(double exact) {
  // Above the normal numbers' limit the last places go; below it, those under 2^-149. No branch, so that loops over
  // this vectorise.
  constexpr uint64_t kDropped = (uint64_t{1} << (53 - 24)) - 1;
  const auto normal = std::bit_cast<double>(std::bit_cast<uint64_t>(exact) & ~kDropped);
  const double small =
      static_cast<double>(static_cast<int>(std::abs(exact) < 0x1p-126 ? exact * 0x1p149 : 0)) * 0x1p-149;
  return static_cast<float>(std::abs(exact) < 0x1p-126 ? small : normal);
}

/// Where a factor or the accumulator is infinite or NaN, the sum is that of IEEE 754, with one NaN.
float special_block(const Format& format, const uint16_t* x, const uint16_t* y, float accumulator) {
  double sum = accumulator;  // infinite, NaN, or does not matter
  for (int64_t i = 0; i < kTensorCoreBlock; ++i) {
    const Format::Number a = format.split(x[i]), b = format.split(y[i]);
    if (!a.special && !b.special) continue;
    sum += (a.special ? format.value(x[i]) : a.significand) * (b.special ? format.value(y[i]) : b.significand);
  }
  return std::isnan(sum) ? std::bit_cast<float>(kNan) : static_cast<float>(sum);
}

/// A factor's numbers, split; K is filled up with zeros.
struct Split {
  std::vector<int16_t> significand;
  std::vector<int> exponent;
  std::vector<uint16_t> bits;
  bool special = false;

  void set(const Format& format, size_t at, uint16_t stored) {
    const Format::Number number = format.split(stored);
    significand[at] = static_cast<int16_t>(number.significand);
    exponent[at] = number.exponent;
    bits[at] = stored;
    special |= number.special;
  }
  void resize(int64_t count) {
    significand.assign(static_cast<size_t>(count), 0);
    exponent.assign(static_cast<size_t>(count), kNone);
    bits.assign(static_cast<size_t>(count), 0);
    special = false;
  }
};

uint16_t stored_bits(const Tensor& tensor, int64_t index) {
  uint16_t bits;
  std::memcpy(&bits, tensor.bytes.data() + static_cast<size_t>(index) * sizeof bits, sizeof bits);
  return bits;
}

int64_t padded(int64_t k) { return (k + kTensorCoreBlock - 1) / kTensorCoreBlock * kTensorCoreBlock; }

using Accumulators = std::array<float, kTileColumns>;

/// One block of a row of x against kTileColumns columns of y, laid out [k, kTileColumns]; all finite.
void fast_block(int shift, const Split& x, const Split& y, int64_t block, Accumulators& accumulators) {
  std::array<int, kTileColumns> top, low, high;
  for (size_t j = 0; j < kTileColumns; ++j) top[j] = Accumulator(accumulators[j]).exponent;
  for (int64_t i = block; i < block + kTensorCoreBlock; ++i) {
    const int own = x.exponent[static_cast<size_t>(i)];
    const int* const exponent = &y.exponent[static_cast<size_t>(i * kTileColumns)];
    for (size_t j = 0; j < kTileColumns; ++j) top[j] = std::max(top[j], own + exponent[j]);
  }
  // Two sums: of 8 products, each below 2^27, and the accumulator, below 2^26; then of the other 8.
  for (size_t j = 0; j < kTileColumns; ++j) {
    const Accumulator a(accumulators[j]);
    low[j] = aligned(a.significand, kFraction - 23, top[j] - a.exponent), high[j] = 0;
  }
  for (int64_t i = 0; i < kTensorCoreBlock; ++i) {
    const auto at = static_cast<size_t>(block + i);
    const int own = x.exponent[at], factor = x.significand[at];
    const int* const exponent = &y.exponent[at * kTileColumns];
    const int16_t* const significand = &y.significand[at * kTileColumns];
    std::array<int, kTileColumns>& sum = i < kTensorCoreBlock / 2 ? low : high;
    for (size_t j = 0; j < kTileColumns; ++j) {
      sum[j] += aligned(factor * significand[j], shift, top[j] - (own + exponent[j]));
    }
  }
  for (size_t j = 0; j < kTileColumns; ++j) {
    const double sum = static_cast<double>(low[j]) + static_cast<double>(high[j]);
    accumulators[j] = cut(sum * power_of_two(top[j] - kFraction));
  }
}

/// The same, whatever the factors and the accumulators are.
void any_block(DType dtype, const Split& x, const Split& y, int64_t block, Accumulators& accumulators) {
  for (size_t j = 0; j < kTileColumns; ++j) {
    std::array<uint16_t, kTensorCoreBlock> column;
    for (size_t i = 0; i < kTensorCoreBlock; ++i) {
      column[i] = y.bits[(static_cast<size_t>(block) + i) * kTileColumns + j];
    }
    accumulators[j] = tensor_core_block(dtype, &x.bits[static_cast<size_t>(block)], column.data(), accumulators[j]);
  }
}

/// A row of x against kTileColumns columns of y.
Accumulators chain(DType dtype, const Format& format, const Split& x, const Split& y, int64_t k) {
  Accumulators accumulators{};
  bool finite = !x.special && !y.special;
  for (int64_t block = 0; block < k; block += kTensorCoreBlock) {
    if (!finite) {
      any_block(dtype, x, y, block, accumulators);
      continue;
    }
    fast_block(kFraction - 2 * format.fraction, x, y, block, accumulators);
    float largest = 0;
    for (const float a : accumulators) largest = std::max(largest, std::abs(a));
    finite = std::isfinite(largest);
  }
  return accumulators;
}

}  // namespace

float tensor_core_block(DType factors, const uint16_t* x, const uint16_t* y, float accumulator) {
  const Format format(factors);
  const Accumulator before(accumulator);
  std::array<int, kTensorCoreBlock> product, exponent;
  int top = before.exponent;
  bool special = !std::isfinite(accumulator);
  for (size_t i = 0; i < kTensorCoreBlock; ++i) {
    const Format::Number a = format.split(x[i]), b = format.split(y[i]);
    special |= a.special || b.special;
    product[i] = a.significand * b.significand;
    exponent[i] = a.exponent + b.exponent;
    top = std::max(top, exponent[i]);
  }
  if (special) return special_block(format, x, y, accumulator);
  double sum = aligned(before.significand, kFraction - 23, top - before.exponent);
  for (size_t i = 0; i < kTensorCoreBlock; ++i) {
    sum += aligned(product[i], kFraction - 2 * format.fraction, top - exponent[i]);
  }
  return cut(sum * power_of_two(top - kFraction));
}

void emit_tensor_core_product(const ModelArgs& args, int index, const Factor& x, const Factor& y) {
  const DType dtype = x.tensor->dtype;
  const Format format(dtype);
  const int64_t m = x.transposed ? x.columns : x.rows, k = x.transposed ? x.rows : x.columns, depth = padded(k);
  const int64_t n = y.transposed ? y.rows : y.columns;
  const RowSet& chosen = args.rows(index);
  const int64_t rows = chosen.count(m), tiles = (n + kTileColumns - 1) / kTileColumns;
  std::vector<Split> xs(static_cast<size_t>(rows));
  args.parallel_for(rows, [&](int64_t r) {
    Split& split = xs[static_cast<size_t>(r)];
    split.resize(depth);
    for (int64_t i = 0; i < k; ++i) {
      const int64_t at = x.transposed ? i * x.columns + chosen.at(r) : chosen.at(r) * x.columns + i;
      split.set(format, static_cast<size_t>(i), stored_bits(*x.tensor, at));
    }
  });
  std::vector<float> values(static_cast<size_t>(rows * n));
  args.parallel_for(tiles, [&](int64_t tile) {
    static thread_local Split ys;
    const int64_t first = tile * kTileColumns, width = std::min(kTileColumns, n - first);
    ys.resize(depth * kTileColumns);
    for (int64_t j = 0; j < width; ++j) {
      for (int64_t i = 0; i < k; ++i) {
        const int64_t at = y.transposed ? (first + j) * y.columns + i : i * y.columns + first + j;
        ys.set(format, static_cast<size_t>(i * kTileColumns + j), stored_bits(*y.tensor, at));
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      const Accumulators accumulators = chain(dtype, format, xs[static_cast<size_t>(r)], ys, depth);
      std::copy_n(accumulators.begin(), width, &values[static_cast<size_t>(r * n + first)]);
    }
  });
  for (int64_t r = 0; r < rows; ++r) args.sink(index, chosen.at(r), &values[static_cast<size_t>(r * n)]);
}

}  // namespace checkop
