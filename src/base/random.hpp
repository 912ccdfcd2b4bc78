// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: every number depends only on (seed, operator, tensor name, index).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace checkop {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11).
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// Most elements per call of normals() and integers(): their doubles fit into the L1 cache.
inline constexpr int64_t kDrawBuffer = 1024;

/// A stream of numbers, addressed by index. Streams of different (seed, operator, tensor) share no values.
struct Stream {
  std::array<uint32_t, 2> key;
  std::array<uint32_t, 2> counter_high;

  static Stream derive(uint64_t seed, std::string_view op, std::string_view tensor);
  /// Standard normals of elements [first, first + n), n at most kDrawBuffer, `first` even; `out` has room for n + 1.
  void normals(int64_t first, double* out, int64_t n) const;
  /// Integers in [-largest, largest]; the other arguments as for normals().
  void integers(int64_t first, double* out, int64_t n, int64_t largest) const;

  double normal(uint64_t index) const;                   ///< standard normal; the same bits on every IEEE machine
  double uniform(uint64_t index) const;                  ///< in (0, 1): an odd multiple of 2^-53
  uint64_t below(uint64_t index, uint64_t bound) const;  ///< in [0, bound), bias under 2^-64 * bound
};

/// Natural logarithm of a positive finite x, within 2 ulp. Uses only + - * / and the bits of x.
double natural_log(double x);

/// Quantile function of the standard normal. Uses only + - * / and sqrt, so that no C library affects the bits.
double normal_quantile(double p);

}  // namespace checkop
