// SPDX-License-Identifier: Apache-2.0
// Bitwise comparison of outputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.hpp"

namespace checkop {

/// Differing elements of two arrays: two runs, or one row in two batches.
struct BitDifference {
  int64_t compared = 0, different = 0;
  int64_t first_index = -1;  ///< flat index of the first difference; -1: none
  uint64_t a_bits = 0, b_bits = 0;
};
BitDifference compare_bits(DType dtype, const std::byte* a, const std::byte* b, int64_t count);
/// The same result, computed on several threads.
BitDifference compare_bits(DType dtype, const std::byte* a, const std::byte* b, int64_t count, unsigned threads);

}  // namespace checkop
