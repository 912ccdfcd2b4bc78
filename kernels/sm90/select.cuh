// SPDX-License-Identifier: Apache-2.0
// Matrix products of the candidates named "cuda-sm90". fp16 and bf16 use one of the configurations below, chosen by the
// sizes; all give the same bits. fp32, empty sums and small unaligned products are computed as in the candidates named
// "cuda".
#pragma once

#include <cmath>

#include "gemm/product.cuh"
#include "sm90/launch.cuh"

namespace checkop::kernels::sm90 {

constexpr auto kTma = Loads::tma;
constexpr auto kStaged = Stores::staged;
constexpr auto kDirect = Stores::direct;

/// Measured on an H200, in nanoseconds, see estimated_ns().
struct Speed {
  int fixed;      ///< launch, first loads, last stores
  int step;       ///< of 64 k, while all SMs are busy
  int rows;       ///< more for a step if a tile has all its rows: others are not loaded
  int unaligned;  ///< more for a step if lines of the right operand do not begin at multiples of 128 bytes
  int wave;       ///< once per tile of an SM
};

// "Columns" and "Rows" name what the two blocks of a cluster share. In "Divided", a last wave that would leave half of
// the SMs idle computes half tiles.
struct Tile128x256Columns : KernelConfig<2, 256, 64, 4, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x256, clusters of 2 that share columns";
  static constexpr Speed kSpeed{6332, 643, 0, 32, 1635};
};
struct Divided128x256Columns : KernelConfig<2, 256, 64, 4, 2, 1, kTma, kStaged, 128> {
  static constexpr const char* kVariant =
      "wgmma, tile 128x256, clusters of 2 that share columns, the last tiles halved";
  static constexpr Speed kSpeed{6676, 668, 0, 32, 1663};
};
struct Divided128x256Rows : KernelConfig<2, 256, 64, 4, 1, 2, kTma, kStaged, 128> {
  static constexpr const char* kVariant = "wgmma, tile 128x256, clusters of 2 that share rows, the last tiles halved";
  static constexpr Speed kSpeed{6278, 635, 39, 124, 1733};
};
struct Tile128x224Columns : KernelConfig<2, 224, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x224, clusters of 2 that share columns";
  static constexpr Speed kSpeed{6281, 581, 0, 45, 3268};
};
struct Tile128x192Columns : KernelConfig<2, 192, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x192, clusters of 2 that share columns";
  static constexpr Speed kSpeed{5958, 502, 0, 35, 1237};
};
struct Tile128x192Rows : KernelConfig<2, 192, 64, 0, 1, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x192, clusters of 2 that share rows";
  static constexpr Speed kSpeed{5926, 403, 111, 88, 1205};
};
struct Tile192x160Columns : KernelConfig<3, 160, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 192x160, clusters of 2 that share columns";
  static constexpr Speed kSpeed{6200, 502, 123, 55, 2168};
};
struct Tile192x128Rows : KernelConfig<3, 128, 64, 0, 1, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 192x128, clusters of 2 that share rows";
  static constexpr Speed kSpeed{5489, 422, 88, 35, 1139};
};
struct Tile128x128 : KernelConfig<2, 128, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x128";
  static constexpr Speed kSpeed{5495, 258, 170, 102, 696};
};
struct Tile128x64 : KernelConfig<2, 64, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x64";
  static constexpr Speed kSpeed{5082, 137, 176, 11, 485};
};
struct Tile64x192Columns : KernelConfig<1, 192, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x192, clusters of 2 that share columns";
  static constexpr Speed kSpeed{5394, 303, 0, 56, 1245};
};
struct Tile64x192 : KernelConfig<1, 192, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x192";
  static constexpr Speed kSpeed{5122, 187, 194, 99, 1267};
};
struct Tile64x128Columns : KernelConfig<1, 128, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x128, clusters of 2 that share columns";
  static constexpr Speed kSpeed{5208, 241, 0, 47, 799};
};
struct Tile64x128 : KernelConfig<1, 128, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x128";
  static constexpr Speed kSpeed{5014, 126, 173, 47, 829};
};
struct Tile64x64 : KernelConfig<1, 64, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x64";
  static constexpr Speed kSpeed{5191, 109, 78, 28, 410};
};
struct Tile64x32 : KernelConfig<1, 32, 128, 0, 1, 1, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x32";
  static constexpr Speed kSpeed{4380, 79, 44, 26, 1028};
};
// For matrices that TMA can't read.
struct Unaligned : KernelConfig<2, 128, 64, 4, 1, 1, Loads::elementwise, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 128x128, unaligned: element-wise loads";
};

// SMs of the larger H100 and H200 models. A constant, so that a report names the same configuration on every Hopper
// GPU.
constexpr int64_t kSMs = 132;

/// Number of waves in which the SMs compute the tiles of an m x n product.
template <typename Config>
double waves(int64_t m, int64_t n) {
  constexpr int64_t kResident = kSMs / Config::kCluster;
  const int64_t tiles = ceil_div(m, Config::kM * Config::kClusterM) * ceil_div(n, Config::kN * Config::kClusterN);
  const bool divides = divided_tiles<Config>(tiles, kResident) > 0;
  return static_cast<double>(ceil_div(tiles, kResident)) - (divides ? 1 - 1.0 / Config::kParts : 0);
}

/// A product of m x n over k. is_aligned: lines of the right operand begin at multiples of 128 bytes.
struct Problem {
  int64_t m, n, k;
  bool is_aligned;
};
template <typename T, bool a_along_k, bool b_along_k>
Problem problem_of(const Operand<T, a_along_k>& a, const Operand<T, b_along_k>& b, int64_t k) {
  return {a.extent, b.extent, k, b.ld * static_cast<int64_t>(sizeof(T)) % 128 == 0};
}

/// Estimated time: that of the waves or that of memory, whichever is longer. They overlap badly when they are similar,
/// hence the norm. On average within 5 % of the times measured for random sizes.
template <typename Config>
double estimated_ns(const Problem& p) {
  constexpr double kBytesPerNs = 4200;
  const auto rows = static_cast<double>(p.m), columns = static_cast<double>(p.n), inner = static_cast<double>(p.k);
  constexpr const Speed& kSpeed = Config::kSpeed;
  const double step =
      kSpeed.step + kSpeed.rows * std::min(1.0, rows / Config::kM) + (p.is_aligned ? 0 : kSpeed.unaligned);
  const double compute = waves<Config>(p.m, p.n) * (static_cast<double>(ceil_div(p.k, 64)) * step + kSpeed.wave);
  const double memory = 2 * (rows * inner + columns * inner + rows * columns) / kBytesPerNs;
  return kSpeed.fixed + std::sqrt(std::hypot(compute * compute, memory * memory));
}

// cuBLAS divides k among blocks where there are few tiles, which is why it is faster for 64 to 1024 rows of long k.
// Here a tile's sum over k is one chain: otherwise the bits of a row would depend on the number of rows.

/// Calls run(Config{}) for the configuration with the least estimated_ns(p).
template <typename AnyProblem, typename Run, typename First, typename... Others>
auto with_fastest(const AnyProblem& p, Run&& run, First first, Others... others) {
  const double least = std::min({estimated_ns<First>(p), estimated_ns<Others>(p)...});
  decltype(run(first)) result{};
  (void)((estimated_ns<First>(p) == least && (result = run(first), true)) || ... ||
         (estimated_ns<Others>(p) == least && (result = run(others), true)));
  return result;
}

/// The configurations of plain products.
template <typename Run>
auto with_config(const Problem& p, Run&& run) {
  return with_fastest(p, run, Tile128x256Columns{}, Divided128x256Columns{}, Divided128x256Rows{}, Tile128x224Columns{},
                      Tile128x192Columns{}, Tile128x192Rows{}, Tile192x160Columns{}, Tile192x128Rows{}, Tile128x128{},
                      Tile128x64{}, Tile64x192Columns{}, Tile64x192{}, Tile64x128Columns{}, Tile64x128{}, Tile64x64{},
                      Tile64x32{});
}

/// The same interface as PortableProduct.
struct Product {
  template <bool a_along_k, bool b_along_k, typename T>
  static cudaError_t launch(const T* a, const T* b, int64_t rows, int64_t inner, int64_t columns, const T* bias, T* out,
                            void* workspace, cudaStream_t stream, const char*& variant) {
    const auto portable = [&] {
      return PortableProduct::launch<a_along_k, b_along_k, T>(a, b, rows, inner, columns, bias, out, workspace, stream,
                                                              variant);
    };
    if constexpr (std::is_same_v<T, float>) {
      return portable();
    } else {
      if (rows == 0 || columns == 0 || inner == 0) return portable();
      const auto left = make_operand<a_along_k>(a, a_along_k ? inner : rows, rows);
      const auto right = make_operand<b_along_k>(b, b_along_k ? inner : columns, columns);
      const auto run = [&]<typename Config>(Config) {
        variant = Config::kVariant;
        return sm90::launch<Config>(left, right, inner, bias, out, stream);
      };
      if (has_tensor_map<T>(matrix_of(left, inner)) && has_tensor_map<T>(matrix_of(right, inner))) {
        return with_config(problem_of(left, right, inner), run);
      }
      // Element-wise loads dominate the time; with few tiles, mma.sync spreads them over more blocks.
      return a_along_k && waves<Unaligned>(rows, columns) > 1 ? run(Unaligned{}) : portable();
    }
  }
};

}  // namespace checkop::kernels::sm90
