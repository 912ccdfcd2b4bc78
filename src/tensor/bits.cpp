// SPDX-License-Identifier: Apache-2.0
// Compares elements as unsigned integers, not as numbers: -0 differs from 0, and a NaN equals itself.
#include "tensor/bits.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/parallel.hpp"

namespace checkop {
namespace {

template <class Word>
BitDifference compare_words(const std::byte* a, const std::byte* b, int64_t count) {
  const auto word = [](const std::byte* from, int64_t i) {
    Word w;
    std::memcpy(&w, from + static_cast<size_t>(i) * sizeof(Word), sizeof(Word));
    return w;
  };
  BitDifference result;
  result.compared = count;
  for (int64_t i = 0; i < count; ++i) result.different += word(a, i) != word(b, i) ? 1 : 0;
  if (result.different == 0) return result;
  int64_t first = 0;
  while (word(a, first) == word(b, first)) ++first;
  result.first_index = first, result.a_bits = word(a, first), result.b_bits = word(b, first);
  return result;
}

}  // namespace

BitDifference compare_bits(DType dtype, const std::byte* a, const std::byte* b, int64_t count) {
  switch (info(dtype).bytes) {
    case 1:
      return compare_words<uint8_t>(a, b, count);
    case 2:
      return compare_words<uint16_t>(a, b, count);
    case 4:
      return compare_words<uint32_t>(a, b, count);
    default:
      return compare_words<uint64_t>(a, b, count);
  }
}

BitDifference compare_bits(DType dtype, const std::byte* a, const std::byte* b, int64_t count, unsigned threads) {
  constexpr int64_t kBlock = 1 << 18;
  std::vector<BitDifference> parts(static_cast<size_t>((count + kBlock - 1) / kBlock));
  parallel_for(threads, std::ssize(parts), [&](int64_t i) {
    const size_t at = static_cast<size_t>(i * kBlock) * info(dtype).bytes;
    parts[static_cast<size_t>(i)] = compare_bits(dtype, a + at, b + at, std::min(kBlock, count - i * kBlock));
  });
  BitDifference total;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (total.different == 0 && parts[i].different > 0) {
      total = parts[i];
      total.first_index += static_cast<int64_t>(i) * kBlock;
    } else {
      total.different += parts[i].different;
    }
  }
  total.compared = count;
  return total;
}

}  // namespace checkop
