// SPDX-License-Identifier: Apache-2.0
// Compares the products of the candidates "cuda-sm90" with those of the candidates "cuda", bit by bit: every
// configuration, every layout, sizes that no tile divides, values at the limits of the formats. Needs a Hopper GPU.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "on_sm90.hpp"
#include "sm90/select.cuh"
#include "sm90_memory.cuh"

namespace checkop::kernels {
namespace {

enum class Along { k_rows, k_k, rows_rows };  // which index is contiguous in a and in b
enum class Values { normal, spread, not_finite, zeros, tiny };

template <typename T>
__global__ void fill(T* to, int64_t count, uint64_t seed, Values values) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t u = mixed(2 * i + (seed << 40)), v = mixed(2 * i + 1 + (seed << 40));
    float x = sqrtf(-2.0f * logf((u + 1.0f) * 0x1p-32f)) * cospif(v * 0x1p-31f);
    if (values == Values::spread) x = u % 2 ? copysignf(0.0f, x) : ldexpf(x, static_cast<int>(v >> 7 & 15) - 8);
    if (values == Values::not_finite && v % 1024 == 0) x = u % 3 == 0 ? NAN : copysignf(INFINITY, x);
    if (values == Values::zeros) x = copysignf(0.0f, x);
    if (values == Values::tiny) x = ldexpf(x, std::is_same_v<T, __half> ? -20 : -66);  // products of bf16 are subnormal
    to[i] = from_float<T>(x);
  }
}

/// a, b and c begin `offset` elements into their memory.
struct Shape {
  int64_t m, n, k;
  int64_t offset = 0;
  bool with_bias = false;
};

template <typename T, typename Multiply>
std::vector<uint8_t> multiply(const Shape& at, Along along, Values values, Multiply&& with) {
  Buffer<T> a(at.offset + at.m * at.k), b(at.offset + at.n * at.k), bias(at.n), c(at.offset + at.m * at.n);
  uint64_t seed = 0;
  for (const Buffer<T>* to : {&a, &b, &bias}) {
    fill<<<128, 256>>>(to->data(), to->count() + Buffer<T>::kBehind, ++seed, values);
  }
  const T *left = a.data() + at.offset, *right = b.data() + at.offset, *add = at.with_bias ? bias.data() : nullptr;
  const auto run = [&](auto x, auto y) { return with(x, y, at.k, add, c.data() + at.offset); };
  const auto error =
      along == Along::k_rows ? run(make_operand<true>(left, at.k, at.m), make_operand<false>(right, at.n, at.n))
      : along == Along::k_k  ? run(make_operand<true>(left, at.k, at.m), make_operand<true>(right, at.k, at.n))
                             : run(make_operand<false>(left, at.m, at.m), make_operand<false>(right, at.n, at.n));
  EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return c.read();
}

struct Portable {
  template <typename T, bool a_along_k, bool b_along_k>
  cudaError_t operator()(const Operand<T, a_along_k>& a, const Operand<T, b_along_k>& b, int64_t k, const T* bias,
                         T* c) const {
    (void)launch_mma(a, b, k, bias, c, nullptr);
    return cudaGetLastError();
  }
};
template <typename Config>
struct With {
  template <typename T, bool a_along_k, bool b_along_k>
  cudaError_t operator()(const Operand<T, a_along_k>& a, const Operand<T, b_along_k>& b, int64_t k, const T* bias,
                         T* c) const {
    if constexpr (Config::kTransposes && !a_along_k) {
      return cudaErrorNotSupported;
    } else {
      return sm90::launch<Config>(a, b, k, bias, c, nullptr);
    }
  }
};
struct Chosen {
  template <typename T, bool a_along_k, bool b_along_k>
  cudaError_t operator()(const Operand<T, a_along_k>& a, const Operand<T, b_along_k>& b, int64_t k, const T* bias,
                         T* c) const {
    const char* variant = "";
    return sm90::Product::launch<a_along_k, b_along_k, T>(a.data, b.data, a.extent, k, b.extent, bias, c, nullptr,
                                                          nullptr, variant);
  }
};

std::string text(const Shape& at, Along along, Values values) {
  char line[160];
  snprintf(line, sizeof(line), "m %lld n %lld k %lld offset %lld bias %d layout %d values %d",
           static_cast<long long>(at.m), static_cast<long long>(at.n), static_cast<long long>(at.k),
           static_cast<long long>(at.offset), at.with_bias, static_cast<int>(along), static_cast<int>(values));
  return line;
}

constexpr Along kAlongs[] = {Along::k_rows, Along::k_k, Along::rows_rows};
constexpr Values kAllValues[] = {Values::normal, Values::spread, Values::not_finite, Values::zeros, Values::tiny};

using Sm90 = OnSm90;

/// Expects this configuration, for products of at most `max_rows` rows, to have the bits of mma.sync and to write
/// nothing else.
template <typename Config, typename T>
void expect_same_bits(int64_t max_rows) {
  const Shape shapes[] = {{8, 8, 8},
                          {1, 4096, 520, 0, true},
                          {5, 264, 1000},
                          {16, 40, 72, 0, true},
                          {64, 520, 264},
                          {72, 1032, 200},
                          {128, 200, 1160},
                          {136, 8, 16},
                          {520, 776, 88},
                          {1032, 264, 136},
                          {264, 4104, 72, 0, true},
                          // One step of k and many tiles per block: a tile is stored while the next one is already
                          // computed.
                          {40008, 200, 16}};
  for (const Shape& at : shapes) {
    if (at.m > max_rows) continue;
    for (const Along along : kAlongs) {
      if (along == Along::rows_rows && (at.m % 8 != 0 || Config::kTransposes)) continue;
      for (const Values values : kAllValues) {
        EXPECT_TRUE((multiply<T>(at, along, values, With<Config>{}) == multiply<T>(at, along, values, Portable{})))
            << Config::kVariant << ": " << text(at, along, values);
      }
    }
  }
}
template <typename Config>
void expect_same_bits(int64_t max_rows = 1 << 30) {
  expect_same_bits<Config, __nv_bfloat16>(max_rows);
  expect_same_bits<Config, __half>(max_rows);
}

TEST_F(Sm90, WideTilesHaveTheBitsOfMmaSync) {
  expect_same_bits<sm90::Tile128x256Columns>();
  expect_same_bits<sm90::Divided128x256Columns>();
  expect_same_bits<sm90::Divided128x256Rows>();
  expect_same_bits<sm90::Tile128x192Rows>();
  expect_same_bits<sm90::Tile192x128Rows>();
  expect_same_bits<sm90::Tile192x96Rows>();
}

TEST_F(Sm90, NarrowTilesHaveTheBitsOfMmaSync) {
  expect_same_bits<sm90::Tile192x64Rows>();
  expect_same_bits<sm90::Tile128x128>();
  expect_same_bits<sm90::Tile128x64>();
  expect_same_bits<sm90::Tile128x64Rows4>();
  expect_same_bits<sm90::Tile64x192Columns>();
  expect_same_bits<sm90::Tile64x128Columns>();
  expect_same_bits<sm90::Tile64x128>();
  expect_same_bits<sm90::Tile64x64>();
  expect_same_bits<sm90::Tile64x64Rows4>();
  expect_same_bits<sm90::Tile64x32>();
  expect_same_bits<sm90::Tile64x32Rows4>();
  expect_same_bits<sm90::Tile64x32Rows8>();
}

TEST_F(Sm90, TilesOfTheTransposeHaveTheBitsOfMmaSync) {
  expect_same_bits<sm90::Transposed64x64>();
  expect_same_bits<sm90::Transposed64x96>();
  expect_same_bits<sm90::Transposed64x128>();
  expect_same_bits<sm90::Transposed64x160>();
  expect_same_bits<sm90::Transposed128x96>();
  expect_same_bits<sm90::Transposed128x128>();
  expect_same_bits<sm90::Transposed128x144>();
  expect_same_bits<sm90::Transposed128x160>();
  expect_same_bits<sm90::Transposed128x192>();
  expect_same_bits<sm90::Transposed128x224>();
}

/// Odd sizes at odd addresses: element-wise loads, and stores of single elements.
template <typename T, typename Multiply>
void expect_same_bits_anywhere(Multiply&& with) {
  for (int64_t i = 0; i < 60; ++i) {
    const Shape at = {1 + i * 37 % 301, 1 + i * 91 % 403, 1 + i * 53 % 509, i % 8, i % 3 == 0};
    const Along along = kAlongs[i / 2 % 3];
    const Values values = kAllValues[i % 5];
    EXPECT_TRUE((multiply<T>(at, along, values, with) == multiply<T>(at, along, values, Portable{})))
        << text(at, along, values);
  }
}

TEST_F(Sm90, AnySizeAtAnyAddressHasTheBitsOfMmaSync) {
  expect_same_bits_anywhere<__nv_bfloat16>(With<sm90::Unaligned>{});
  expect_same_bits_anywhere<__half>(With<sm90::Unaligned>{});
  expect_same_bits_anywhere<__nv_bfloat16>(Chosen{});
  expect_same_bits_anywhere<__half>(Chosen{});
}

// Numbers of rows on both sides of many changes of configuration.
TEST_F(Sm90, BitsOfARowDoNotDependOnTheNumberOfRows) {
  for (const int64_t n : {1024, 4096, 6144, 12288, 24576}) {
    const auto all = multiply<__nv_bfloat16>({513, n, 520}, Along::k_rows, Values::normal, Chosen{});
    for (const int64_t rows : {1,   8,   16,  17,  32,  33,  64,  65,  80,  81,  96,  97, 112,
                               113, 128, 129, 144, 145, 160, 161, 224, 225, 256, 257, 512}) {
      const auto some = multiply<__nv_bfloat16>({rows, n, 520}, Along::k_rows, Values::normal, Chosen{});
      EXPECT_EQ(memcmp(all.data(), some.data(), static_cast<size_t>(rows * n) * 2), 0) << "n " << n << " rows " << rows;
    }
  }
}

}  // namespace
}  // namespace checkop::kernels
