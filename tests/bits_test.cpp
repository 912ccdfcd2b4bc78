// SPDX-License-Identifier: Apache-2.0
// Comparison bit for bit.
#include "bits.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tensor.hpp"

namespace checkop {
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

}  // namespace
}  // namespace checkop
