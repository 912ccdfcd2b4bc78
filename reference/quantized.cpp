// SPDX-License-Identifier: Apache-2.0
// Rows of a quantisation, and blocks that show its faults.
#include "quantized.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace checkop {
namespace {

constexpr int64_t kPlantedRows = 256;

enum class BlockKind : uint8_t { drawn, zeros, ties, powers, tiny, other_ties, infinite, with_nan, count };

double largest_code(const BlockData& data) { return data.is_e2m1 ? 6 : 448; }

/// Whether a kernel that knows x only up to two roundings of fp32 may give it either of two codes.
bool is_near_middle(bool is_e2m1, float x) {
  constexpr double kNear = 0x1p-20;  // 8 times the error of two roundings
  const auto code = [&](double size) { return is_e2m1 ? encode_e2m1(size) : stored_in(DType::e4m3, size); };
  const double size = std::abs(static_cast<double>(x));
  return code(size * (1 - kNear)) != code(size * (1 + kNear));
}

/// A number between two codes, one of which is code `lower`.
double middle_above(const BlockData& data, unsigned lower) {
  const auto value = [&](unsigned code) {
    if (data.is_e2m1) return decode_e2m1(code);
    const auto byte = static_cast<std::byte>(code);
    double decoded = 0;
    info(DType::e4m3).decode(&byte, &decoded, 1);
    return decoded;
  };
  return (value(lower) + value(lower + 1)) / 2;
}

/// The neighbour of x > 0 in its dtype: below, itself or above for -1, 0 or 1.
double neighbour(DType dtype, double x, int step) {
  if (step < 0) return stored_in(dtype, x * (1 - unit_roundoff(dtype)));
  return x + step * 2 * half_ulp(dtype, x);
}

/// n elements of x from `first` on: `width` of a row, then those below them in the next row.
struct Place {
  Tensor& x;
  int64_t first, n, width;
  int64_t index(int64_t i) const { return first + i / width * x.shape.back() + i % width; }
  double get(int64_t i) const { return x.at(index(i)); }
  void set(int64_t i, double value) const { x.set(index(i), value); }
  void fill(const std::function<double(int64_t)>& value) const {
    for (int64_t i = 0; i < n; ++i) set(i, value(i));
  }
  float amax() const {
    std::vector<float> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(get(i)));
    return largest_size(values);
  }
};

class Planter {
 public:
  Planter(const FillArgs& args, Tensor& x, const BlockData& data) : args_(args), x_(x), data_(data) {}

  void plant(int64_t row, int64_t number, const Place& place) const {
    const auto kinds = static_cast<int64_t>(BlockKind::count);
    const int scale = static_cast<int>(choice(place.first, 9)) - 4;  // 448 times it fits fp16
    switch (static_cast<BlockKind>((row + number) % kinds)) {
      case BlockKind::zeros:
        return place.fill([](int64_t i) { return i % 2 == 0 ? 0.0 : -0.0; });
      case BlockKind::ties:
        return ties(place, std::ldexp(1.0, scale));
      case BlockKind::other_ties:  // with a scale whose reciprocal is rounded
        return ties(place, std::ldexp(1.75, scale));
      case BlockKind::powers:
        return powers(place, std::ldexp(choice(place.first + 1, 2) == 0 ? largest_code(data_) : 1.0, scale));
      case BlockKind::tiny:
        return tiny(place);
      case BlockKind::infinite:
        if (data_.takes_infinity) infinite(place);
        return;
      case BlockKind::with_nan:
        if (!data_.is_e2m1 && !data_.stays_away) with_nan(place);
        return;
      default:
        return;
    }
  }

 private:
  uint64_t choice(int64_t index, uint64_t n) const {
    return static_cast<uint64_t>(args_.uniform("quantized/choice", static_cast<uint64_t>(index)) *
                                 static_cast<double>(n)) %
           n;
  }

  /// amax is the largest code times `scale`, the others are middles of two codes times `scale`.
  void ties(const Place& place, double scale) const {
    if (data_.stays_away) return;
    const uint64_t codes = data_.is_e2m1 ? 7 : 126;
    place.fill([&](int64_t i) {
      const auto lower = static_cast<unsigned>(choice(place.first + i, codes));
      const double size = scale * (i == place.n / 2 ? largest_code(data_) : middle_above(data_, lower));
      return (place.first + i) % 3 == 0 ? -size : size;
    });
  }

  /// amax is `power` or a neighbour of it.
  void powers(const Place& place, double power) const {
    const double amax = neighbour(x_.dtype, power, static_cast<int>(choice(place.first + 2, 3)) - 1);
    place.fill([&](int64_t i) {
      if (i == place.n / 2) return choice(place.first + 3, 2) == 0 ? amax : -amax;
      return (1.875 * args_.uniform("quantized/powers", static_cast<uint64_t>(place.first + i)) - 0.9375) * power;
    });
  }

  /// amax is below eps; of e2m1, the scale is 0 or subnormal; where scales go so far, it is one of the least two.
  void tiny(const Place& place) const {
    int exponent = data_.is_e2m1 && choice(place.first, 2) == 0 ? -11 : -16;
    if (data_.has_least_scales && x_.dtype != DType::f16) exponent = choice(place.first, 2) == 0 ? -119 : -126;
    place.fill([&](int64_t i) { return std::ldexp(place.get(i), exponent); });
  }

  void infinite(const Place& place) const {
    const double infinity = std::numeric_limits<double>::infinity();
    place.set(place.n / 2, choice(place.first, 2) == 0 ? -infinity : infinity);
  }

  /// NaN has a code of its own, and is not what its block is scaled by.
  void with_nan(const Place& place) const { place.set(place.n / 3, std::numeric_limits<double>::quiet_NaN()); }

  const FillArgs& args_;
  Tensor& x_;
  const BlockData& data_;
};

}  // namespace

double stored_in(DType dtype, double value) {
  std::array<std::byte, sizeof(double)> bytes;
  info(dtype).encode(&value, bytes.data(), 1);
  info(dtype).decode(bytes.data(), &value, 1);
  return value;
}

float largest_size(std::span<const float> block) {
  float largest = 0;
  for (const float x : block)
    if (std::abs(x) > largest) largest = std::abs(x);
  return largest;
}

void quantize_rows(const GoldArgs& args, const Tensor& x, const QuantizeRow& quantize) {
  const int64_t columns = x.shape.back(), rows = columns == 0 ? 0 : x.count() / columns;
  const int64_t codes = args.output_shapes[0].back(), scales = args.output_shapes[1].back();
  const std::vector<double> none(static_cast<size_t>(std::max(codes, scales)));
  args.for_rows(0, rows, [&](int64_t row) {
    static thread_local std::vector<double> decoded, of_codes, of_scales;
    decoded.resize(static_cast<size_t>(columns));
    decode_row(x, row, decoded);
    of_codes.assign(static_cast<size_t>(codes), 0.0), of_scales.assign(static_cast<size_t>(scales), 0.0);
    const std::vector<float> values(decoded.begin(), decoded.end());
    quantize(values, of_codes, of_scales);
    args.sink({0, row, 1, codes, of_codes.data(), none.data(), none.data()});
    args.sink({1, row, 1, scales, of_scales.data(), none.data(), none.data()});
  });
}

namespace {

/// Calls body(row of blocks, number in it, place) for the blocks of the first `most` rows, at least one row of blocks.
template <class Body>
void for_blocks(Tensor& x, const BlockData& data, int64_t most, const Body& body) {
  const int64_t columns = x.shape.back(), rows = columns == 0 ? 0 : x.count() / columns;
  for (int64_t row = 0; row < std::min(most, rows); row += data.rows) {
    const int64_t height = std::min(data.rows, rows - row);
    for (int64_t first = 0; first < columns; first += data.block) {
      const int64_t width = std::min(data.block, columns - first);
      body(row / data.rows, first / data.block, Place{x, row * columns + first, height * width, width});
    }
  }
}

}  // namespace

void plant_blocks(const FillArgs& args, Tensor& x, const BlockData& data) {
  if (args.mode != InputMode::random) return;
  const Planter planter(args, x, data);
  for_blocks(x, data, kPlantedRows,
             [&](int64_t row, int64_t number, const Place& place) { planter.plant(row, number, place); });
}

void move_from_middles(Tensor& x, const BlockData& data) {
  constexpr double kLess = 1 - 0x1p-6;  // too little to change a scale that is a power of two
  constexpr int kMostTrials = 8;        // numbers that their dtype barely holds stay as they are
  if (!data.stays_away) return;
  for_blocks(x, data, x.count(), [&](int64_t, int64_t, const Place& place) {
    for (int i = 0; i < kMostTrials && data.scale && is_near_middle(/*is_e2m1=*/false, data.scale(place.amax())); ++i)
      place.fill([&](int64_t at) { return place.get(at) * kLess; });
    const float amax = place.amax();
    place.fill([&](int64_t at) {
      const double value = place.get(at);
      return is_near_middle(data.is_e2m1, data.quotient(static_cast<float>(value), amax)) ? value * kLess : value;
    });
  });
}

}  // namespace checkop
