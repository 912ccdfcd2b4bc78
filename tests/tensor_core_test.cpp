// SPDX-License-Identifier: Apache-2.0
// The tensor core model: vectors that an H200 gave, and the fast path against one block at a time.
#include "tensor_core.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace checkop {
namespace {

using Block = std::array<uint16_t, kTensorCoreBlock>;

uint16_t encoded(DType dtype, double value) {
  uint16_t bits;
  info(dtype).encode(&value, reinterpret_cast<std::byte*>(&bits), 1);
  return bits;
}

/// A block of the products values[i] * 1.
float block_of(DType dtype, const std::vector<double>& values, float accumulator) {
  Block x{}, y{};
  for (size_t i = 0; i < values.size(); ++i) x[i] = encoded(dtype, values[i]), y[i] = encoded(dtype, 1);
  return tensor_core_block(dtype, x.data(), y.data(), accumulator);
}

TEST(TensorCore, SumsThatFitAreExact) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    EXPECT_EQ(block_of(dtype, {1, 2, 3, -0.5}, 10), 15.5f);
    EXPECT_EQ(block_of(dtype, {}, -3.25f), -3.25f);
    EXPECT_EQ(std::bit_cast<uint32_t>(block_of(dtype, {1, -1}, 0)), 0u);
  }
}

TEST(TensorCore, TermsAreCutTowardZeroBelowTheLargest) {
  const float next = std::nextafter(1.0f, 2.0f);
  EXPECT_EQ(block_of(DType::bf16, {0x1p-24, 0x1p-24}, 1), next);  // inside of 25 places: they add up
  EXPECT_EQ(block_of(DType::bf16, {0x1.8p-24}, 1), 1);            // the sum is cut, not rounded
  EXPECT_EQ(block_of(DType::bf16, {-0x1p-25}, 1), std::nextafter(1.0f, 0.0f));
  EXPECT_EQ(block_of(DType::bf16, std::vector<double>(16, 0x1.fep-26), 1), 1);  // each is below the last place
  EXPECT_EQ(block_of(DType::bf16, std::vector<double>(16, -0x1.fep-26), 1), 1);
}

TEST(TensorCore, ExponentsAddBeforeTheProductIsNormalised) {
  // 1.5 * 1.5 = 2.25 counts as exponent 0: the accumulator keeps a bit that it would lose beside 2.25 = 1.125 * 2^1.
  Block x{}, y{};
  x[0] = y[0] = encoded(DType::bf16, 1.5);
  const float tiny = 0x1p-25f;
  x[1] = encoded(DType::bf16, -2.25), y[1] = encoded(DType::bf16, 1);
  EXPECT_EQ(tensor_core_block(DType::bf16, x.data(), y.data(), tiny), 0);  // -2.25 has exponent 1
  x[1] = encoded(DType::bf16, -1.5), y[1] = encoded(DType::bf16, 1.5);
  EXPECT_EQ(tensor_core_block(DType::bf16, x.data(), y.data(), tiny), tiny);
}

TEST(TensorCore, SubnormalAndInfiniteResultsAndNan) {
  const float least = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(block_of(DType::bf16, {0x1p-133}, least), 0x1p-133f + least);
  EXPECT_EQ(block_of(DType::bf16, {0x1p127, 0x1p127}, 0), INFINITY);
  EXPECT_EQ(block_of(DType::bf16, {-0x1p127, -0x1p127}, 0), -INFINITY);
  EXPECT_EQ(block_of(DType::f16, {1, INFINITY}, 5), INFINITY);
  for (const float nan : {block_of(DType::f16, {INFINITY, -INFINITY}, 0), block_of(DType::bf16, {NAN}, 0),
                          block_of(DType::bf16, {1}, NAN), block_of(DType::bf16, {-INFINITY}, INFINITY)}) {
    EXPECT_EQ(std::bit_cast<uint32_t>(nan), 0x7fffffffu);
  }
  Block zero{}, infinite{};
  infinite[3] = encoded(DType::bf16, INFINITY);
  EXPECT_TRUE(std::isnan(tensor_core_block(DType::bf16, zero.data(), infinite.data(), 1)));
}

/// Random factors: normal numbers, wide exponents, zeros and subnormal ones; `special` adds infinities and NaN.
Tensor factor(DType dtype, int64_t rows, int64_t columns, bool special, std::mt19937& random) {
  Tensor tensor("x", dtype, {rows, columns});
  for (int64_t i = 0; i < tensor.count(); ++i) {
    auto bits = static_cast<uint16_t>(random());
    if (!special) {
      const uint16_t exponents = dtype == DType::bf16 ? 0x7f80 : 0x7c00;
      if ((bits & exponents) == exponents) bits = static_cast<uint16_t>(bits & ~0x4000);
      if (random() % 3 != 0)
        bits = encoded(dtype, static_cast<double>(static_cast<int>(random() % 4001) - 2000) / 999.0);
      if (random() % 16 == 0) bits &= 0x807f;
    }
    std::memcpy(tensor.bytes.data() + 2 * i, &bits, 2);
  }
  return tensor;
}

TEST(TensorCore, AChainTakesBlocksInOrderInEveryLayout) {
  std::mt19937 random(3);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const bool special : {false, true}) {
      for (int layout = 0; layout < 4; ++layout) {
        const bool tx = layout % 2 != 0, ty = layout / 2 != 0;
        constexpr int64_t kM = 5, kK = 75, kN = 70;
        const Tensor x = factor(dtype, tx ? kK : kM, tx ? kM : kK, special, random);
        const Tensor y = factor(dtype, ty ? kN : kK, ty ? kK : kN, special, random);
        const auto bits_at = [](const Tensor& t, bool transposed, int64_t r, int64_t c) {
          uint16_t bits;
          std::memcpy(&bits, t.bytes.data() + 2 * (transposed ? c * t.shape[1] + r : r * t.shape[1] + c), 2);
          return bits;
        };
        const std::vector<RowSet> rows{{false, {1, 4}}};
        std::vector<int64_t> seen;
        int different = 0, finite = 0;
        emit_tensor_core_product({{},
                                  rows,
                                  2,
                                  [&](int output, int64_t row, const float* values) {
                                    EXPECT_EQ(output, 0);
                                    seen.push_back(row);
                                    for (int64_t j = 0; j < kN; ++j) {
                                      float expected = 0;
                                      for (int64_t at = 0; at < kK; at += kTensorCoreBlock) {
                                        Block a{}, b{};
                                        for (int64_t i = 0; i < std::min(kTensorCoreBlock, kK - at); ++i) {
                                          a[static_cast<size_t>(i)] = bits_at(x, tx, row, at + i);
                                          b[static_cast<size_t>(i)] = bits_at(y, ty, at + i, j);
                                        }
                                        expected = tensor_core_block(dtype, a.data(), b.data(), expected);
                                      }
                                      different +=
                                          std::bit_cast<uint32_t>(expected) != std::bit_cast<uint32_t>(values[j]);
                                      finite += std::isfinite(expected) ? 1 : 0;
                                    }
                                  }},
                                 0, {&x, x.shape[0], x.shape[1], tx}, {&y, y.shape[0], y.shape[1], ty});
        EXPECT_EQ(seen, (std::vector<int64_t>{1, 4}));
        EXPECT_EQ(different, 0) << info(dtype).name << " layout " << layout;
        if (!special) {
          EXPECT_GT(finite, kN / 4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace checkop
