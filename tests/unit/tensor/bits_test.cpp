// SPDX-License-Identifier: Apache-2.0
// Comparison bit for bit.
#include <gtest/gtest.h>

#include <limits>

#include "tensor/bits.hpp"
#include "tensor/tensor.hpp"

namespace checkop::bits_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(CompareBits, ComparesAsIntegers) {
  Tensor a("a", DType::f32, {3}), b("b", DType::f32, {3});
  a.set(0, kNan), b.set(0, kNan);
  EXPECT_EQ(compare_bits(DType::f32, a.bytes.data(), b.bytes.data(), 3).different, 0);
  b.set(2, -0.0);
  const BitDifference difference = compare_bits(DType::f32, a.bytes.data(), b.bytes.data(), 3);
  EXPECT_EQ(difference.different, 1);
  EXPECT_EQ(difference.first_index, 2);
  EXPECT_EQ(difference.b_bits, 0x80000000u);
}

/// Elements on both sides of the boundaries between threads, and the first and last.
TEST(CompareBits, ThreadsTellWhatOneDoes) {
  constexpr int64_t kCount = 1'000'003;
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::i64}) {
    Tensor a("a", dtype, {kCount}), b("b", dtype, {kCount});
    for (size_t i = 0; i < a.bytes.size(); ++i)
      a.bytes.data()[i] = b.bytes.data()[i] = static_cast<std::byte>(i * 2654435761u >> 24);
    const auto compare = [&](unsigned threads) {
      return threads == 0 ? compare_bits(dtype, a.bytes.data(), b.bytes.data(), kCount)
                          : compare_bits(dtype, a.bytes.data(), b.bytes.data(), kCount, threads);
    };
    EXPECT_EQ(compare(3).different, 0);
    EXPECT_EQ(compare(3).first_index, -1);
    int64_t changed = 0;
    for (const int64_t at : {kCount - 1, int64_t{1 << 18}, int64_t{(1 << 18) - 1}, int64_t{0}}) {
      b.bytes.data()[static_cast<size_t>(at) * info(dtype).bytes] ^= std::byte{0x10};
      for (const unsigned threads : {0u, 1u, 3u}) {
        const BitDifference found = compare(threads);
        EXPECT_EQ(found.compared, kCount);
        EXPECT_EQ(found.different, changed + 1);
        EXPECT_EQ(found.first_index, at);
        EXPECT_EQ(found.a_bits, load_bits(dtype, a.bytes.data(), at));
        EXPECT_EQ(found.b_bits, load_bits(dtype, b.bytes.data(), at));
      }
      ++changed;
    }
  }
  EXPECT_EQ(compare_bits(DType::f32, nullptr, nullptr, 0, 3).different, 0);
}

}  // namespace
}  // namespace checkop::bits_test
