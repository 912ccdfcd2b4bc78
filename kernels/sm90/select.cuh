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
  int fixed;  ///< launch, first loads, last stores
  int step;   ///< of 64 k, while all SMs are busy
  int rows;   ///< more for a step if the operand has all rows of a tile; loads of a single block skip rows that do not
              ///< exist
  int wave;   ///< once per tile of an SM
};

// "Columns" and "Rows": what the two blocks of a cluster share. "Divided": a last wave that would leave half of the SMs
// idle computes half tiles.
struct Tile128x256Columns : KernelConfig<2, 256, 64, 4, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x256, clusters of 2 that share columns";
  static constexpr Speed kSpeed{6390, 647, 0, 1627};
};
struct Divided128x256Columns : KernelConfig<2, 256, 64, 4, 2, 1, kTma, kStaged, 128> {
  static constexpr const char* kVariant =
      "wgmma, tile 128x256, clusters of 2 that share columns, the last tiles halved";
  static constexpr Speed kSpeed{6693, 680, 0, 1652};
};
struct Divided128x256Rows : KernelConfig<2, 256, 64, 4, 1, 2, kTma, kStaged, 128> {
  static constexpr const char* kVariant = "wgmma, tile 128x256, clusters of 2 that share rows, the last tiles halved";
  static constexpr Speed kSpeed{6364, 648, 34, 1721};
};
struct Tile128x224Columns : KernelConfig<2, 224, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x224, clusters of 2 that share columns";
  static constexpr Speed kSpeed{6359, 592, 0, 3253};
};
struct Tile128x192Columns : KernelConfig<2, 192, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x192, clusters of 2 that share columns";
  static constexpr Speed kSpeed{6023, 507, 0, 1235};
};
struct Tile128x192Rows : KernelConfig<2, 192, 64, 0, 1, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x192, clusters of 2 that share rows";
  static constexpr Speed kSpeed{5965, 409, 111, 1220};
};
struct Tile192x160Columns : KernelConfig<3, 160, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 192x160, clusters of 2 that share columns";
  static constexpr Speed kSpeed{6241, 522, 108, 2162};
};
struct Tile192x128Rows : KernelConfig<3, 128, 64, 0, 1, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 192x128, clusters of 2 that share rows";
  static constexpr Speed kSpeed{5488, 430, 83, 1144};
};
struct Tile128x128 : KernelConfig<2, 128, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x128";
  static constexpr Speed kSpeed{5560, 260, 178, 689};
};
struct Tile128x64 : KernelConfig<2, 64, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x64";
  static constexpr Speed kSpeed{5085, 139, 178, 487};
};
struct Tile64x192Columns : KernelConfig<1, 192, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x192, clusters of 2 that share columns";
  static constexpr Speed kSpeed{5521, 309, 0, 1249};
};
struct Tile64x192 : KernelConfig<1, 192, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x192";
  static constexpr Speed kSpeed{5292, 191, 211, 1252};
};
struct Tile64x128Columns : KernelConfig<1, 128, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x128, clusters of 2 that share columns";
  static constexpr Speed kSpeed{5223, 248, 0, 795};
};
struct Tile64x128 : KernelConfig<1, 128, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x128";
  static constexpr Speed kSpeed{5122, 128, 179, 820};
};
struct Tile64x64 : KernelConfig<1, 64, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x64";
  static constexpr Speed kSpeed{5256, 110, 84, 405};
};
struct Tile64x32 : KernelConfig<1, 32, 128, 0, 1, 1, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x32";
  static constexpr Speed kSpeed{4334, 80, 51, 1100};
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
  const int64_t rest = tiles % kResident;  // as in launch_with_epilogue()
  const bool divides = Config::kParts > 1 && rest > 0 && rest * Config::kParts <= kResident;
  return static_cast<double>(ceil_div(tiles, kResident)) - (divides ? 1 - 1.0 / Config::kParts : 0);
}

/// Estimated time of an m x n product over k: of the waves, or of memory where that takes longer. The two overlap badly
/// where they are alike, hence the norm. Within 5 % of the measured times of random sizes, on average.
template <typename Config>
double estimated_ns(int64_t m, int64_t n, int64_t k) {
  constexpr double kBytesPerNs = 4200;
  const double rows = static_cast<double>(m), columns = static_cast<double>(n), inner = static_cast<double>(k);
  const double filled = std::min(1.0, rows / Config::kM), steps = static_cast<double>(ceil_div(k, 64));
  const double compute =
      waves<Config>(m, n) * (steps * (Config::kSpeed.step + Config::kSpeed.rows * filled) + Config::kSpeed.wave);
  const double memory = 2 * (rows * inner + columns * inner + rows * columns) / kBytesPerNs;
  return Config::kSpeed.fixed + std::pow(std::pow(compute, 4) + std::pow(memory, 4), 0.25);
}

/// Calls run(Config{}) for the configuration that is fastest for an m x n product over k.
template <typename Run, typename First, typename... Others>
auto with_fastest(int64_t m, int64_t n, int64_t k, Run&& run, First first, Others... others) {
  const double least = std::min({estimated_ns<First>(m, n, k), estimated_ns<Others>(m, n, k)...});
  decltype(run(first)) result{};
  (void)((estimated_ns<First>(m, n, k) == least && (result = run(first), true)) || ... ||
         (estimated_ns<Others>(m, n, k) == least && (result = run(others), true)));
  return result;
}

/// The configurations of plain products.
template <typename Run>
auto with_config(int64_t m, int64_t n, int64_t k, Run&& run) {
  return with_fastest(m, n, k, run, Tile128x256Columns{}, Divided128x256Columns{}, Divided128x256Rows{},
                      Tile128x224Columns{}, Tile128x192Columns{}, Tile128x192Rows{}, Tile192x160Columns{},
                      Tile192x128Rows{}, Tile128x128{}, Tile128x64{}, Tile64x192Columns{}, Tile64x192{},
                      Tile64x128Columns{}, Tile64x128{}, Tile64x64{}, Tile64x32{});
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
        return with_config(rows, columns, inner, run);
      }
      // Element-wise loads dominate the time; with few tiles, mma.sync spreads them over more blocks.
      return a_along_k && waves<Unaligned>(rows, columns) > 1 ? run(Unaligned{}) : portable();
    }
  }
};

}  // namespace checkop::kernels::sm90
