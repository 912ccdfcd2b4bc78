// SPDX-License-Identifier: Apache-2.0
// Element types, one table row each: exact decoding to double and int64, encoding with one rounding to nearest, ties to
// even.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace checkop {

/// Values equal CHECKOP_F64 ... of the ABI.
enum class DType : uint8_t { f64, f32, f16, bf16, i64, i32, u8, e4m3, e5m2, e8m0, e2m1x2 };

/// Every dtype, in the order of the enum.
inline constexpr std::array kDTypes{DType::f64, DType::f32,  DType::f16,  DType::bf16, DType::i64,   DType::i32,
                                    DType::u8,  DType::e4m3, DType::e5m2, DType::e8m0, DType::e2m1x2};
/// The dtypes that a case may have. The narrower floating-point types are codes that some operators read and write.
inline constexpr std::array kCaseDTypes{DType::f64, DType::f32, DType::f16, DType::bf16};

struct DTypeInfo {
  DType dtype;
  std::string_view name;         ///< on the command line and in reports: fp64 fp32 fp16 bf16 int64 int32 uint8 e4m3 ...
  std::string_view safetensors;  ///< F64 F32 F16 BF16 I64 I32 U8 F8_E4M3 F8_E5M2 F8_E8M0 F4
  size_t bytes;
  bool is_float;     ///< false for e2m1x2, whose elements are bytes of two codes
  int precision;     ///< significand bits with the implicit one: 53 24 11 8, 4 3 1; 0 for integers
  int min_exponent;  ///< the smallest normal number is 2^min_exponent: -1022 -126 -14 -126, -6 -14 -127; 0 for integers
  uint64_t sign;     ///< the bit of the sign; 0 for e8m0 and integers
  uint64_t top;      ///< bits of infinity, or of the largest number of a type without one; NaN is above; 0 for integers
  /// Exact for every float type. Not exact for integers beyond 2^53; use decode_int for them.
  void (*decode)(const std::byte* from, double* to, size_t n);
  /// One rounding to nearest, ties to even; overflow gives infinity, or the largest number of a type without one; NaN
  /// stays NaN. e8m0, which has neither sign nor zero: 2^-127 for all that is less. Integers: round to nearest,
  /// saturate.
  void (*encode)(const double* from, std::byte* to, size_t n);
};

const DTypeInfo& info(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);  ///< "fp32", "bf16", ...

void decode_int(DType dtype, const std::byte* from, int64_t* to, size_t n);  ///< integers and e2m1x2; exact
void encode_int(DType dtype, const int64_t* from, std::byte* to, size_t n);  ///< values must fit

/// A code of 4 bits, of which an element of e2m1x2 has two, the first one in its lower half: 0 0.5 1 1.5 2 3 4 6, and
/// from 8 on the same with the other sign.
double decode_e2m1(unsigned code);
/// Rounds to nearest, ties to even. Larger numbers become 6, and so does NaN, which the type lacks.
unsigned encode_e2m1(double x);

/// Unit roundoff u = 2^-precision: the largest relative error of one rounding to nearest.
double unit_roundoff(DType dtype);

/// Half the spacing of a dtype's numbers at |x|: the largest error of one rounding to nearest there. Constant below the
/// smallest normal; 0 for integers. x must be finite. Inline and without branches, for loops over elements.
class HalfUlp {
 public:
  explicit HalfUlp(DType dtype);
  double operator()(double x) const {
    constexpr uint64_t kExponent = uint64_t{0x7ff} << 52;
    // 2^exponent of x, or 0 below the smallest normal double. Both products are exact or below `least_`.
    const double spacing = std::bit_cast<double>(std::bit_cast<uint64_t>(x) & kExponent) * scale_;
    return spacing < least_ ? least_ : spacing;
  }

 private:
  double scale_ = 0, least_ = 0;
};
inline double half_ulp(DType dtype, double x) { return HalfUlp(dtype)(x); }

/// Distance of two stored values (raw bits in the low bytes) in units of adjacent representable numbers; 0 for +0 and
/// -0. nullopt when either is NaN. Integers: |a - b|.
std::optional<uint64_t> ulp_distance(DType dtype, uint64_t a_bits, uint64_t b_bits);

/// The largest ulp_distance between elements of two stored arrays. The largest uint64_t when an element is NaN in one
/// of them and its bits differ.
uint64_t max_ulp_distance(DType dtype, const std::byte* a, const std::byte* b, size_t n);

/// The raw bits of element `index`, zero-extended.
uint64_t load_bits(DType dtype, const std::byte* base, int64_t index);

}  // namespace checkop
