// SPDX-License-Identifier: Apache-2.0
// Bit for bit: two runs of the same question.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.hpp"

namespace checkop {

/// Bits of two runs or of a row in two batches.
struct BitDifference {
  int64_t compared = 0, different = 0;
  int64_t first_index = -1;  ///< flat, in `a`
  uint64_t a_bits = 0, b_bits = 0;
};
BitDifference compare_bits(DType dtype, const std::byte* a, const std::byte* b, int64_t count);
/// The same on several threads.
BitDifference compare_bits(DType dtype, const std::byte* a, const std::byte* b, int64_t count, unsigned threads);

}  // namespace checkop
