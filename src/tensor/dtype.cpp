// SPDX-License-Identifier: Apache-2.0
// The table of element types. Floats of 16 and 8 bits stay integers from load to store and never become a C++ type: g++
// 12 at -O2 drops the masking in helpers that return a bf16 as a rounded float (dtype_test has such a program).
#include "tensor/dtype.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace checkop {
namespace {

static_assert(std::endian::native == std::endian::little, "stored tensors are little-endian");
static_assert(std::numeric_limits<double>::is_iec559 && std::numeric_limits<float>::is_iec559);

constexpr uint64_t kSignBit = uint64_t{1} << 63;
constexpr uint64_t kInfinityBits = uint64_t{0x7ff} << 52;
constexpr uint64_t kFractionMask = (uint64_t{1} << 52) - 1;
constexpr int kDoubleBias = 1023;

template <typename T>
T load(const std::byte* from, size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* to, size_t i, T value) {
  std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

/// value / 2^shift to the nearest integer, ties to even. value < 2^63, 1 <= shift <= 62.
constexpr uint64_t round_shift(uint64_t value, int shift) {
  const uint64_t half = uint64_t{1} << (shift - 1);
  return (value + half - 1 + ((value >> shift) & 1)) >> shift;
}

/// A float format of 16 or 8 bits.
template <class Word, int kSignificand, int kLeast, Word kLargest, Word kNotANumber>
struct Format {
  using Bits = Word;
  static constexpr int kPrecision = kSignificand, kMinExponent = kLeast;
  static constexpr Word kTop = kLargest;  ///< infinity, or the largest number
  static constexpr Word kNaN = kNotANumber;
  static constexpr uint64_t kSign = uint64_t{1} << (8 * sizeof(Word) - 1);
};
using F16 = Format<uint16_t, 11, -14, 0x7c00, 0x7e00>;
using BF16 = Format<uint16_t, 8, -126, 0x7f80, 0x7fc0>;
using E5M2 = Format<uint8_t, 3, -14, 0x7c, 0x7e>;
using E4M3 = Format<uint8_t, 4, -6, 0x7e, 0x7f>;

/// Bits of a number in format F, rounded once from a double.
template <class F>
typename F::Bits to_format(double x) {
  constexpr int kMinExponent = F::kMinExponent, kBias = 1 - kMinExponent, kDropped = 53 - F::kPrecision;
  constexpr uint64_t kMinNormal = uint64_t{kDoubleBias + kMinExponent} << 52;

  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint64_t sign = (bits & kSignBit) != 0 ? F::kSign : 0;
  const uint64_t magnitude = bits & ~kSignBit;
  uint64_t result;
  if (magnitude > kInfinityBits) {
    result = F::kNaN;
  } else if (magnitude >= kMinNormal) {
    // A carry out of the fraction moves into the exponent, which is what rounding up to a power of two means.
    const uint64_t rebiased = magnitude - (uint64_t{kDoubleBias - kBias} << 52);
    result = std::min(round_shift(rebiased, kDropped), uint64_t{F::kTop});
  } else {
    const int exponent = static_cast<int>(magnitude >> 52);
    const int shift = kDropped + kDoubleBias + kMinExponent - exponent;
    // From a shift of 54 on, the value lies below half of the smallest subnormal.
    result = shift >= 54 ? 0 : round_shift((magnitude & kFractionMask) | (uint64_t{1} << 52), shift);
  }
  return static_cast<typename F::Bits>(sign | result);
}

template <class F>
void encode_format(const double* __restrict from, std::byte* __restrict to, size_t n) {
  for (size_t i = 0; i < n; ++i) store(to, i, to_format<F>(from[i]));
}

/// 2^exponent, a normal number.
constexpr double normal_power(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + kDoubleBias) << 52);
}

/// The value of every code of 8 bits.
template <class F>
constexpr std::array<double, 256> values_of_format() {
  std::array<double, 256> values{};
  constexpr int kFraction = F::kPrecision - 1;
  constexpr bool kHasInfinity = (F::kTop & ((1 << kFraction) - 1)) == 0;
  for (unsigned code = 0; code < 256; ++code) {
    const unsigned size = code & 0x7f, fraction = size & ((1 << kFraction) - 1);
    const int exponent = static_cast<int>(size >> kFraction);
    const double significand = fraction + (exponent > 0 ? 1 << kFraction : 0);
    double value = significand * normal_power(F::kMinExponent - kFraction + std::max(exponent - 1, 0));
    if (size == F::kTop && kHasInfinity) value = std::numeric_limits<double>::infinity();
    if (size > F::kTop) value = std::numeric_limits<double>::quiet_NaN();
    const uint64_t sign = (code & 0x80) != 0 ? kSignBit : 0;
    values[code] = std::bit_cast<double>(std::bit_cast<uint64_t>(value) | sign);
  }
  return values;
}

template <class F>
void decode_format(const std::byte* from, double* to, size_t n) {
  static constexpr std::array<double, 256> kValues = values_of_format<F>();
  for (size_t i = 0; i < n; ++i) to[i] = kValues[load<uint8_t>(from, i)];
}

constexpr int kE8M0Bias = 127;
constexpr uint8_t kE8M0Top = 0xfe, kE8M0NaN = 0xff;

void decode_e8m0(const std::byte* from, double* to, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const auto code = load<uint8_t>(from, i);
    to[i] = code == kE8M0NaN ? std::numeric_limits<double>::quiet_NaN() : normal_power(code - kE8M0Bias);
  }
}

void encode_e8m0(const double* from, std::byte* to, size_t n) {
  constexpr double kLeast = normal_power(-kE8M0Bias);
  for (size_t i = 0; i < n; ++i) {
    const double x = std::max(from[i], kLeast);  // from[i] if that is NaN
    // Rounded to its exponent: the middle of two powers is 1.5 times the lower one.
    const uint64_t rebiased = std::bit_cast<uint64_t>(x) - (uint64_t{kDoubleBias - kE8M0Bias} << 52);
    store(to, i, x == x ? static_cast<uint8_t>(std::min(round_shift(rebiased, 52), uint64_t{kE8M0Top})) : kE8M0NaN);
  }
}

void decode_bf16(const std::byte* __restrict from, double* __restrict to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = std::bit_cast<float>(uint32_t{load<uint16_t>(from, i)} << 16);
}

void decode_f16(const std::byte* __restrict from, double* __restrict to, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = load<uint16_t>(from, i);
    const uint32_t magnitude = bits & 0x7fff;
    // Rebias the exponent for binary32: add 127 - 15 to a normal number, twice that to infinity and NaN.
    const uint32_t rebias = magnitude >= 0x7c00 ? 2 * (112u << 23) : 112u << 23;
    const uint32_t normal = (magnitude << 13) + rebias;
    const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
    const uint32_t single = magnitude < 0x0400 ? subnormal : normal;
    to[i] = std::bit_cast<float>(single | (bits & 0x8000) << 16);
  }
}

void decode_f32(const std::byte* __restrict from, double* __restrict to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = load<float>(from, i);
}

void encode_f32(const double* __restrict from, std::byte* __restrict to, size_t n) {
  for (size_t i = 0; i < n; ++i) store(to, i, static_cast<float>(from[i]));  // one IEEE rounding in hardware
}

void decode_f64(const std::byte* from, double* to, size_t n) {
  if (n > 0) std::memcpy(to, from, n * sizeof(double));
}

void encode_f64(const double* from, std::byte* to, size_t n) {
  if (n > 0) std::memcpy(to, from, n * sizeof(double));
}

template <typename T>
void decode_integer(const std::byte* __restrict from, double* __restrict to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<double>(load<T>(from, i));
}

template <typename T>
T saturate(double x) {
  using Limits = std::numeric_limits<T>;
  if (x != x) return 0;
  // 2^digits is exact in double, unlike the largest int64. Rounding can't cross it from below: doubles there are
  // integers.
  constexpr double kEnd = 2.0 * static_cast<double>(uint64_t{1} << (Limits::digits - 1));
  if (x >= kEnd) return Limits::max();
  if (x <= static_cast<double>(Limits::min())) return Limits::min();
  if (x >= 0x1p52 || x <= -0x1p52) return static_cast<T>(x);
  const double shifter = x < 0 ? -0x1p52 : 0x1p52;  // no bits below one fit: the addition rounds to an integer
  const double rounded = (x + shifter) - shifter;
  return rounded >= kEnd ? Limits::max() : static_cast<T>(rounded);
}

template <typename T>
void encode_integer(const double* __restrict from, std::byte* __restrict to, size_t n) {
  for (size_t i = 0; i < n; ++i) store(to, i, saturate<T>(from[i]));
}

constexpr uint32_t kInfinityOfF32 = 0x7f800000, kSignOfF32 = 0x80000000;

/// The row of a float format of 16 or 8 bits.
template <class F>
constexpr DTypeInfo row(DType dtype, std::string_view name, std::string_view safetensors,
                        void (*decode)(const std::byte*, double*, size_t)) {
  return {dtype,    name,    safetensors, sizeof(typename F::Bits), true, F::kPrecision, F::kMinExponent,
          F::kSign, F::kTop, decode,      encode_format<F>};
}

constexpr std::array<DTypeInfo, kDTypes.size()> kTable{{
    {DType::f64, "fp64", "F64", 8, true, 53, -1022, kSignBit, kInfinityBits, decode_f64, encode_f64},
    {DType::f32, "fp32", "F32", 4, true, 24, -126, kSignOfF32, kInfinityOfF32, decode_f32, encode_f32},
    row<F16>(DType::f16, "fp16", "F16", decode_f16),
    row<BF16>(DType::bf16, "bf16", "BF16", decode_bf16),
    {DType::i64, "int64", "I64", 8, false, 0, 0, 0, 0, decode_integer<int64_t>, encode_integer<int64_t>},
    {DType::i32, "int32", "I32", 4, false, 0, 0, 0, 0, decode_integer<int32_t>, encode_integer<int32_t>},
    {DType::u8, "uint8", "U8", 1, false, 0, 0, 0, 0, decode_integer<uint8_t>, encode_integer<uint8_t>},
    row<E4M3>(DType::e4m3, "e4m3", "F8_E4M3", decode_format<E4M3>),
    row<E5M2>(DType::e5m2, "e5m2", "F8_E5M2", decode_format<E5M2>),
    {DType::e8m0, "e8m0", "F8_E8M0", 1, true, 1, -kE8M0Bias, 0, kE8M0Top, decode_e8m0, encode_e8m0},
    {DType::e2m1x2, "e2m1x2", "F4", 1, false, 0, 0, 0, 0, decode_integer<uint8_t>, encode_integer<uint8_t>},
}};

/// 2^exponent, exact down to the smallest subnormal. Lower exponents give the smallest subnormal, so that a bound never
/// becomes 0.
double power_of_two(int exponent) {
  if (exponent >= -1022) return std::bit_cast<double>(static_cast<uint64_t>(exponent + kDoubleBias) << 52);
  return std::bit_cast<double>(uint64_t{1} << std::max(exponent + 1074, 0));
}

template <typename T>
void widen(const std::byte* from, int64_t* to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = load<T>(from, i);
}

template <typename T>
void narrow(const int64_t* from, std::byte* to, size_t n) {
  for (size_t i = 0; i < n; ++i) store(to, i, static_cast<T>(from[i]));
}

/// max_ulp_distance() for the bits of a float type. The loop has no data-dependent branch.
template <typename Bits>
uint64_t max_float_distance(const DTypeInfo& type, const std::byte* a, const std::byte* b, size_t n) {
  const auto sign = static_cast<Bits>(type.sign), low = static_cast<Bits>(~sign), top = static_cast<Bits>(type.top);
  Bits largest = 0;
  bool is_nan = false;
  for (size_t i = 0; i < n; ++i) {
    const Bits x = load<Bits>(a, i), y = load<Bits>(b, i);
    const auto p = static_cast<Bits>(x & low), q = static_cast<Bits>(y & low);
    const auto apart = static_cast<Bits>(p > q ? p - q : q - p), across = static_cast<Bits>(p + q);
    largest = std::max(largest, ((x ^ y) & sign) != 0 ? across : apart);  // p + q fits: both are below the sign bit
    is_nan |= x != y && (p > top || q > top);
  }
  return is_nan ? std::numeric_limits<uint64_t>::max() : largest;
}

[[noreturn]] void not_an_integer(DType dtype) {
  throw std::logic_error(std::string(info(dtype).name) + " is not an integer type");
}

/// The signed value of an integer's zero-extended bits.
int64_t integer_value(DType dtype, uint64_t bits) {
  switch (dtype) {
    case DType::i64:
      return static_cast<int64_t>(bits);
    case DType::i32:
      return static_cast<int32_t>(static_cast<uint32_t>(bits));
    default:
      return static_cast<uint8_t>(bits);
  }
}

}  // namespace

const DTypeInfo& info(DType dtype) { return kTable.at(static_cast<size_t>(dtype)); }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DTypeInfo& row : kTable) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

void decode_int(DType dtype, const std::byte* from, int64_t* to, size_t n) {
  switch (dtype) {
    case DType::i64:
      return widen<int64_t>(from, to, n);
    case DType::i32:
      return widen<int32_t>(from, to, n);
    case DType::u8:
    case DType::e2m1x2:
      return widen<uint8_t>(from, to, n);
    default:
      not_an_integer(dtype);
  }
}

void encode_int(DType dtype, const int64_t* from, std::byte* to, size_t n) {
  switch (dtype) {
    case DType::i64:
      return narrow<int64_t>(from, to, n);
    case DType::i32:
      return narrow<int32_t>(from, to, n);
    case DType::u8:
    case DType::e2m1x2:
      return narrow<uint8_t>(from, to, n);
    default:
      not_an_integer(dtype);
  }
}

double decode_e2m1(unsigned code) {
  constexpr std::array kSizes{0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  const double size = kSizes.at(code & 7);
  return (code & 8) != 0 ? -size : size;
}

unsigned encode_e2m1(double x) {
  // Between each code and the next one. A tie belongs to the even one of them.
  constexpr std::array kMiddles{0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0};
  const double size = x < 0 ? -x : x;
  unsigned code = 0;
  while (code < kMiddles.size() && !(size < kMiddles.at(code) || (size == kMiddles.at(code) && code % 2 == 0))) ++code;
  return code | ((std::bit_cast<uint64_t>(x) & kSignBit) != 0 ? 8U : 0U);
}

double unit_roundoff(DType dtype) { return info(dtype).is_float ? power_of_two(-info(dtype).precision) : 0.0; }

HalfUlp::HalfUlp(DType dtype) {
  const DTypeInfo& type = info(dtype);
  if (!type.is_float) return;
  scale_ = power_of_two(-type.precision);
  least_ = power_of_two(type.min_exponent - type.precision);
}

std::optional<uint64_t> ulp_distance(DType dtype, uint64_t a_bits, uint64_t b_bits) {
  const DTypeInfo& type = info(dtype);
  if (!type.is_float) {
    const int64_t a = integer_value(dtype, a_bits), b = integer_value(dtype, b_bits);
    return a > b ? static_cast<uint64_t>(a) - static_cast<uint64_t>(b)
                 : static_cast<uint64_t>(b) - static_cast<uint64_t>(a);
  }
  const uint64_t a = a_bits & ~type.sign, b = b_bits & ~type.sign;
  if (a > type.top || b > type.top) return std::nullopt;
  if (((a_bits ^ b_bits) & type.sign) != 0) return a + b;
  return a > b ? a - b : b - a;
}

uint64_t max_ulp_distance(DType dtype, const std::byte* a, const std::byte* b, size_t n) {
  const DTypeInfo& type = info(dtype);
  if (type.is_float) {
    switch (type.bytes) {
      case 1:
        return max_float_distance<uint8_t>(type, a, b, n);
      case 2:
        return max_float_distance<uint16_t>(type, a, b, n);
      case 4:
        return max_float_distance<uint32_t>(type, a, b, n);
      default:
        return max_float_distance<uint64_t>(type, a, b, n);
    }
  }
  uint64_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto at = static_cast<int64_t>(i);
    largest = std::max(largest, *ulp_distance(dtype, load_bits(dtype, a, at), load_bits(dtype, b, at)));
  }
  return largest;
}

uint64_t load_bits(DType dtype, const std::byte* base, int64_t index) {
  const size_t size = info(dtype).bytes;
  uint64_t bits = 0;
  std::memcpy(&bits, base + static_cast<size_t>(index) * size, size);
  return bits;
}

}  // namespace checkop
