// SPDX-License-Identifier: Apache-2.0
// The products of fp8_block_gemm's candidate "cuda-sm90": every configuration against sums in fp64, and its bits
// against those of the others and of single rows; sizes that no tile divides, NaN among the codes. Needs a Hopper GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "on_sm90.hpp"
#include "sm90/fp8_product.cuh"
#include "sm90_memory.cuh"

namespace checkop::kernels {
namespace {

/// Any codes, with NaN only if `nan`: then in every eighth row, about one code of 256.
__global__ void fill_codes(uint8_t* to, int64_t rows, int64_t k, uint64_t seed, bool nan) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * k; i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t u = mixed(i + (seed << 40));
    const auto code = static_cast<uint8_t>(u);
    const bool keeps = nan && i / k % 8 == 5 && u >> 8 & 1;
    to[i] = (code & 0x7f) == 0x7f && !keeps ? code ^ 1 : code;
  }
}
__global__ void fill_scales(float* to, int64_t count, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x)
    to[i] = (0.5f + mixed(i + (seed << 40)) * 0x1p-32f) / 256;
}

struct Fp8Sizes {
  int64_t m, n, k;
  int64_t blocks() const { return ceil_div(k, 128); }
};

struct Operands {
  Operands(const Fp8Sizes& shape, bool nan)
      : at(shape),
        a(at.m * at.k),
        b(at.n * at.k),
        scale_a(at.m * at.blocks()),
        scale_b(ceil_div(at.n, 128) * at.blocks()) {
    fill_codes<<<128, 256>>>(a.data(), at.m, at.k, 1, nan);
    fill_codes<<<128, 256>>>(b.data(), at.n, at.k, 2, nan);
    fill_scales<<<128, 256>>>(scale_a.data(), scale_a.count(), 3);
    fill_scales<<<128, 256>>>(scale_b.data(), scale_b.count(), 4);
  }
  /// d of rows [first, first + rows), with the bytes behind it.
  template <typename Config, typename T>
  std::vector<uint8_t> product(int64_t first, int64_t rows) const {
    Buffer<T> d(rows * at.n);
    sm90::Fp8Params<T> p{};
    p.scale_a = scale_a.data() + first * at.blocks(), p.scale_b = scale_b.data(), p.d = d.data();
    p.rows = rows, p.n_dim = at.n, p.k_dim = at.k, p.blocks = static_cast<int>(at.blocks());
    const sm90::Matrix of_a{a.data() + first * at.k, at.k, rows, at.k}, of_b{b.data(), at.k, at.n, at.k};
    const int64_t tiles = ceil_div(rows, Config::kM * Config::kClusterM);
    EXPECT_EQ(sm90::launch_fp8<Config>(p, of_a, of_b, tiles, nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return d.read();
  }

  Fp8Sizes at;
  Buffer<uint8_t> a, b;
  Buffer<float> scale_a, scale_b;
};

template <typename Run>
void with_every_config(Run&& run) {
  run(sm90::Fp8Tile128x128{});
  run(sm90::Fp8Tile128x128Columns{});
  run(sm90::Fp8Tile128x128Rows{});
  run(sm90::Fp8Tile128x64{});
  run(sm90::Fp8Tile64x128Columns{});
  run(sm90::Fp8Tile64x128{});
  run(sm90::Fp8Tile64x64{});
}

const std::vector<Fp8Sizes> kSizes{{1, 1, 16},       {9, 140, 128},   {63, 33, 256},   {64, 64, 272},
                                   {65, 129, 384},   {130, 256, 16},  {257, 200, 528}, {300, 456, 1040},
                                   {129, 1032, 896}, {1100, 520, 640}};

std::string text(const Fp8Sizes& at, const char* variant) {
  return "m " + std::to_string(at.m) + " n " + std::to_string(at.n) + " k " + std::to_string(at.k) + ", " + variant;
}

class Fp8OnSm90 : public OnSm90 {};

template <typename T>
void expect_same_fp8_bits() {
  for (const Fp8Sizes& at : kSizes) {
    const Operands operands(at, true);
    const std::vector<uint8_t> expected = operands.product<sm90::Fp8Tile64x64, T>(0, at.m);
    for (int64_t i = at.m * at.n * sizeof(T); i < std::ssize(expected); ++i)
      ASSERT_EQ(expected[i], Buffer<T>::kUntouched);
    with_every_config([&]<typename Config>(Config) {
      EXPECT_EQ((operands.product<Config, T>(0, at.m)), expected) << text(at, Config::kVariant);
      for (const int64_t row : {int64_t{0}, at.m / 2, at.m - 1}) {
        // The codes of a row alone begin at a multiple of 16 bytes.
        const std::vector<uint8_t> alone = operands.product<Config, T>(row, 1);
        EXPECT_EQ(std::memcmp(alone.data(), expected.data() + row * at.n * sizeof(T), at.n * sizeof(T)), 0)
            << "row " << row << " of " << text(at, Config::kVariant);
      }
    });
  }
}
TEST_F(Fp8OnSm90, EveryConfigurationAndARowAloneHaveTheSameBits) {
  expect_same_fp8_bits<__nv_bfloat16>();
  expect_same_fp8_bits<__half>();
  expect_same_fp8_bits<float>();
}

/// e4m3: 4 bits of exponent, 3 of fraction; all of them set is NaN.
double value_of(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 127) == 127) return NAN;
  const double size = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code & 128 ? -size : size;
}

TEST_F(Fp8OnSm90, ErrorsAreThoseOfTruncatedSums) {
  int64_t finite = 0, not_finite = 0;
  for (const Fp8Sizes& at : kSizes) {
    const Operands operands(at, true);
    const std::vector<uint8_t> bytes = operands.product<sm90::Fp8Tile128x128Rows, float>(0, at.m),
                               a = operands.a.read(), b = operands.b.read(), of_a = operands.scale_a.read(),
                               of_b = operands.scale_b.read();
    const auto number = [](const std::vector<uint8_t>& from, int64_t i) {
      float x;
      std::memcpy(&x, from.data() + i * sizeof(x), sizeof(x));
      return x;
    };
    for (int64_t i = 0; i < at.m * at.n; i += 7) {
      const int64_t row = i / at.n, column = i % at.n;
      double gold = 0, size = 0;
      for (int64_t block = 0; block < at.blocks(); ++block) {
        double sum = 0, squares = 0;
        for (int64_t k = block * 128; k < std::min(at.k, (block + 1) * 128); ++k) {
          const double product = value_of(a[row * at.k + k]) * value_of(b[column * at.k + k]);
          sum += product, squares += product * product;
        }
        const double scale =
            double{number(of_a, row * at.blocks() + block)} * number(of_b, column / 128 * at.blocks() + block);
        gold += scale * sum, size += scale * (std::abs(sum) + std::sqrt(squares));
      }
      const float got = number(bytes, i);
      ASSERT_EQ(std::isnan(got), std::isnan(gold)) << row << " " << column << " of " << text(at, "");
      ++(std::isnan(gold) ? not_finite : finite);
      if (std::isnan(gold)) continue;
      // As reference/fp8_product.cpp has it, for acc_bits 14 and acc_terms 32.
      ASSERT_LE(std::abs(got - gold), 4 * 33 * 0x1p-13 * size) << row << " " << column << " of " << text(at, "");
    }
  }
  EXPECT_GT(finite, 1000);
  EXPECT_GT(not_finite, 100);
}

}  // namespace
}  // namespace checkop::kernels
