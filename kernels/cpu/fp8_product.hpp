// SPDX-License-Identifier: Apache-2.0
// Shared by the CPU candidates named "native" that multiply e4m3 codes with scales for blocks of 128 of them.
#pragma once

#include "cpu/codes.hpp"

namespace native {

constexpr int64_t kFp8Block = 128;

inline int64_t blocks_of(int64_t n) { return (n + kFp8Block - 1) / kFp8Block; }

/// The numbers that n codes stand for.
inline std::vector<float> decoded(const checkop_tensor& codes, int64_t n) {
  std::array<float, 256> values{};
  for (size_t code = 0; code < values.size(); ++code) values[code] = from_e4m3(static_cast<uint8_t>(code));
  const auto* const from = static_cast<const uint8_t*>(codes.data);
  std::vector<float> to(static_cast<size_t>(n));
  for (size_t i = 0; i < to.size(); ++i) to[i] = values[from[i]];
  return to;
}

/// The sum of n products of numbers of two rows; each block of 128 has a scale in either row. First the sum of a
/// block's products, then a tree over blocks.
inline float scaled_dot(const float* x, const float* scale_x, const float* y, const float* scale_y, int64_t n) {
  Tree<float, std::plus<float>> sum;
  for (int64_t k = 0; k < n; k += kFp8Block)
    sum.add(scale_x[k / kFp8Block] * scale_y[k / kFp8Block] * dot(x + k, y + k, std::min(kFp8Block, n - k)));
  return sum.finish();
}

/// Refuses a call without the attributes that only the bound uses.
inline void check_bound_attributes(const checkop_call& c) {
  for (const char* name : {"acc_bits", "acc_terms"}) exact_attribute(c, name);
}

}  // namespace native
