// SPDX-License-Identifier: Apache-2.0
// Element types: every value of 16, 8 and 4 bits, every midpoint between neighbours, and the rest of the table.
// Expected values are computed by ldexp from the fields of a format, not by the code under test.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tensor/dtype.hpp"
#include "tensor/tensor.hpp"

namespace checkop::dtype_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

uint64_t encode(DType dtype, double value) {
  std::byte bytes[8] = {};
  info(dtype).encode(&value, bytes, 1);
  return load_bits(dtype, bytes, 0);
}

double decode(DType dtype, uint64_t bits) {
  std::byte bytes[8];
  std::memcpy(bytes, &bits, 8);
  double value;
  info(dtype).decode(bytes, &value, 1);
  return value;
}

/// Encodes all values at once, so that the vectorised loop runs.
std::vector<uint64_t> encode_all(DType dtype, const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * info(dtype).bytes);
  info(dtype).encode(values.data(), bytes.data(), values.size());
  std::vector<uint64_t> bits;
  for (size_t i = 0; i < values.size(); ++i) bits.push_back(load_bits(dtype, bytes.data(), static_cast<int64_t>(i)));
  return bits;
}

std::vector<double> decode_every_16_bit_value(DType dtype) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<double> values(bits.size());
  info(dtype).decode(reinterpret_cast<const std::byte*>(bits.data()), values.data(), bits.size());
  return values;
}

/// A finite value or infinity from its fields. With `unbounded`, the pattern of infinity gives 2^(largest exponent +
/// 1), which rounding treats as the next value.
double by_formula(DType dtype, uint64_t bits, bool unbounded = false) {
  const DTypeInfo& type = info(dtype);
  const int fraction_bits = type.precision - 1;
  const int exponent_bits = static_cast<int>(type.bytes) * 8 - type.precision;
  const uint64_t fraction = bits & ((uint64_t{1} << fraction_bits) - 1);
  const auto exponent = static_cast<int>((bits >> fraction_bits) & ((uint64_t{1} << exponent_bits) - 1));
  const double sign = (bits >> (type.bytes * 8 - 1)) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1 && !unbounded) return fraction == 0 ? sign * kInfinity : kNaN;
  const double significand = static_cast<double>(fraction) + (exponent > 0 ? std::ldexp(1.0, fraction_bits) : 0.0);
  return sign * std::ldexp(significand, type.min_exponent - fraction_bits + std::max(exponent - 1, 0));
}

class SixteenBits : public testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  uint64_t infinity() const { return dtype() == DType::f16 ? 0x7c00 : 0x7f80; }
};

TEST_P(SixteenBits, EveryValueDecodesAsTheFormulaSays) {
  const std::vector<double> values = decode_every_16_bit_value(dtype());
  for (uint64_t bits = 0; bits < 65536; ++bits) {
    const double expected = by_formula(dtype(), bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(values[bits])) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint64_t>(values[bits]), std::bit_cast<uint64_t>(expected)) << bits;
      ASSERT_EQ(std::bit_cast<uint64_t>(decode(dtype(), bits)), std::bit_cast<uint64_t>(expected)) << bits;
    }
  }
}

TEST_P(SixteenBits, EveryValueSurvivesDecodeAndEncode) {
  const std::vector<uint64_t> encoded = encode_all(dtype(), decode_every_16_bit_value(dtype()));
  for (uint64_t bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7fff) > infinity()) {
      ASSERT_GT(encoded[bits] & 0x7fff, infinity()) << bits;
      ASSERT_EQ(encoded[bits] & 0x8000, bits & 0x8000) << bits;
    } else {
      ASSERT_EQ(encoded[bits], bits);
    }
  }
}

// The last pair is the largest number and infinity: its midpoint is the overflow threshold and rounds to infinity.
TEST_P(SixteenBits, EveryMidpointRoundsToEvenAndItsNeighboursToTheNearest) {
  std::vector<double> values;
  std::vector<uint64_t> expected;
  for (uint64_t low = 0; low < infinity(); ++low) {
    const double middle = 0.5 * (by_formula(dtype(), low) + by_formula(dtype(), low + 1, true));
    for (const uint64_t sign : {uint64_t{0}, uint64_t{0x8000}}) {
      const double factor = sign != 0 ? -1.0 : 1.0;
      values.insert(values.end(), {factor * std::nextafter(middle, 0.0), factor * middle,
                                   factor * std::nextafter(middle, kInfinity)});
      expected.insert(expected.end(), {sign | low, sign | (low + low % 2), sign | (low + 1)});
    }
  }
  const std::vector<uint64_t> encoded = encode_all(dtype(), values);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(encoded[i], expected[i]) << values[i];
    ASSERT_EQ(encode(dtype(), values[i]), expected[i]) << values[i];
  }
}

TEST_P(SixteenBits, ExtremeDoublesBecomeZeroOrInfinity) {
  for (const double tiny : {5e-324, 1e-310, 0x1p-1022, 1e-100, 0x1p-150}) {
    EXPECT_EQ(encode(dtype(), tiny), 0u);
    EXPECT_EQ(encode(dtype(), -tiny), 0x8000u);
  }
  for (const double huge : {1e39, std::numeric_limits<double>::max(), kInfinity}) {
    EXPECT_EQ(encode(dtype(), huge), infinity());
    EXPECT_EQ(encode(dtype(), -huge), infinity() | 0x8000);
  }
}

INSTANTIATE_TEST_SUITE_P(DType, SixteenBits, testing::Values(DType::f16, DType::bf16),
                         [](const auto& which) { return std::string(checkop::info(which.param).name); });

// --- types of 8 and 4 bits, from the formats' definitions

struct EightBitFormat {
  DType dtype;
  uint64_t sign, largest;  ///< `largest`: the code of the largest number, or of infinity
  double value(uint64_t code) const {
    if (dtype == DType::e8m0) return code == 0xff ? kNaN : std::pow(2.0, static_cast<double>(code) - 127);
    const bool is_e4m3 = dtype == DType::e4m3;
    const uint64_t steps = is_e4m3 ? 8 : 4, bias = is_e4m3 ? 7 : 15;
    const uint64_t size = code % 128, exponent = size / steps;
    const double fraction = static_cast<double>(size % steps) / static_cast<double>(steps);
    double value = exponent == 0
                       ? fraction * std::pow(2.0, 1.0 - static_cast<double>(bias))
                       : (1 + fraction) * std::pow(2.0, static_cast<double>(exponent) - static_cast<double>(bias));
    if (is_e4m3 && size == 127) value = kNaN;
    if (!is_e4m3 && size == 124) value = kInfinity;
    if (!is_e4m3 && size > 124) value = kNaN;
    return code >= 128 ? -value : value;
  }
};

class EightBits : public testing::TestWithParam<EightBitFormat> {};

TEST_P(EightBits, EveryCodeDecodesAsTheFormatSays) {
  for (uint64_t code = 0; code < 256; ++code) {
    const double expected = GetParam().value(code), got = decode(GetParam().dtype, code);
    EXPECT_EQ(std::isnan(got), std::isnan(expected)) << code;
    if (!std::isnan(expected)) {
      EXPECT_EQ(std::bit_cast<uint64_t>(got), std::bit_cast<uint64_t>(expected)) << code;
    }
  }
}

TEST_P(EightBits, EveryCodeSurvivesDecodeAndEncode) {
  const EightBitFormat& format = GetParam();
  for (uint64_t code = 0; code < 256; ++code) {
    const uint64_t back = encode(format.dtype, decode(format.dtype, code));
    if (std::isnan(format.value(code))) {
      EXPECT_GT(back & ~format.sign, format.largest) << code;
      EXPECT_EQ(back & format.sign, code & format.sign) << code;
    } else {
      EXPECT_EQ(back, code);
    }
  }
}

TEST_P(EightBits, EveryMidpointRoundsToEvenAndItsNeighboursToTheNearest) {
  const EightBitFormat& format = GetParam();
  std::vector<double> values;
  std::vector<uint64_t> expected;
  for (uint64_t low = 0; low < format.largest; ++low) {
    double high = format.value(low + 1);
    if (high == kInfinity) high = 65536;  // what would come next
    const double middle = (format.value(low) + high) / 2;
    for (const uint64_t sign : {uint64_t{0}, format.sign}) {
      const double factor = sign != 0 ? -1 : 1;
      values.insert(values.end(), {factor * std::nextafter(middle, 0.0), factor * middle,
                                   factor * std::nextafter(middle, kInfinity)});
      expected.insert(expected.end(), {sign | low, sign | (low + low % 2), sign | (low + 1)});
    }
  }
  const std::vector<uint64_t> encoded = encode_all(format.dtype, values);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(encoded[i], expected[i]) << values[i];
}

TEST_P(EightBits, EncodeTakesTheNearestOfAllCodes) {
  const EightBitFormat& format = GetParam();
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 20000; ++trial) {
    const int spread = format.dtype == DType::e8m0 ? 240 : 26;
    const double size =
        std::ldexp(1 + static_cast<double>(random() % 4096) / 4096, static_cast<int>(random() % spread) - spread / 2);
    const double x = format.sign != 0 && random() % 2 == 0 ? -size : size;
    const double rounded = format.value(encode(format.dtype, x));
    if (rounded == (x < 0 ? -kInfinity : kInfinity)) {
      EXPECT_GE(std::abs(x), 61440) << "the middle of 57344 and 65536";
      continue;
    }
    for (uint64_t code = 0; code < 256; ++code) {
      const double other = format.value(code);
      if (std::isfinite(other)) {
        ASSERT_LE(std::abs(rounded - x), std::abs(other - x)) << x << " " << other;
      }
    }
  }
}

TEST_P(EightBits, WhatIsTooLargeBecomesTheLargestOrInfinity) {
  const EightBitFormat& format = GetParam();
  for (const double huge : {1e39, std::numeric_limits<double>::max(), kInfinity}) {
    EXPECT_EQ(encode(format.dtype, huge), format.largest);
    EXPECT_EQ(encode(format.dtype, -huge), format.sign != 0 ? (format.sign | format.largest) : 0);
  }
  EXPECT_EQ(encode(format.dtype, 5e-324), 0U);
  EXPECT_EQ(encode(format.dtype, -5e-324), format.sign);
  EXPECT_EQ(encode(format.dtype, -0.0), format.sign);
}

INSTANTIATE_TEST_SUITE_P(DType, EightBits,
                         testing::Values(EightBitFormat{DType::e4m3, 0x80, 0x7e},
                                         EightBitFormat{DType::e5m2, 0x80, 0x7c}, EightBitFormat{DType::e8m0, 0, 0xfe}),
                         [](const auto& which) { return std::string(checkop::info(which.param.dtype).name); });

TEST(DType, E4m3HasNoInfinityAndEndsAt448) {
  EXPECT_EQ(decode(DType::e4m3, 0x7e), 448);
  EXPECT_EQ(encode(DType::e4m3, 464), 0x7eU);
  EXPECT_EQ(encode(DType::e4m3, kInfinity), 0x7eU);
  EXPECT_EQ(encode(DType::e4m3, kNaN), 0x7fU);
  EXPECT_EQ(encode(DType::e4m3, std::copysign(kNaN, -1.0)), 0xffU);
  EXPECT_EQ(decode(DType::e4m3, 1), 0x1p-9);
}

TEST(DType, E8m0IsAPowerOfTwoWithoutZeroAndSign) {
  EXPECT_EQ(encode(DType::e8m0, 0), 0U);
  EXPECT_EQ(encode(DType::e8m0, -3), 0U);
  EXPECT_EQ(decode(DType::e8m0, 0), 0x1p-127);
  EXPECT_EQ(encode(DType::e8m0, 1), 127U);
  EXPECT_EQ(encode(DType::e8m0, 1.5), 128U) << "a tie, between 127 and 128";
  EXPECT_EQ(encode(DType::e8m0, 3), 128U) << "a tie, between 128 and 129";
  EXPECT_EQ(encode(DType::e8m0, kNaN), 0xffU);
}

/// From the fields: two bits of exponent with a bias of 1, one of fraction.
double e2m1_by_fields(unsigned code) {
  const unsigned exponent = code / 2 % 4;
  const double half = code % 2 == 0 ? 0 : 0.5, size = exponent == 0 ? half : (1 + half) * std::pow(2.0, exponent - 1.0);
  return code >= 8 ? -size : size;
}

TEST(DType, EveryE2m1CodeIsAsItsFieldsSay) {
  for (unsigned code = 0; code < 16; ++code) {
    EXPECT_EQ(std::bit_cast<uint64_t>(decode_e2m1(code)), std::bit_cast<uint64_t>(e2m1_by_fields(code))) << code;
    EXPECT_EQ(encode_e2m1(decode_e2m1(code)), code);
  }
}

TEST(DType, E2m1TakesTheNearestAndOfTwoTheEvenCode) {
  for (int i = -512; i <= 512; ++i) {
    const double x = i / 64.0;
    unsigned nearest = 0;
    for (unsigned code = 0; code < 8; ++code) {
      const double off = std::abs(e2m1_by_fields(code) - std::abs(x)),
                   best = std::abs(e2m1_by_fields(nearest) - std::abs(x));
      if (off < best || (off == best && code % 2 == 0)) nearest = code;
    }
    EXPECT_EQ(encode_e2m1(x), nearest + (x < 0 ? 8 : 0)) << x;
  }
  EXPECT_EQ(encode_e2m1(-0.0), 8U);
  EXPECT_EQ(encode_e2m1(std::nextafter(0.25, 1)), 1U);
  EXPECT_EQ(encode_e2m1(kInfinity), 7U);
  EXPECT_EQ(encode_e2m1(-1e300), 15U);
  EXPECT_EQ(encode_e2m1(kNaN), 7U);
}

TEST(DType, E2m1x2IsAByteOfTwoCodes) {
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(decode(DType::e2m1x2, static_cast<uint64_t>(byte)), byte);
    EXPECT_EQ(encode(DType::e2m1x2, byte), static_cast<uint64_t>(byte));
  }
}

TEST(DType, Bf16RoundsTiesToEven) {
  EXPECT_EQ(encode(DType::bf16, 1.0 + 0x1p-8), 0x3f80u);
  EXPECT_EQ(encode(DType::bf16, 1.0 + 3 * 0x1p-8), 0x3f82u);
}

// Through float both would first become a tie, which then rounds to even: down in the first case, up in the second.
TEST(DType, EncodeRoundsOnceAndNotThroughFloat) {
  EXPECT_EQ(encode(DType::bf16, 1.0 + 0x1p-8 + 0x1p-40), 0x3f81u);
  EXPECT_EQ(encode(DType::bf16, 1.0 + 3 * 0x1p-8 - 0x1p-40), 0x3f81u);
  EXPECT_EQ(encode(DType::f16, 1.0 + 0x1p-11 + 0x1p-40), 0x3c01u);
  EXPECT_EQ(encode(DType::f16, 1.0 + 3 * 0x1p-11 - 0x1p-40), 0x3c01u);
}

TEST(DType, F16OverflowsFrom65520) {
  EXPECT_EQ(encode(DType::f16, std::nextafter(65520.0, 0.0)), 0x7bffu);
  EXPECT_EQ(encode(DType::f16, 65520.0), 0x7c00u);
}

TEST(DType, NaNStaysAQuietNaNWithItsSign) {
  const double negative = std::copysign(kNaN, -1.0), signalling = std::bit_cast<double>(uint64_t{0x7ff0000000000001});
  EXPECT_EQ(encode(DType::f16, kNaN), 0x7e00u);
  EXPECT_EQ(encode(DType::f16, negative), 0xfe00u);
  EXPECT_EQ(encode(DType::bf16, kNaN), 0x7fc0u);
  EXPECT_EQ(encode(DType::bf16, negative), 0xffc0u);
  EXPECT_EQ(encode(DType::bf16, signalling), 0x7fc0u);
  EXPECT_EQ(encode(DType::f32, kNaN), 0x7fc00000u);
  EXPECT_EQ(encode(DType::f32, negative), 0xffc00000u);
  EXPECT_EQ(encode(DType::f32, signalling) & 0xffc00000u, 0x7fc00000u);
  EXPECT_EQ(encode(DType::f64, negative), 0xfff8000000000000u);
}

TEST(DType, MinusZeroKeepsItsSign) {
  EXPECT_EQ(encode(DType::f64, -0.0), uint64_t{1} << 63);
  EXPECT_EQ(encode(DType::f32, -0.0), 0x80000000u);
  EXPECT_EQ(encode(DType::f16, -0.0), 0x8000u);
  EXPECT_EQ(encode(DType::bf16, -0.0), 0x8000u);
  EXPECT_TRUE(std::signbit(decode(DType::f16, 0x8000)));
}

TEST(DType, F32RoundsMidpointsOfEveryBinadeToEven) {
  std::mt19937_64 random(1);
  std::vector<double> values;
  std::vector<uint64_t> expected;
  for (uint64_t exponent = 0; exponent < 255; ++exponent) {
    std::vector<uint64_t> fractions = {0, 1, 2, 3, 0x3fffff, 0x400000, 0x7ffffe, 0x7fffff};
    for (int i = 0; i < 100; ++i) fractions.push_back(random() & 0x7fffff);
    for (const uint64_t fraction : fractions) {
      const uint64_t low = exponent << 23 | fraction;
      const double middle = 0.5 * (by_formula(DType::f32, low) + by_formula(DType::f32, low + 1, true));
      values.insert(values.end(), {std::nextafter(middle, 0.0), middle, std::nextafter(middle, kInfinity), -middle});
      expected.insert(expected.end(), {low, low + low % 2, low + 1, (low + low % 2) | 0x80000000u});
    }
  }
  const std::vector<uint64_t> encoded = encode_all(DType::f32, values);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(encoded[i], expected[i]) << values[i];
}

TEST(DType, F32AgreesWithTheCompilersFloat) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 100000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    const auto single = std::bit_cast<float>(bits);
    if (std::isnan(single)) continue;
    ASSERT_EQ(decode(DType::f32, bits), static_cast<double>(single));
    ASSERT_EQ(decode(DType::f32, bits), by_formula(DType::f32, bits));
    const double value = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 320) - 220);
    ASSERT_EQ(encode(DType::f32, value), std::bit_cast<uint32_t>(static_cast<float>(value)));
  }
}

TEST(DType, F64IsStoredAsItIs) {
  for (const double value : {1.0 / 3.0, 5e-324, -0.0, kInfinity, std::numeric_limits<double>::max()}) {
    EXPECT_EQ(encode(DType::f64, value), std::bit_cast<uint64_t>(value));
    EXPECT_EQ(decode(DType::f64, std::bit_cast<uint64_t>(value)), value);
  }
}

double bf16_to_nearest(double x) { return decode(DType::bf16, encode(DType::bf16, x)); }
double bf16_toward_zero(double x) { return decode(DType::bf16, std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16); }
[[gnu::noinline]] void round_trip(double* out, const double* in, int n, bool truncate) {
  for (int i = 0; i < n; ++i) out[i] = truncate ? bf16_toward_zero(in[i]) : bf16_to_nearest(in[i]);
}

// In a program of this shape, g++ 12 at -O2 drops the masking of a bf16 helper of type float and returns 1.2345678.
TEST(DType, Bf16RoundTripSurvivesTheOptimiser) {
  const double in[3] = {1.2345678f, 1.2345678f, -1.2345678f};
  double out[3];
  round_trip(out, in, 3, true);
  EXPECT_EQ(out[0], 1.234375);
  EXPECT_EQ(out[2], -1.234375);
  round_trip(out, in, 3, false);
  EXPECT_EQ(out[0], 1.234375);
  const double above_the_middle[1] = {1.24};  // between 1.234375 and 1.2421875
  round_trip(out, above_the_middle, 1, true);
  EXPECT_EQ(out[0], 1.234375);
  round_trip(out, above_the_middle, 1, false);
  EXPECT_EQ(out[0], 1.2421875);
}

TEST(DType, IntegersRoundToEvenAndSaturate) {
  const auto as_signed = [](DType dtype, double value) {
    std::byte bytes[8];
    info(dtype).encode(&value, bytes, 1);
    int64_t stored;
    decode_int(dtype, bytes, &stored, 1);
    return stored;
  };
  for (const DType dtype : {DType::i64, DType::i32}) {
    EXPECT_EQ(as_signed(dtype, 0.5), 0);
    EXPECT_EQ(as_signed(dtype, 1.5), 2);
    EXPECT_EQ(as_signed(dtype, 2.5), 2);
    EXPECT_EQ(as_signed(dtype, std::nextafter(0.5, 1.0)), 1);
    EXPECT_EQ(as_signed(dtype, std::nextafter(0.5, 0.0)), 0);
    EXPECT_EQ(as_signed(dtype, -1.5), -2);
    EXPECT_EQ(as_signed(dtype, -2.5), -2);
    EXPECT_EQ(as_signed(dtype, kNaN), 0);
  }
  EXPECT_EQ(as_signed(DType::i64, kInfinity), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(as_signed(DType::i64, 0x1p63), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(as_signed(DType::i64, std::nextafter(0x1p63, 0.0)), std::numeric_limits<int64_t>::max() - 1023);
  EXPECT_EQ(as_signed(DType::i64, -0x1p63), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(as_signed(DType::i64, -kInfinity), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(as_signed(DType::i64, 0x1p52 + 1.0), (int64_t{1} << 52) + 1);
  EXPECT_EQ(as_signed(DType::i64, 0x1p51 + 0.5), int64_t{1} << 51);
  EXPECT_EQ(as_signed(DType::i32, 2147483646.5), 2147483646);
  EXPECT_EQ(as_signed(DType::i32, 2147483647.5), 2147483647);
  EXPECT_EQ(as_signed(DType::i32, 1e30), 2147483647);
  EXPECT_EQ(as_signed(DType::i32, -2147483648.5), -2147483648LL);
  EXPECT_EQ(as_signed(DType::u8, 254.5), 254);
  EXPECT_EQ(as_signed(DType::u8, 255.5), 255);
  EXPECT_EQ(as_signed(DType::u8, 300.0), 255);
  EXPECT_EQ(as_signed(DType::u8, -3.0), 0);
}

TEST(DType, IntegersKeepEveryBitThroughDecodeInt) {
  const int64_t values[] = {std::numeric_limits<int64_t>::min(), -1, 0, (int64_t{1} << 53) + 1,
                            std::numeric_limits<int64_t>::max()};
  std::byte bytes[sizeof values];
  int64_t back[5];
  encode_int(DType::i64, values, bytes, 5);
  decode_int(DType::i64, bytes, back, 5);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(back[i], values[i]);
  const int64_t small[] = {-2147483648LL, 7};
  encode_int(DType::i32, small, bytes, 2);
  decode_int(DType::i32, bytes, back, 2);
  EXPECT_EQ(back[0], -2147483648LL);
  EXPECT_EQ(back[1], 7);
  EXPECT_THROW(decode_int(DType::f32, bytes, back, 1), std::logic_error);
  EXPECT_THROW(encode_int(DType::bf16, small, bytes, 1), std::logic_error);
}

TEST(DType, UnitRoundoffIsHalfTheSpacingAtOne) {
  EXPECT_EQ(unit_roundoff(DType::f64), 0x1p-53);
  EXPECT_EQ(unit_roundoff(DType::f32), 0x1p-24);
  EXPECT_EQ(unit_roundoff(DType::f16), 0x1p-11);
  EXPECT_EQ(unit_roundoff(DType::bf16), 0x1p-8);
  EXPECT_EQ(unit_roundoff(DType::e4m3), 0x1p-4);
  EXPECT_EQ(unit_roundoff(DType::e5m2), 0x1p-3);
  EXPECT_EQ(unit_roundoff(DType::e8m0), 0x1p-1);
  EXPECT_EQ(unit_roundoff(DType::i32), 0.0);
}

TEST(DType, HalfUlpIsHalfTheDistanceToTheNextValue) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const uint64_t infinity = dtype == DType::f16 ? 0x7c00 : 0x7f80;
    for (uint64_t bits = 0; bits < infinity; ++bits) {
      const double value = by_formula(dtype, bits), next = by_formula(dtype, bits + 1, true);
      ASSERT_EQ(half_ulp(dtype, value), 0.5 * (next - value)) << bits;
      ASSERT_EQ(half_ulp(dtype, -std::nextafter(next, 0.0)), 0.5 * (next - value)) << bits;
    }
  }
  for (const DType dtype : {DType::e4m3, DType::e5m2}) {
    for (uint64_t bits = 0; bits + 1 < info(dtype).top; ++bits)
      EXPECT_EQ(half_ulp(dtype, decode(dtype, bits)), 0.5 * (decode(dtype, bits + 1) - decode(dtype, bits))) << bits;
  }
  EXPECT_EQ(half_ulp(DType::f32, 0.0), 0x1p-150);
  EXPECT_EQ(half_ulp(DType::f32, 1e-310), 0x1p-150);
  EXPECT_EQ(half_ulp(DType::f32, -3.0), 0x1p-23);
  EXPECT_EQ(half_ulp(DType::f64, 1.0), 0x1p-53);
  EXPECT_EQ(half_ulp(DType::f64, 0.0), 0x1p-1074);  // 2^-1075 is not a double; rounded up, because it is a bound
  EXPECT_EQ(half_ulp(DType::i64, 12.0), 0.0);
}

TEST(DType, UlpDistanceCountsStepsAcrossZeroAndBinades) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const uint64_t sign = uint64_t{1} << (8 * info(dtype).bytes - 1);
    const uint64_t one = encode(dtype, 1.0), infinity = encode(dtype, kInfinity);
    EXPECT_EQ(ulp_distance(dtype, 0, sign), 0u);
    EXPECT_EQ(ulp_distance(dtype, 1, sign | 1), 2u);
    EXPECT_EQ(ulp_distance(dtype, sign | 3, 4), 7u);
    EXPECT_EQ(ulp_distance(dtype, one, one - 1), 1u);
    EXPECT_EQ(ulp_distance(dtype, one, one + 1), 1u);
    EXPECT_EQ(ulp_distance(dtype, sign | one, sign | (one - 1)), 1u);
    EXPECT_EQ(ulp_distance(dtype, infinity, infinity - 1), 1u);
    EXPECT_EQ(ulp_distance(dtype, infinity, sign | infinity), 2 * infinity);
    EXPECT_EQ(ulp_distance(dtype, one, encode(dtype, 2.0)), uint64_t{1} << (info(dtype).precision - 1));
    EXPECT_EQ(ulp_distance(dtype, infinity + 1, one), std::nullopt);
    EXPECT_EQ(ulp_distance(dtype, one, encode(dtype, kNaN) | sign), std::nullopt);
  }
}

TEST(DType, UlpDistanceCountsCodesOf8Bits) {
  EXPECT_EQ(ulp_distance(DType::e4m3, 0x7e, 0x70), 14U);
  EXPECT_EQ(ulp_distance(DType::e4m3, 0x7e, 0xfe), 2U * 0x7e);
  EXPECT_EQ(ulp_distance(DType::e4m3, 0x7f, 0), std::nullopt);
  EXPECT_EQ(ulp_distance(DType::e4m3, 0, 0xff), std::nullopt);
  EXPECT_EQ(ulp_distance(DType::e5m2, 0x7c, 0x7b), 1U);
  EXPECT_EQ(ulp_distance(DType::e5m2, 0x7d, 0), std::nullopt);
  EXPECT_EQ(ulp_distance(DType::e8m0, 0, 0xfe), 254U);
  EXPECT_EQ(ulp_distance(DType::e8m0, 0x80, 0x7f), 1U) << "no bit is a sign";
  EXPECT_EQ(ulp_distance(DType::e8m0, 0xff, 0), std::nullopt);
  EXPECT_EQ(ulp_distance(DType::e2m1x2, 0xff, 0), 255U);
}

TEST(DType, UlpDistanceOfIntegersIsTheirDifference) {
  EXPECT_EQ(ulp_distance(DType::i32, 0xffffffff, 1), 2u);  // -1 and 1
  EXPECT_EQ(ulp_distance(DType::u8, 255, 0), 255u);
  EXPECT_EQ(ulp_distance(DType::i64, uint64_t{1} << 63, ~uint64_t{0} >> 1), ~uint64_t{0});
}

TEST(DType, TheTableIsInTheOrderOfTheEnum) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(kDTypes.at(i), dtype);
    EXPECT_EQ(info(dtype).dtype, dtype);
    EXPECT_EQ(parse_dtype(info(dtype).name), dtype);
  }
  EXPECT_EQ(parse_dtype("bf16"), DType::bf16);
  EXPECT_EQ(parse_dtype("BF16"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
}

TEST(DType, LoadBitsExtendsWithZeros) {
  const uint8_t raw[] = {1, 2, 0xff, 0xfe, 5, 6, 7, 8};
  const auto* bytes = reinterpret_cast<const std::byte*>(raw);
  EXPECT_EQ(load_bits(DType::bf16, bytes, 1), 0xfeffu);
  EXPECT_EQ(load_bits(DType::i32, bytes, 1), 0x08070605u);
  EXPECT_EQ(load_bits(DType::u8, bytes, 2), 0xffu);
}

TEST(DType, LargestUlpDistanceIsThatOfTheElements) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32, DType::e4m3, DType::e5m2,
                            DType::e8m0, DType::e2m1x2}) {
    Tensor a("a", dtype, {6}), b("b", dtype, {6});
    for (int64_t i = 0; i < 6; ++i) {
      a.set(i, static_cast<double>(i) - 2);
      b.set(i, static_cast<double>((i * 5) % 7) - 3);
    }
    uint64_t largest = 0;
    for (int64_t i = 0; i < 6; ++i) {
      const auto distance =
          ulp_distance(dtype, load_bits(dtype, a.bytes.data(), i), load_bits(dtype, b.bytes.data(), i));
      largest = std::max(largest, *distance);
    }
    EXPECT_EQ(max_ulp_distance(dtype, a.bytes.data(), b.bytes.data(), 6), largest) << info(dtype).name;
    EXPECT_EQ(max_ulp_distance(dtype, a.bytes.data(), a.bytes.data(), 6), 0u);
    if (!info(dtype).is_float) continue;
    a.set(4, std::numeric_limits<double>::quiet_NaN());
    EXPECT_EQ(max_ulp_distance(dtype, a.bytes.data(), b.bytes.data(), 6), std::numeric_limits<uint64_t>::max());
  }
}

}  // namespace
}  // namespace checkop::dtype_test
