// SPDX-License-Identifier: Apache-2.0
// The tensor core model: vectors measured on an H200, a formula, and the fast path against one block at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tensor_core.hpp"

namespace checkop::tensor_core_test {
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
  EXPECT_EQ(block_of(DType::bf16, {0x1p-24, 0x1p-24}, 1), next);  // within 25 places: they add up
  EXPECT_EQ(block_of(DType::bf16, {0x1.8p-24}, 1), 1);            // the sum is truncated, not rounded
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

/// Kinds of operand values: `ordinary` numbers around 1, which the fast path accepts; `wide` exponents, zeros and
/// subnormal numbers, which it sometimes accepts; `small` and `large` ones, at both ends of what it accepts; `special`
/// with infinities and NaN.
enum class Kind : uint8_t { ordinary, wide, small, large, special };
constexpr Kind kKinds[] = {Kind::ordinary, Kind::wide, Kind::small, Kind::large, Kind::special};

Tensor factor(DType dtype, int64_t rows, int64_t columns, Kind kind, std::mt19937& random) {
  Tensor tensor("x", dtype, {rows, columns});
  for (int64_t i = 0; i < tensor.count(); ++i) {
    auto bits = static_cast<uint16_t>(random());
    const uint16_t number = encoded(dtype, static_cast<double>(static_cast<int>(random() % 4001) - 2000) / 999.0);
    if (kind == Kind::ordinary) bits = number;
    if (kind == Kind::wide) {
      const uint16_t exponents = dtype == DType::bf16 ? 0x7f80 : 0x7c00;
      if ((bits & exponents) == exponents) bits = static_cast<uint16_t>(bits & ~0x4000);
      if (random() % 3 != 0) bits = number;
      if (random() % 16 == 0) bits &= 0x807f;
    }
    if (kind == Kind::small || kind == Kind::large) {
      const bool bf16 = dtype == DType::bf16, small = kind == Kind::small;
      // Products of bf16 from 2^-138 to 2^-80, by row, and from 2^114 to 2^128; fp16 has none that far out.
      const int by_row = static_cast<int>(i / columns % 12) * 2;
      const int lowest = bf16 ? (small ? 58 + by_row : 184) : (small ? 0 : 28), count = bf16 ? 8 : 3;
      const int field = lowest + static_cast<int>(random() % static_cast<unsigned>(count));
      bits = static_cast<uint16_t>((bits & (bf16 ? 0x807f : 0x83ff)) | field << (bf16 ? 7 : 10));
    }
    std::memcpy(tensor.bytes.data() + 2 * i, &bits, 2);
  }
  return tensor;
}

uint16_t bits_at(const Tensor& t, bool transposed, int64_t r, int64_t c) {
  uint16_t bits;
  std::memcpy(&bits, t.bytes.data() + 2 * (transposed ? c * t.shape[1] + r : r * t.shape[1] + c), 2);
  return bits;
}

/// x * y as computed by emit_tensor_core_product, in all rows.
std::vector<float> product(const Factor& x, const Factor& y, const ModelOrder& order = {},
                           const Tensor* bias = nullptr) {
  const std::vector<RowSet> all(1);
  std::vector<float> values;
  const int64_t n = y.transposed ? y.rows : y.columns;
  emit_tensor_core_product(
      {{}, all, order, 2, [&](int, int64_t, const float* row) { values.insert(values.end(), row, row + n); }}, 0, x, y,
      bias);
  return values;
}
Factor matrix(const Tensor& t) { return {&t, t.shape[0], t.shape[1]}; }

/// Number of elements whose bits differ.
int differences(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  int different = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    different += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]);
  return different;
}

/// Blocks [first, last) of row r of x and column j of y, one after the other.
float chain(const Tensor& x, bool tx, const Tensor& y, bool ty, int64_t r, int64_t j, int64_t first, int64_t last) {
  const int64_t k = tx ? x.shape[0] : x.shape[1];
  float sum = 0;
  for (int64_t at = first * kTensorCoreBlock; at < std::min(k, last * kTensorCoreBlock); at += kTensorCoreBlock) {
    Block a{}, b{};
    for (int64_t i = 0; i < std::min(kTensorCoreBlock, k - at); ++i) {
      a[static_cast<size_t>(i)] = bits_at(x, tx, r, at + i);
      b[static_cast<size_t>(i)] = bits_at(y, ty, at + i, j);
    }
    sum = tensor_core_block(x.dtype, a.data(), b.data(), sum);
  }
  return sum;
}

TEST(TensorCore, AChainTakesBlocksInOrderInEveryLayout) {
  std::mt19937 random(3);
  constexpr int64_t kM = 5, kK = 75, kN = 70;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Kind kind : kKinds) {
      for (int layout = 0; layout < 4; ++layout) {
        const bool tx = layout % 2 != 0, ty = layout / 2 != 0;
        const Tensor x = factor(dtype, tx ? kK : kM, tx ? kM : kK, kind, random);
        const Tensor y = factor(dtype, ty ? kN : kK, ty ? kK : kN, kind, random);
        std::vector<float> expected;
        for (int64_t r = 0; r < kM; ++r)
          for (int64_t j = 0; j < kN; ++j) expected.push_back(chain(x, tx, y, ty, r, j, 0, 5));
        const std::vector<float> got = product({&x, x.shape[0], x.shape[1], tx}, {&y, y.shape[0], y.shape[1], ty});
        EXPECT_EQ(differences(got, expected), 0) << info(dtype).name << " layout " << layout;
        const auto finite = std::count_if(got.begin(), got.end(), [](float v) { return std::isfinite(v); });
        EXPECT_TRUE(kind == Kind::large || kind == Kind::special || finite > kM * kN / 4) << finite;
      }
    }
  }
}

TEST(TensorCore, GivesTheRowsThatAreWanted) {
  std::mt19937 random(4);
  const Tensor x = factor(DType::bf16, 300, 20, Kind::ordinary, random),
               y = factor(DType::bf16, 20, 3, Kind::ordinary, random);
  const std::vector<float> all = product(matrix(x), matrix(y));
  RowSet wanted{false, {1, 4}};
  for (int64_t r = 30; r < 300; ++r) wanted.chosen.push_back(r);  // more than are computed at once
  std::vector<RowSet> sets(2, RowSet{false, {}});
  sets[1] = wanted;
  std::vector<int64_t> seen;
  emit_tensor_core_product({{},
                            sets,
                            {},
                            2,
                            [&](int output, int64_t row, const float* values) {
                              EXPECT_EQ(output, 1);
                              seen.push_back(row);
                              for (int64_t j = 0; j < 3; ++j)
                                EXPECT_EQ(values[j], all[static_cast<size_t>(row * 3 + j)]);
                            }},
                           1, matrix(x), matrix(y));
  EXPECT_EQ(seen, wanted.chosen);
}

/// Kernels read zeros beyond the end of K, sometimes many.
TEST(TensorCore, ZerosAppendedToKChangeNothing) {
  std::mt19937 random(5);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Kind kind : {Kind::ordinary, Kind::wide}) {
      for (const int64_t k : {1, 15, 16, 17, 40}) {
        const Tensor x = factor(dtype, 9, k, kind, random), y = factor(dtype, 33, k, kind, random);
        const std::vector<float> short_sums = product(matrix(x), {&y, 33, k, true});
        for (const uint16_t zero : {0x0000, 0x8000}) {
          const int64_t padded_k = k + 64;
          Tensor px("x", dtype, {9, padded_k}), py("y", dtype, {33, padded_k});
          for (const auto& [from, to] : {std::pair{&x, &px}, std::pair{&y, &py}}) {
            for (int64_t r = 0; r < from->shape[0]; ++r) {
              for (int64_t i = 0; i < padded_k; ++i) {
                const uint16_t bits = i < k ? bits_at(*from, false, r, i) : from == &x ? zero : 0;
                std::memcpy(to->bytes.data() + 2 * (r * padded_k + i), &bits, 2);
              }
            }
          }
          EXPECT_EQ(differences(product(matrix(px), {&py, 33, padded_k, true}), short_sums), 0) << k;
        }
      }
    }
  }
}

TEST(TensorCore, ASumIsNeverNegativeZero) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Block minus, one;
    minus.fill(0x8000), one.fill(encoded(dtype, 1));
    EXPECT_EQ(std::bit_cast<uint32_t>(tensor_core_block(dtype, minus.data(), one.data(), -0.0f)), 0U);
    EXPECT_EQ(std::bit_cast<uint32_t>(tensor_core_block(dtype, minus.data(), one.data(), 0.0f)), 0U);
  }
  // Nor when the whole sum is truncated: bf16 has products below the smallest fp32 number.
  Block tiny{}, negative{};
  tiny[0] = encoded(DType::bf16, 0x1p-80), negative[0] = encoded(DType::bf16, -0x1p-80);
  EXPECT_EQ(std::bit_cast<uint32_t>(tensor_core_block(DType::bf16, tiny.data(), negative.data(), 0)), 0U);
}

TEST(TensorCore, SplitSumsAreAddedInFp32InOrder) {
  std::mt19937 random(6);
  constexpr int64_t kM = 3, kK = 330, kN = 20;  // 21 blocks: runs of 11, 6 and 3
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor x = factor(dtype, kM, kK, Kind::ordinary, random), y = factor(dtype, kK, kN, Kind::ordinary, random);
    for (const auto& [parts, run] : {std::pair{2, 11}, std::pair{4, 6}, std::pair{8, 3}}) {
      for (const bool narrow : {false, true}) {
        std::vector<float> expected;
        for (int64_t r = 0; r < kM; ++r) {
          for (int64_t j = 0; j < kN; ++j) {
            float sum = 0;
            for (int64_t first = 0; first < 21; first += run) {
              const float part = chain(x, false, y, false, r, j, first, first + run);
              double stored = 0;
              const uint16_t bits = encoded(dtype, part);
              info(dtype).decode(reinterpret_cast<const std::byte*>(&bits), &stored, 1);
              sum += narrow ? static_cast<float>(stored) : part;
            }
            expected.push_back(sum);
          }
        }
        const std::vector<float> got = product(matrix(x), matrix(y), {16, parts, narrow});
        EXPECT_EQ(differences(got, expected), 0) << parts << narrow;
        EXPECT_GT(differences(got, product(matrix(x), matrix(y))), 0) << parts << narrow;
      }
    }
  }
}

TEST(TensorCore, LongSumsAreTakenApartInChunks) {
  std::mt19937 random(9);
  constexpr int64_t kK = 2100;
  const Tensor x = factor(DType::bf16, 2, kK, Kind::ordinary, random),
               y = factor(DType::bf16, kK, 3, Kind::ordinary, random);
  std::vector<float> whole, halves;
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t j = 0; j < 3; ++j) {
      whole.push_back(chain(x, false, y, false, r, j, 0, 132));
      halves.push_back(chain(x, false, y, false, r, j, 0, 66) + chain(x, false, y, false, r, j, 66, 132));
    }
  }
  EXPECT_EQ(differences(product(matrix(x), matrix(y)), whole), 0);
  EXPECT_EQ(differences(product(matrix(x), matrix(y), {16, 2}), halves), 0);
  EXPECT_GT(differences(whole, halves), 0);
}

TEST(TensorCore, ASerialChainRoundsEveryProductOnce) {
  std::mt19937 random(7);
  constexpr int64_t kK = 50, kN = 20;
  const Tensor x = factor(DType::f16, 1, kK, Kind::ordinary, random),
               y = factor(DType::f16, kK, kN, Kind::ordinary, random);
  std::vector<float> expected;
  for (int64_t j = 0; j < kN; ++j) {
    float sum = 0;
    for (int64_t i = 0; i < kK; ++i)
      sum = std::fma(static_cast<float>(x.at(i)), static_cast<float>(y.at(i * kN + j)), sum);
    expected.push_back(sum);
  }
  EXPECT_EQ(differences(product(matrix(x), matrix(y), {1, 1}), expected), 0);
}

/// Blocks of 8 that keep 24 bits, as published for sm_80.
TEST(TensorCore, BlocksOfEightKeepOneBitLess) {
  const auto sum = [](const std::vector<double>& values, int64_t width) {
    Tensor x("x", DType::bf16, {1, std::ssize(values)}), y("y", DType::bf16, {std::ssize(values), 1});
    for (int64_t i = 0; i < x.count(); ++i) x.set(i, values[static_cast<size_t>(i)]), y.set(i, 1);
    return product(matrix(x), matrix(y), {width, 1}).front();
  };
  const float next = std::nextafter(1.0f, 2.0f);
  EXPECT_EQ(sum({1, 0x1p-24, 0x1p-24}, 8), next);
  EXPECT_EQ(sum({1, 0x1p-25, 0x1p-25, 0x1p-25, 0x1p-25}, 16), next);
  EXPECT_EQ(sum({1, 0x1p-25, 0x1p-25, 0x1p-25, 0x1p-25}, 8), 1);
  // The second eight terms are added to an already truncated sum.
  const std::vector<double> spread{1, 0x1p-24, 0, 0, 0, 0, 0, 0, 0x1p-24};
  EXPECT_EQ(sum(spread, 16), next);
  EXPECT_EQ(sum(spread, 8), 1);
}

TEST(TensorCore, TheBiasIsAddedLastInFp32) {
  Tensor x("x", DType::bf16, {2, 1}), y("y", DType::bf16, {1, 3}), bias("bias", DType::bf16, {3});
  for (int64_t i = 0; i < 2; ++i) x.set(i, static_cast<double>(i + 1));
  for (int64_t j = 0; j < 3; ++j) y.set(j, static_cast<double>(j + 1)), bias.set(j, 0x1p-20 * static_cast<double>(j));
  EXPECT_EQ(product(matrix(x), matrix(y), {}, &bias),
            (std::vector<float>{1, 2 + 0x1p-20f, 3 + 0x1p-19f, 2, 4 + 0x1p-20f, 6 + 0x1p-19f}));
}

TEST(TensorCore, DoesNotDependOnThreads) {
  std::mt19937 random(8);
  const Tensor x = factor(DType::bf16, 20, 100, Kind::wide, random),
               y = factor(DType::bf16, 100, 200, Kind::wide, random);
  const std::vector<RowSet> all(1);
  std::vector<float> one;
  emit_tensor_core_product(
      {{}, all, {}, 1, [&](int, int64_t, const float* row) { one.insert(one.end(), row, row + 200); }}, 0, matrix(x),
      matrix(y));
  EXPECT_EQ(differences(one, product(matrix(x), matrix(y))), 0);
}

// --- codes -----------------------------------------------------------------------------------------------------------

using Codes = std::vector<uint8_t>;

uint8_t code(double value) {
  uint8_t bits;
  info(DType::e4m3).encode(&value, reinterpret_cast<std::byte*>(&bits), 1);
  return bits;
}
double value_of(uint8_t bits) {
  double value;
  info(DType::e4m3).decode(reinterpret_cast<const std::byte*>(&bits), &value, 1);
  return value;
}

/// A block for every 32 codes, one after the other.
float chain_of_codes(const Codes& x, const Codes& y, float accumulator) {
  for (size_t at = 0; at < x.size(); at += kTensorCoreCodes)
    accumulator = tensor_core_code_block(&x[at], &y[at], accumulator);
  return accumulator;
}

/// A block of the products values[i] * 1.
float block_of_codes(const std::vector<double>& values, float accumulator) {
  Codes x(kTensorCoreCodes), y(x);
  for (size_t i = 0; i < values.size(); ++i) x[i] = code(values[i]), y[i] = code(1);
  return tensor_core_code_block(x.data(), y.data(), accumulator);
}

TEST(TensorCoreCodes, HaveTheBitsThatWereMeasured) {
  std::ifstream file(CHECKOP_SOURCE_DIR "/tests/data/tensor_core_e4m3.json");
  const auto hex = [](const std::string& text) { return static_cast<uint32_t>(std::stoul(text, nullptr, 16)); };
  const auto codes = [&](const std::string& text) {
    Codes all;
    for (size_t i = 0; i < text.size(); i += 2) all.push_back(static_cast<uint8_t>(hex(text.substr(i, 2))));
    return all;
  };
  int compared = 0;
  const nlohmann::json document = nlohmann::json::parse(file);
  for (const nlohmann::json& vector : document.at("vectors")) {
    const float got = chain_of_codes(codes(vector.at("x")), codes(vector.at("y")),
                                     std::bit_cast<float>(hex(vector.at("accumulator"))));
    EXPECT_EQ(std::bit_cast<uint32_t>(got), hex(vector.at("result"))) << vector;
    ++compared;
  }
  EXPECT_EQ(compared, 177);
}

TEST(TensorCoreCodes, TermsAreCutTowardZeroThirteenPlacesBelowTheLargest) {
  EXPECT_EQ(block_of_codes({128, 0x1p-6, 0x1p-6, 0x1.cp-7}, 0), 128 + 0x1p-5f);
  EXPECT_EQ(block_of_codes({-128, 0x1p-6, -0x1p-6, -0x1.cp-7}, 0), -128);
  EXPECT_EQ(block_of_codes({128, 128, 0x1p-6}, 0), 256);  // the sum has the place only before it is cut
  EXPECT_EQ(block_of_codes({0x1p-6}, 0x1.0001p7f), 128 + 0x1p-6f);
  EXPECT_EQ(block_of_codes({}, 0x1.0001p7f), 128);
  EXPECT_EQ(block_of_codes({}, -0x1p-149f), 0);
}

// 1.5 * 1.5 counts as exponent 0, and 2^-9 as -6, the exponent of the smallest normal code. A product of 0 does not
// count.
TEST(TensorCoreCodes, TheExponentOfAProductIsThatOfItsCodes) {
  const auto with = [](double x, double y) {
    Codes a(kTensorCoreCodes), b(a);
    a[0] = code(x), b[0] = code(y);
    return tensor_core_code_block(a.data(), b.data(), 0x1.000cp-7f);
  };
  EXPECT_EQ(with(0, 448), 0x1.0008p-7f);
  EXPECT_EQ(with(0x1p-9, 1), 0x1.4p-7f);  // the accumulator has exponent -7
  EXPECT_EQ(block_of_codes({}, 0), 0);
  Codes a(kTensorCoreCodes), b(a);
  a[0] = b[0] = code(1.5), a[1] = code(-1.5), b[1] = code(1.5);
  EXPECT_EQ(tensor_core_code_block(a.data(), b.data(), 0x1p-13f), 0x1p-13f);
  a[1] = code(-2.25), b[1] = code(1);
  EXPECT_EQ(tensor_core_code_block(a.data(), b.data(), 0x1p-13f), 0);
}

TEST(TensorCoreCodes, ZerosArePositiveAndNaNHasOnePattern) {
  EXPECT_EQ(std::bit_cast<uint32_t>(block_of_codes({-0.0, 1, -1}, -0.0f)), 0U);
  EXPECT_EQ(std::bit_cast<uint32_t>(block_of_codes({NAN}, 0)), 0x7fffffffU);
  EXPECT_EQ(std::bit_cast<uint32_t>(block_of_codes({1}, -NAN)), 0x7fffffffU);
  EXPECT_EQ(block_of_codes({448}, -INFINITY), -INFINITY);
  Codes zero(kTensorCoreCodes), nan(zero);
  nan[31] = 0xff;
  EXPECT_EQ(std::bit_cast<uint32_t>(tensor_core_code_block(zero.data(), nan.data(), INFINITY)), 0x7fffffffU);
}

/// The formula in fp64, in which all of its sums are exact.
double formula(const Codes& x, const Codes& y, float accumulator) {
  const auto exponent = [](double v, int least) { return v == 0 ? -1000 : std::max(std::ilogb(v), least); };
  int largest = exponent(static_cast<double>(accumulator), -126);
  for (size_t i = 0; i < x.size(); ++i)
    largest = std::max(largest, exponent(value_of(x[i]), -6) + exponent(value_of(y[i]), -6));
  const auto cut = [](double v, int place) { return std::ldexp(std::trunc(std::ldexp(v, -place)), place); };
  double sum = cut(static_cast<double>(accumulator), largest - 13);
  for (size_t i = 0; i < x.size(); ++i) sum += cut(value_of(x[i]) * value_of(y[i]), largest - 13);
  return cut(sum, std::max(exponent(sum, -126), -126) - 13);
}

TEST(TensorCoreCodes, ABlockIsTheFormula) {
  std::mt19937 random(11);
  int different = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    Codes x(kTensorCoreCodes), y(x);
    // Codes of the whole range, of few exponents, or subnormal ones; some zeros among them.
    const unsigned kind = random() % 3, first = random() % 12;
    for (Codes* each : {&x, &y}) {
      for (uint8_t& bits : *each) {
        bits = static_cast<uint8_t>(random());
        if (kind == 1) bits = static_cast<uint8_t>((bits & 0x87) | (first + random() % 3) << 3);
        if (kind == 2 && each == &x) bits &= 0x87;
        if (random() % 8 == 0 || (bits & 0x7f) == 0x7f) bits &= 0x80;
      }
    }
    const auto accumulator =
        static_cast<float>(std::ldexp(random() * 0x1p-31 - 1, static_cast<int>(random() % 40) - 20));
    const float got = tensor_core_code_block(x.data(), y.data(), trial % 2 == 0 ? accumulator : 0);
    different += static_cast<double>(got) != formula(x, y, trial % 2 == 0 ? accumulator : 0) ? 1 : 0;
  }
  EXPECT_EQ(different, 0);
}

/// Operands of codes, k along their rows, and their scales. Both are parts of larger tensors.
struct CodesOf {
  static constexpr int64_t kAbove = 2;  // rows above the part
  int64_t rows, k, rows_of_scale;
  Tensor codes{"codes", DType::e4m3, {rows + kAbove, k}};
  Tensor scales{"scales", DType::f32, {(rows - 1) / rows_of_scale + 1 + kAbove, (k + 127) / 128}};

  CodesOf(int64_t rows_, int64_t k_, int64_t rows_of_scale_, std::mt19937& random)
      : rows(rows_), k(k_), rows_of_scale(rows_of_scale_) {
    for (std::byte& each : std::span(codes.bytes.data(), codes.bytes.size())) {
      each = static_cast<std::byte>(random());
      if (random() % 4 == 0) each &= std::byte{0x87};
      if ((each & std::byte{0x7f}) == std::byte{0x7f} && random() % 64 != 0) each = std::byte{};
    }
    for (int64_t i = 0; i < scales.count(); ++i) scales.set(i, random() * 0x1p-30 - 1);
  }
  Factor factor(bool transposed) const { return {&codes, rows, k, transposed, kAbove}; }
  CodeScales of_scales() const { return {&scales, rows_of_scale, kAbove}; }
  float scale(int64_t row, int64_t block) const {
    return static_cast<float>(scales.at((kAbove + row / rows_of_scale) * scales.shape[1] + block));
  }
  Codes block(int64_t row, int64_t index) const {
    Codes found(128);
    for (int64_t i = 0; i < std::min<int64_t>(128, k - index * 128); ++i)
      found[static_cast<size_t>(i)] =
          std::to_integer<uint8_t>(codes.bytes.data()[(kAbove + row) * k + index * 128 + i]);
    return found;
  }
};

std::vector<float> product_of_codes(const CodesOf& x, const CodesOf& y, const ModelOrder& order) {
  const std::vector<RowSet> all(1);
  std::vector<float> values;
  const ProductScales scales{x.of_scales(), y.of_scales()};
  const auto take = [&](int, int64_t, const float* row) { values.insert(values.end(), row, row + y.rows); };
  emit_tensor_core_product({{}, all, order, 2, take}, 0, x.factor(false), y.factor(true), nullptr, &scales);
  return values;
}

TEST(TensorCoreCodes, EveryBlockOf128IsAddedTimesItsScales) {
  std::mt19937 random(12);
  for (const int64_t k : {1, 32, 45, 128, 300, 1290}) {
    const CodesOf x(5, k, 1, random), y(140, k, 128, random);
    std::vector<float> expected, halves;
    const int64_t blocks = (k + 127) / 128, half = (blocks + 1) / 2;
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t j = 0; j < y.rows; ++j) {
        float sum = 0, first = 0, second = 0;
        for (int64_t at = 0; at < blocks; ++at) {
          const float scale = x.scale(r, at) * y.scale(j, at);
          const float of_block = chain_of_codes(x.block(r, at), y.block(j, at), 0);
          sum = std::fma(scale, of_block, sum);
          float& part = at < half ? first : second;
          part = std::fma(scale, of_block, part);
        }
        expected.push_back(sum), halves.push_back(first + second);
      }
    }
    const std::vector<float> got = product_of_codes(x, y, {kTensorCoreCodes, 1});
    EXPECT_EQ(differences(got, expected), 0) << k;
    EXPECT_EQ(differences(product_of_codes(x, y, {kTensorCoreCodes, 2}), halves), 0) << k;
    const auto finite = std::count_if(got.begin(), got.end(), [](float v) { return std::isfinite(v); });
    EXPECT_GT(finite, std::ssize(got) / 4) << k;
  }
}

TEST(TensorCoreCodes, ASerialChainRoundsEveryProductOfABlockOnce) {
  std::mt19937 random(13);
  const CodesOf x(3, 200, 1, random), y(20, 200, 128, random);
  std::vector<float> expected;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t j = 0; j < y.rows; ++j) {
      float sum = 0;
      for (const int64_t at : {0, 1}) {
        float of_block = 0;
        const Codes a = x.block(r, at), b = y.block(j, at);
        for (size_t i = 0; i < a.size(); ++i)
          of_block = std::fma(static_cast<float>(value_of(a[i])), static_cast<float>(value_of(b[i])), of_block);
        sum = std::fma(x.scale(r, at) * y.scale(j, at), of_block, sum);
      }
      expected.push_back(sum);
    }
  }
  const std::vector<float> got = product_of_codes(x, y, {1, 1});
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]))) << i;
  EXPECT_GT(differences(got, product_of_codes(x, y, {kTensorCoreCodes, 1})), 0);
}

}  // namespace
}  // namespace checkop::tensor_core_test
