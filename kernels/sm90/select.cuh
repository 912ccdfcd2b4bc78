// SPDX-License-Identifier: Apache-2.0
// Matrix products of the candidates named "cuda-sm90". fp16 and bf16 use one of the configurations below, chosen by the
// sizes; all give the same bits. fp32, empty sums and small unaligned products are computed as in the candidates named
// "cuda".
#pragma once

#include "gemm/product.cuh"
#include "sm90/launch.cuh"

namespace checkop::kernels::sm90 {

constexpr auto kTma = Loads::tma;
constexpr auto kStaged = Stores::staged;
constexpr auto kDirect = Stores::direct;

// For many rows. kSpeedPercent: speed of a fully occupied SM relative to Large, in percent; measured on an H200.
struct Large : KernelConfig<2, 256, 64, 4, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x256, cluster of 2";
  static constexpr int kSpeedPercent = 100;
};
struct Wide : KernelConfig<2, 192, 64, 4, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x192, cluster of 2";
  static constexpr int kSpeedPercent = 98;
};
struct Square : KernelConfig<2, 128, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x128, cluster of 2";
  static constexpr int kSpeedPercent = 96;
};
struct LowWide : KernelConfig<1, 192, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x192, cluster of 2";
  static constexpr int kSpeedPercent = 84;
};
struct Low : KernelConfig<1, 128, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x128, cluster of 2";
  static constexpr int kSpeedPercent = 73;
};
struct Narrow : KernelConfig<2, 64, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x64, cluster of 2";
  static constexpr int kSpeedPercent = 68;
};
struct Small : KernelConfig<1, 64, 128, 0, 2, 1, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x64, cluster of 2";
  static constexpr int kSpeedPercent = 45;
};
// For at most 128 rows, where reading b dominates: about one full wave of tiles, all of shared memory used for loads.
struct Rows128Large : KernelConfig<2, 256, 64, 4, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x256";
};
struct Rows128 : KernelConfig<2, 128, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x128";
};
struct Rows128Narrow : KernelConfig<1, 32, 128, 0, 2, 1, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x32, cluster of 2";
};
// For at most 64 rows.
struct Rows64Large : KernelConfig<1, 192, 64, 0, 1, 1, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x192";
};
struct Rows64 : KernelConfig<1, 128, 128, 0, 1, 1, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x128";
};
struct Rows64Cluster4 : KernelConfig<1, 64, 128, 0, 1, 4, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x64, cluster of 4";
};
struct Rows64Small : KernelConfig<1, 64, 128, 0, 1, 1, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x64";
};
struct Rows64Narrow : KernelConfig<1, 32, 128, 0, 1, 1, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x32";
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
int64_t waves(int64_t m, int64_t n) {
  const int64_t tiles = ceil_div(m, Config::kM * Config::kClusterM) * ceil_div(n, Config::kN * Config::kClusterN);
  return ceil_div(tiles, kSMs / Config::kCluster);
}

/// Estimated time of an m x n product, in an arbitrary unit.
template <typename Config>
int64_t estimated_time(int64_t m, int64_t n) {
  return waves<Config>(m, n) * Config::kM * Config::kN * 100 / Config::kSpeedPercent;
}

/// Calls run(Config{}) for the configuration that is fastest for m x n.
template <typename Run, typename... Configs>
auto with_fastest(int64_t m, int64_t n, Run&& run, Configs... configs) {
  const int64_t least = std::min({estimated_time<Configs>(m, n)...});
  decltype(run(Large{})) result{};
  (void)((estimated_time<Configs>(m, n) == least && (result = run(configs), true)) || ...);
  return result;
}

/// Calls run(Config{}) for a configuration that suits a product of m x n.
template <bool a_along_k, bool b_along_k, typename Run>
auto with_config(int64_t m, int64_t n, Run&& run) {
  constexpr int64_t kBlocks = kSMs, kClustersOf2 = kSMs / 2;
  if constexpr (a_along_k) {
    if (m <= 64) {
      // With b along rows, 32 columns of b are only half a line of memory.
      if (n <= (b_along_k ? kBlocks : kClustersOf2) * Rows64Narrow::kN) return run(Rows64Narrow{});
      constexpr int64_t kFew = 32;  // up to this many, sharing rows of a saves less than waiting for other blocks costs
      if (n <= kBlocks * Rows64Small::kN) return m <= kFew ? run(Rows64Small{}) : run(Rows64Cluster4{});
      const bool large = waves<Rows64Large>(m, n) * Rows64Large::kN < waves<Rows64>(m, n) * Rows64::kN;
      return large ? run(Rows64Large{}) : run(Rows64{});
    }
    if (m <= 128) {
      if (n <= kClustersOf2 * Rows128Narrow::kN) return run(Rows128Narrow{});
      if (n <= kClustersOf2 * Small::kN) return run(Small{});
      if (n <= kClustersOf2 * Low::kN) return run(Low{});
      if (n <= kClustersOf2 * LowWide::kN) return run(LowWide{});
      const bool large = waves<Rows128Large>(m, n) * Rows128Large::kN <= waves<Rows128>(m, n) * Rows128::kN;
      return large ? run(Rows128Large{}) : run(Rows128{});
    }
  }
  return with_fastest(m, n, run, Large{}, Wide{}, Square{}, LowWide{}, Low{}, Narrow{}, Small{});
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
        return with_config<a_along_k, b_along_k>(rows, columns, run);
      }
      // Element-wise loads dominate the time; with few tiles, mma.sync spreads them over more blocks.
      return a_along_k && waves<Unaligned>(rows, columns) > 1 ? run(Unaligned{}) : portable();
    }
  }
};

}  // namespace checkop::kernels::sm90
