// SPDX-License-Identifier: Apache-2.0
// Integers, not numbers: -0 is not 0, and a NaN equals itself.
#include "bits.hpp"

#include <cstring>

namespace checkop {

BitDifference compare_bits(DType dtype, const std::byte* a, const std::byte* b, int64_t count) {
  BitDifference result;
  result.compared = count;
  const size_t width = info(dtype).bytes;
  // An empty tensor may have no address, which memcmp does not take.
  if (count == 0 || std::memcmp(a, b, static_cast<size_t>(count) * width) == 0) return result;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t x = load_bits(dtype, a, i), y = load_bits(dtype, b, i);
    if (x == y) continue;
    if (result.different++ == 0) result.first_index = i, result.a_bits = x, result.b_bits = y;
  }
  return result;
}

}  // namespace checkop
