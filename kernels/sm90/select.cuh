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

/// Fitted to times of single launches on an H200, in nanoseconds, see estimated_ns(). Those with has_l2 are of an
/// earlier fit to launches back to back, with 3000 more for `fixed`.
struct Speed {
  int fixed;            ///< launch, first loads, last stores
  int step;             ///< of 64 k, while all SMs are busy
  int rows;             ///< more for a step if a tile has all its rows (kM), which are columns of c in the transpose
  int unaligned;        ///< more for a step if lines of the right operand do not begin at multiples of 128 bytes
  int wave;             ///< once per tile of an SM
  bool has_l2 = false;  ///< a step contains the time that it waits for L2; otherwise that comes from bytes_of_step()
};

// "Columns" and "Rows" name what the two blocks of a cluster, or four, or eight, share. In "Divided", a last wave that
// would leave half of the SMs idle computes half tiles. Narrow tiles whose cluster shares rows serve products of few
// rows: each block needs all rows, which are then read from L2 once for the cluster.
struct Tile128x256Columns : KernelConfig<2, 256, 64, 4, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x256, clusters of 2 that share columns";
  static constexpr Speed kSpeed{5710, 563, 15, 47, 1572};
};
struct Divided128x256Columns : KernelConfig<2, 256, 64, 4, 2, 1, kTma, kStaged, 128> {
  static constexpr const char* kVariant =
      "wgmma, tile 128x256, clusters of 2 that share columns, the last tiles halved";
  static constexpr Speed kSpeed{5680, 595, 0, 51, 1646};
};
struct Divided128x256Rows : KernelConfig<2, 256, 64, 4, 1, 2, kTma, kStaged, 128> {
  static constexpr const char* kVariant = "wgmma, tile 128x256, clusters of 2 that share rows, the last tiles halved";
  static constexpr Speed kSpeed{5750, 544, 11, 127, 1650};
};
struct Tile128x192Rows : KernelConfig<2, 192, 64, 0, 1, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x192, clusters of 2 that share rows";
  static constexpr Speed kSpeed{5420, 357, 43, 75, 1260};
};
struct Tile192x128Rows : KernelConfig<3, 128, 64, 0, 1, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 192x128, clusters of 2 that share rows";
  static constexpr Speed kSpeed{5170, 396, 47, 46, 1106};
};
struct Tile192x96Rows : KernelConfig<3, 96, 64, 0, 1, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 192x96, clusters of 2 that share rows";
  static constexpr Speed kSpeed{5290, 291, 37, 52, 1142};
};
struct Tile192x64Rows : KernelConfig<3, 64, 64, 0, 1, 2, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 192x64, clusters of 2 that share rows";
  static constexpr Speed kSpeed{5000, 244, 10, 49, 663};
};
struct Tile128x128 : KernelConfig<2, 128, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x128";
  static constexpr Speed kSpeed{4500, 247, 116, 0, 1659, true};
};
struct Tile128x64 : KernelConfig<2, 64, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x64";
  static constexpr Speed kSpeed{4790, 125, 36, 37, 444};
};
struct Tile128x64Rows4 : KernelConfig<2, 64, 64, 0, 1, 4, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 128x64, clusters of 4 that share rows";
  static constexpr Speed kSpeed{5000, 140, 31, 25, 447};
};
struct Tile64x192Columns : KernelConfig<1, 192, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x192, clusters of 2 that share columns";
  static constexpr Speed kSpeed{5220, 221, 0, 64, 1111};
};
struct Tile64x128Columns : KernelConfig<1, 128, 64, 0, 2, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x128, clusters of 2 that share columns";
  static constexpr Speed kSpeed{4500, 225, 0, 49, 1096, true};
};
struct Tile64x128 : KernelConfig<1, 128, 64, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x128";
  static constexpr Speed kSpeed{4710, 128, 32, 50, 672};
};
struct Tile64x64 : KernelConfig<1, 64, 128, 0, 1, 1, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x64";
  static constexpr Speed kSpeed{4333, 84, 33, 28, 480};
};
struct Tile64x64Rows4 : KernelConfig<1, 64, 64, 0, 1, 4, kTma, kStaged> {
  static constexpr const char* kVariant = "wgmma, tile 64x64, clusters of 4 that share rows";
  static constexpr Speed kSpeed{4870, 109, 21, 17, 398};
};
struct Tile64x32 : KernelConfig<1, 32, 128, 0, 1, 1, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x32";
  static constexpr Speed kSpeed{3950, 60, 38, 22, 930};
};
struct Tile64x32Rows4 : KernelConfig<1, 32, 128, 0, 1, 4, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x32, clusters of 4 that share rows";
  static constexpr Speed kSpeed{4150, 80, 4, 14, 916};
};
struct Tile64x32Rows8 : KernelConfig<1, 32, 128, 0, 1, 8, kTma, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 64x32, clusters of 8 that share rows";
  static constexpr Speed kSpeed{4643, 84, 1, 10, 879};
};

/// Tiles of the transpose of c have 64 or 128 columns of c and any multiple of 16 rows: no others fit from 65 to some
/// hundred rows as well. share_rows blocks of a cluster have the same rows of c, share_columns blocks the same columns.
template <int columns, int rows, int share_rows, int share_columns = 1>
using TransposedConfig = KernelConfig<columns / 64, rows, 64, 0, share_rows, share_columns, kTma, Stores::transposed>;
struct Transposed64x64 : TransposedConfig<64, 64, 4, 2> {
  static constexpr const char* kVariant = "wgmma, tile 64x64 of the transpose, clusters of 4 x 2";
  static constexpr Speed kSpeed{4670, 94, 34, 8, 441};
};
struct Transposed64x96 : TransposedConfig<64, 96, 4> {
  static constexpr const char* kVariant = "wgmma, tile 64x96 of the transpose, clusters of 4";
  static constexpr Speed kSpeed{5123, 105, 21, 24, 687};
};
struct Transposed64x128 : TransposedConfig<64, 128, 4> {
  static constexpr const char* kVariant = "wgmma, tile 64x128 of the transpose, clusters of 4";
  static constexpr Speed kSpeed{5359, 134, 11, 32, 1084};
};
struct Transposed64x160 : TransposedConfig<64, 160, 4> {
  static constexpr const char* kVariant = "wgmma, tile 64x160 of the transpose, clusters of 4";
  static constexpr Speed kSpeed{4636, 185, 16, 17, 1631};
};
struct Transposed128x96 : TransposedConfig<128, 96, 4> {
  static constexpr const char* kVariant = "wgmma, tile 128x96 of the transpose, clusters of 4";
  static constexpr Speed kSpeed{4919, 221, 1, 40, 936};
};
struct Transposed128x128 : TransposedConfig<128, 128, 4> {
  static constexpr const char* kVariant = "wgmma, tile 128x128 of the transpose, clusters of 4";
  static constexpr Speed kSpeed{5171, 282, 26, 31, 773};
};
struct Transposed128x144 : TransposedConfig<128, 144, 2> {
  static constexpr const char* kVariant = "wgmma, tile 128x144 of the transpose, clusters of 2";
  static constexpr Speed kSpeed{5920, 317, 5, 60, 486};
};
struct Transposed128x160 : TransposedConfig<128, 160, 2> {
  static constexpr const char* kVariant = "wgmma, tile 128x160 of the transpose, clusters of 2";
  static constexpr Speed kSpeed{6090, 352, 14, 47, 1104};
};
struct Transposed128x192 : TransposedConfig<128, 192, 4> {
  static constexpr const char* kVariant = "wgmma, tile 128x192 of the transpose, clusters of 4";
  static constexpr Speed kSpeed{4142, 402, 43, 24, 1847};
};
struct Transposed128x224 : TransposedConfig<128, 224, 2> {
  static constexpr const char* kVariant = "wgmma, tile 128x224 of the transpose, clusters of 2";
  static constexpr Speed kSpeed{6620, 493, 44, 34, 1395};
};

// For matrices that TMA can't read.
struct Unaligned : KernelConfig<2, 128, 64, 4, 1, 1, Loads::elementwise, kDirect> {
  static constexpr const char* kVariant = "wgmma, tile 128x128, unaligned: element-wise loads";
};

// SMs of the larger H100 and H200 models, and those of them that clusters of more than two blocks can use. Constants,
// so that a report names the same configuration on every Hopper GPU.
constexpr int64_t kSMs = 132, kSMsOfLargeClusters = 120;

/// SMs that compute clusters of Config.
template <typename Config>
constexpr int64_t kSMsFor = Config::kCluster > 2 ? kSMsOfLargeClusters : kSMs;

/// The tiles of whole clusters of an m x n product.
template <typename Config>
int64_t cluster_tiles(int64_t m, int64_t n) {
  return ceil_div(m, Config::kM * Config::kClusterM) * ceil_div(n, Config::kN * Config::kClusterN);
}

/// Number of waves in which the SMs compute the tiles of an m x n product.
template <typename Config>
double waves(int64_t m, int64_t n) {
  constexpr int64_t kResident = kSMsFor<Config> / Config::kCluster;
  const int64_t tiles = cluster_tiles<Config>(m, n);
  const bool divides = divided_tiles<Config>(tiles, kResident) > 0;
  return static_cast<double>(ceil_div(tiles, kResident)) - (divides ? 1 - 1.0 / Config::kParts : 0);
}

/// A product of m x n over k. is_aligned: lines of the right operand begin at multiples of 128 bytes. skips_rows: a
/// tile loads no rows that don't exist, if all rows lie in one tile (launch_with_epilogue()).
struct Problem {
  int64_t m, n, k;
  bool is_aligned, skips_rows = false;
};
template <typename T, bool a_along_k, bool b_along_k>
Problem problem_of(const Operand<T, a_along_k>& a, const Operand<T, b_along_k>& b, int64_t k) {
  return {a.extent, b.extent, k, b.ld * static_cast<int64_t>(sizeof(T)) % 128 == 0, a_along_k};
}

/// Bytes that L2 delivers for a step of 64 k, to all SMs together. A block of a cluster loads its share of what the
/// cluster's blocks have in common.
template <typename Config>
double bytes_of_step(const Problem& p) {
  const bool few_rows = p.skips_rows && Config::kClusterM == 1 && p.m <= Config::kM;
  const int64_t rows =
      few_rows ? std::min<int64_t>(Config::kM, round_up(p.m, int64_t{8} * Config::kClusterN)) : Config::kM;
  const double elements =
      static_cast<double>(rows) / Config::kClusterN + static_cast<double>(Config::kN) / Config::kClusterM;
  const int64_t blocks = std::min(cluster_tiles<Config>(p.m, p.n) * Config::kCluster, kSMsFor<Config>);
  return static_cast<double>(blocks) * elements * 64 * 2;
}

/// Two times that overlap badly when they are similar.
inline double together(double a_ns, double b_ns) { return std::sqrt(std::hypot(a_ns * a_ns, b_ns * b_ns)); }

/// Estimated time: that of the waves or that of memory, whichever is longer; a step of a wave takes the tensor cores'
/// time or that of L2. For 1338 products of random sizes, the chosen configuration took 1.7 % longer on average than
/// the best one.
template <typename Config>
double estimated_ns(const Problem& of_c) {
  const Problem p = Config::kTransposes ? Problem{of_c.n, of_c.m, of_c.k, of_c.is_aligned} : of_c;
  constexpr double kBytesPerNs = 4000, kL2BytesPerNs = 10000;
  const auto rows = static_cast<double>(p.m), columns = static_cast<double>(p.n), inner = static_cast<double>(p.k);
  constexpr const Speed& kSpeed = Config::kSpeed;
  const double step =
      together(kSpeed.step + kSpeed.rows * std::min(1.0, rows / Config::kM) + (p.is_aligned ? 0 : kSpeed.unaligned),
               kSpeed.has_l2 ? 0 : bytes_of_step<Config>(p) / kL2BytesPerNs);
  const double compute = waves<Config>(p.m, p.n) * (static_cast<double>(ceil_div(p.k, 64)) * step + kSpeed.wave);
  const double memory = 2 * (rows * inner + columns * inner + rows * columns) / kBytesPerNs;
  return kSpeed.fixed + together(compute, memory);
}

// cuBLAS divides k among blocks where there are few tiles, which is why it is faster for 64 to 1024 rows of long k.
// Here a tile's sum over k is one chain, whatever the number of rows: docs/speed.md, "What is missing".

/// Calls run(Config{}) for the configuration with the least estimated_ns(p).
template <typename AnyProblem, typename Run, typename First, typename... Others>
auto with_fastest(const AnyProblem& p, Run&& run, First first, Others... others) {
  const double least = std::min({estimated_ns<First>(p), estimated_ns<Others>(p)...});
  decltype(run(first)) result{};
  (void)((estimated_ns<First>(p) == least && (result = run(first), true)) || ... ||
         (estimated_ns<Others>(p) == least && (result = run(others), true)));
  return result;
}

/// The configurations of plain products, and `others`.
template <typename Run, typename... Others>
auto with_config(const Problem& p, Run&& run, Others... others) {
  return with_fastest(p, run, Tile128x256Columns{}, Divided128x256Columns{}, Tile128x192Rows{}, Tile192x128Rows{},
                      Tile192x96Rows{}, Tile192x64Rows{}, Tile128x64{}, Tile128x64Rows4{}, Tile64x192Columns{},
                      Tile64x128{}, Tile64x64{}, Tile64x64Rows4{}, Tile64x32{}, Tile64x32Rows4{}, Tile64x32Rows8{},
                      others...);
}

/// The same where the transpose of c may be computed: a is along k and c has a tensor map.
template <typename Run>
auto with_any_config(const Problem& p, Run&& run) {
  return with_config(p, run, Transposed64x64{}, Transposed64x96{}, Transposed64x128{}, Transposed64x160{},
                     Transposed128x96{}, Transposed128x128{}, Transposed128x144{}, Transposed128x160{},
                     Transposed128x192{}, Transposed128x224{});
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
        const Problem problem = problem_of(left, right, inner);
        if constexpr (a_along_k) {
          if (has_tensor_map<T>(Matrix{out, columns, rows, columns})) return with_any_config(problem, run);
        }
        return with_config(problem, run);
      }
      // Element-wise loads dominate the time; with few tiles, mma.sync spreads them over more blocks.
      return a_along_k && waves<Unaligned>(rows, columns) > 1 ? run(Unaligned{}) : portable();
    }
  }
};

}  // namespace checkop::kernels::sm90
