// SPDX-License-Identifier: Apache-2.0
// Shared by the CPU candidates named "native" that quantise: codes of 8 and 4 bits, and the amax of a block.
#pragma once

#include "cpu/native.hpp"

namespace native {

/// e4m3 of x: to nearest, ties to even, at most 448; NaN is 0x7f with the sign of x.
inline uint8_t to_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 24 & 0x80u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (rest >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // 448 and more
  if (rest < 0x3c800000u) {
    // Below 2^-6, in steps of 2^-9: 2^14 has such steps in fp32, so the addition rounds, ties to even.
    const float shifted = std::bit_cast<float>(rest) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
  }
  return static_cast<uint8_t>(sign | ((rest - (120u << 23) + 0x7ffffu + (rest >> 20 & 1u)) >> 20));
}

/// The number that an e4m3 code stands for.
inline float from_e4m3(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24, rest = code & 0x7fu;
  if (rest == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (rest < 8u) return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(rest) * 0x1p-9f) | sign);
  return std::bit_cast<float>(sign | ((rest << 20) + (120u << 23)));
}

/// The largest |x| of n numbers; NaN is skipped.
inline float amax(const float* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::abs(x[i]) > largest ? std::abs(x[i]) : largest;
  return largest;
}

/// Tensors of a quantisation by blocks of `width` columns: x is input 0, codes are output 0 and scales output 1.
struct Quantisation {
  Quantisation(const checkop_call& c, int64_t block, int32_t code_dtype, int64_t codes_in_element, int32_t scale_dtype)
      : x(c.inputs[0]), width(block) {
    check_computed_dtype(x.dtype);
    check_matrix(x, "x", x.dtype, rows, columns);
    Extent codes{"columns of codes", (columns.value + codes_in_element - 1) / codes_in_element};
    Extent scales{"columns of scales", blocks()};
    if (columns.value == 0) rows.value = 0;
    check_matrix(c.outputs[0], "codes", code_dtype, rows, codes);
    check_matrix(c.outputs[1], "scales", scale_dtype, rows, scales);
  }
  int64_t blocks() const { return (columns.value + width - 1) / width; }

  /// Calls body(numbers of a block, their number, row, block) for every block.
  template <class Body>
  void for_blocks(const Body& body) const {
    parallel_for(rows.value, rows.value * columns.value * 8, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(columns.value));
      for (int64_t r = begin; r < end; ++r) {
        load(x, r * columns.value, columns.value, row.data());
        for (int64_t b = 0; b < blocks(); ++b)
          body(row.data() + b * width, std::min(width, columns.value - b * width), r, b);
      }
    });
  }

  const checkop_tensor& x;
  int64_t width;
  Extent rows{"rows"}, columns{"columns"};
};

}  // namespace native
