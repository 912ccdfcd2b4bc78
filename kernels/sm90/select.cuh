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

/// Fitted to times measured on an H200 in bursts, in nanoseconds, see estimated_ns().
struct Speed {
  int fixed;      ///< launch, first loads, last stores
  int step;       ///< of 64 k, while all SMs are busy
  int rows;       ///< more for a step if a tile has all its rows: others are not loaded
  int unaligned;  ///< more for a step if lines of the right operand do not begin at multiples of 128 bytes
  int wave;       ///< once per tile of an SM
};

// "Columns" and "Rows" name what the two blocks of a cluster, or four, share; in "Both" each row and each column of a
// cluster has two. In "Divided", a last wave that would leave half of the SMs idle computes half tiles. Narrow tiles
// whose cluster shares rows serve products of few rows: each block needs all rows, which are then read from L2 once for
// four.
struct Tile128x256Columns : KernelConfig<2, 256, 64, 4, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x256, clusters of 2 that share columns";
  static constexpr Speed kSpeed{3193, 583, 5, 70, 1706};
};
struct Divided128x256Columns : KernelConfig<2, 256, 64, 4, 2, 1, kTma, kStaged, 128> {
  static constexpr const char* kVariant =
      "wgmma, tile 128x256, clusters of 2 that share columns, the last tiles halved";
  static constexpr Speed kSpeed{2996, 616, 0, 48, 1808};
};
struct Divided128x256Rows : KernelConfig<2, 256, 64, 4, 1, 2, kTma, kStaged, 128> {
  static constexpr const char* kVariant = "wgmma, tile 128x256, clusters of 2 that share rows, the last tiles halved";
  static constexpr Speed kSpeed{2732, 541, 79, 132, 1814};
};
struct Tile128x256Both : KernelConfig<2, 256, 64, 4, 2, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x256, clusters of 2 x 2";
  static constexpr Speed kSpeed{2756, 573, 35, 10, 1750};
};
struct Tile128x192Rows : KernelConfig<2, 192, 64, 0, 1, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x192, clusters of 2 that share rows";
  static constexpr Speed kSpeed{2732, 378, 93, 167, 2159};
};
struct Tile192x160Columns : KernelConfig<3, 160, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 192x160, clusters of 2 that share columns";
  static constexpr Speed kSpeed{3021, 497, 65, 179, 1824};
};
struct Tile192x128Rows : KernelConfig<3, 128, 64, 0, 1, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 192x128, clusters of 2 that share rows";
  static constexpr Speed kSpeed{2683, 389, 118, 57, 1216};
};
struct Tile192x96Rows : KernelConfig<3, 96, 64, 0, 1, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 192x96, clusters of 2 that share rows";
  static constexpr Speed kSpeed{2388, 298, 101, 82, 1274};
};
struct Tile192x64Rows : KernelConfig<3, 64, 64, 0, 1, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 192x64, clusters of 2 that share rows";
  static constexpr Speed kSpeed{2303, 221, 85, 60, 799};
};
struct Tile192x32Rows4 : KernelConfig<3, 32, 64, 0, 1, 4, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 192x32, clusters of 4 that share rows";
  static constexpr Speed kSpeed{2457, 203, 13, 0, 375};
};
struct Tile128x128Rows : KernelConfig<2, 128, 64, 0, 1, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x128, clusters of 2 that share rows";
  static constexpr Speed kSpeed{2287, 203, 131, 73, 900};
};
struct Tile128x128 : KernelConfig<2, 128, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x128";
  static constexpr Speed kSpeed{1500, 247, 116, 0, 1659};
};
struct Tile128x64 : KernelConfig<2, 64, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x64";
  static constexpr Speed kSpeed{2530, 119, 91, 87, 524};
};
struct Tile128x64Rows4 : KernelConfig<2, 64, 64, 0, 1, 4, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x64, clusters of 4 that share rows";
  static constexpr Speed kSpeed{2848, 138, 57, 41, 451};
};
struct Tile64x192Columns : KernelConfig<1, 192, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x192, clusters of 2 that share columns";
  static constexpr Speed kSpeed{2446, 213, 62, 61, 1253};
};
struct Tile64x128Columns : KernelConfig<1, 128, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x128, clusters of 2 that share columns";
  static constexpr Speed kSpeed{1500, 225, 0, 49, 1096};
};
struct Tile64x128 : KernelConfig<1, 128, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x128";
  static constexpr Speed kSpeed{1830, 125, 173, 76, 691};
};
struct Tile64x64 : KernelConfig<1, 64, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x64";
  static constexpr Speed kSpeed{2034, 80, 86, 28, 457};
};
struct Tile64x64Rows4 : KernelConfig<1, 64, 64, 0, 1, 4, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x64, clusters of 4 that share rows";
  static constexpr Speed kSpeed{2440, 104, 41, 9, 405};
};
struct Tile64x32 : KernelConfig<1, 32, 128, 0, 1, 1, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x32";
  static constexpr Speed kSpeed{1720, 55, 110, 22, 879};
};
struct Tile64x32Rows4 : KernelConfig<1, 32, 128, 0, 1, 4, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x32, clusters of 4 that share rows";
  static constexpr Speed kSpeed{1545, 87, 5, 7, 1051};
};
// For matrices that TMA can't read.
struct Unaligned : KernelConfig<2, 128, 64, 4, 1, 1, Loads::elementwise, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 128x128, unaligned: element-wise loads";
};

// SMs of the larger H100 and H200 models, and those of them that clusters of more than two blocks can use. Constants,
// so that a report names the same configuration on every Hopper GPU.
constexpr int64_t kSMs = 132, kSMsOfLargeClusters = 124;

/// Number of waves in which the SMs compute the tiles of an m x n product.
template <typename Config>
double waves(int64_t m, int64_t n) {
  constexpr int64_t kResident = (Config::kCluster > 2 ? kSMsOfLargeClusters : kSMs) / Config::kCluster;
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
/// hence the norm. For 258 random sizes of the three products, the chosen configuration took 1.6 % longer on average
/// than the best one.
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
  return with_fastest(p, run, Tile128x256Columns{}, Divided128x256Columns{}, Divided128x256Rows{}, Tile128x256Both{},
                      Tile128x192Rows{}, Tile192x160Columns{}, Tile192x128Rows{}, Tile192x96Rows{}, Tile192x64Rows{},
                      Tile192x32Rows4{}, Tile128x128Rows{}, Tile128x64{}, Tile128x64Rows4{}, Tile64x192Columns{},
                      Tile64x128{}, Tile64x64{}, Tile64x64Rows4{}, Tile64x32{}, Tile64x32Rows4{});
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
