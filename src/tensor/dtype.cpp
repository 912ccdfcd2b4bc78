// SPDX-License-Identifier: Apache-2.0
// The table of element types. 16-bit floats stay integers from load to store and never become a C++ type: g++ 12 at -O2
// drops the masking in helpers that return a bf16 as a rounded float (dtype_test has such a program).
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

/// Bits of a 16-bit float with `kPrecision` significand bits, rounded once from a double.
template <int kPrecision, int kMinExponent>
uint16_t to_16_bits(double x) {
  constexpr int kBias = 1 - kMinExponent, kDropped = 53 - kPrecision;
  constexpr uint64_t kInfinity = uint64_t{2 * kBias + 1} << (kPrecision - 1);
  constexpr uint64_t kQuietBit = uint64_t{1} << (kPrecision - 2);
  constexpr uint64_t kMinNormal = uint64_t{kDoubleBias + kMinExponent} << 52;

  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint64_t sign = (bits & kSignBit) >> 48;
  const uint64_t magnitude = bits & ~kSignBit;
  uint64_t result;
  if (magnitude > kInfinityBits) {
    result = kInfinity | kQuietBit;
  } else if (magnitude >= kMinNormal) {
    // A carry out of the fraction moves into the exponent, which is what rounding up to a power of two means.
    const uint64_t rebiased = magnitude - (uint64_t{kDoubleBias - kBias} << 52);
    result = std::min(round_shift(rebiased, kDropped), kInfinity);
  } else {
    const int exponent = static_cast<int>(magnitude >> 52);
    const int shift = kDropped + kDoubleBias + kMinExponent - exponent;
    // From a shift of 54 on, the value lies below half of the smallest subnormal.
    result = shift >= 54 ? 0 : round_shift((magnitude & kFractionMask) | (uint64_t{1} << 52), shift);
  }
  return static_cast<uint16_t>(sign | result);
}

template <int kPrecision, int kMinExponent>
void encode_16(const double* __restrict from, std::byte* __restrict to, size_t n) {
  for (size_t i = 0; i < n; ++i) store(to, i, to_16_bits<kPrecision, kMinExponent>(from[i]));
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

constexpr std::array<DTypeInfo, 7> kTable{{
    {DType::f64, "fp64", "F64", 8, true, 53, -1022, decode_f64, encode_f64},
    {DType::f32, "fp32", "F32", 4, true, 24, -126, decode_f32, encode_f32},
    {DType::f16, "fp16", "F16", 2, true, 11, -14, decode_f16, encode_16<11, -14>},
    {DType::bf16, "bf16", "BF16", 2, true, 8, -126, decode_bf16, encode_16<8, -126>},
    {DType::i64, "int64", "I64", 8, false, 0, 0, decode_integer<int64_t>, encode_integer<int64_t>},
    {DType::i32, "int32", "I32", 4, false, 0, 0, decode_integer<int32_t>, encode_integer<int32_t>},
    {DType::u8, "uint8", "U8", 1, false, 0, 0, decode_integer<uint8_t>, encode_integer<uint8_t>},
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
  const Bits sign = Bits{1} << (8 * sizeof(Bits) - 1), low = static_cast<Bits>(sign - 1);
  const auto infinity = static_cast<Bits>(low & ~((Bits{1} << (type.precision - 1)) - 1));
  Bits largest = 0;
  bool is_nan = false;
  for (size_t i = 0; i < n; ++i) {
    const Bits x = load<Bits>(a, i), y = load<Bits>(b, i);
    const auto p = static_cast<Bits>(x & low), q = static_cast<Bits>(y & low);
    const auto apart = static_cast<Bits>(p > q ? p - q : q - p), across = static_cast<Bits>(p + q);
    largest = std::max(largest, ((x ^ y) & sign) != 0 ? across : apart);  // p + q fits: both are below the sign bit
    is_nan |= x != y && (p > infinity || q > infinity);
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
      return narrow<uint8_t>(from, to, n);
    default:
      not_an_integer(dtype);
  }
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
  const uint64_t sign = uint64_t{1} << (8 * type.bytes - 1);
  const uint64_t quantum = uint64_t{1} << (type.precision - 1);  // lowest bit of the exponent field
  const uint64_t infinity = (sign - 1) & ~(quantum - 1);
  const uint64_t a = a_bits & (sign - 1), b = b_bits & (sign - 1);
  if (a > infinity || b > infinity) return std::nullopt;
  if (((a_bits ^ b_bits) & sign) != 0) return a + b;
  return a > b ? a - b : b - a;
}

uint64_t max_ulp_distance(DType dtype, const std::byte* a, const std::byte* b, size_t n) {
  const DTypeInfo& type = info(dtype);
  if (type.is_float) {
    switch (type.bytes) {
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
