// SPDX-License-Identifier: Apache-2.0
// Quantiles of errors over their bounds, from a histogram of constant size.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace checkop {

/// Quantiles of the elements' errors over their bounds. Each except `largest` is rounded up to one of eight values per
/// power of two, and is at least 2^-40 unless it is 0.
struct ErrorQuantiles {
  double median = 0, p99 = 0, p999 = 0, largest = 0;
};

/// Counts ratios of at least 0. Merging is commutative.
class RatioHistogram {
 public:
  void add(const double* ratios, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      if (ratios[i] == 0) {
        ++zeros_;
        continue;
      }
      const size_t bin = bin_of(ratios[i]);
      ++counts_[bin];
      low_ = std::min(low_, bin), end_ = std::max(end_, bin + 1);
      largest_ = std::max(largest_, ratios[i]);
    }
  }
  void merge(const RatioHistogram& other) {
    for (size_t i = other.low_; i < other.end_; ++i) counts_[i] += other.counts_[i];
    low_ = std::min(low_, other.low_), end_ = std::max(end_, other.end_);
    zeros_ += other.zeros_;
    largest_ = std::max(largest_, other.largest_);
  }

  ErrorQuantiles quantiles() const { return {quantile(500), quantile(990), quantile(999), largest_}; }

 private:
  static constexpr int kFractionBits = 3, kLowest = -40, kHighest = 24;  // exponents of ratios
  static constexpr uint64_t kFirst = static_cast<uint64_t>(1023 + kLowest) << kFractionBits;
  static constexpr size_t kBins = static_cast<size_t>(kHighest - kLowest) << kFractionBits;

  /// NaN and what lies beyond the last bin are in the last bin.
  static size_t bin_of(double ratio) {
    const uint64_t bin = std::bit_cast<uint64_t>(ratio) >> (52 - kFractionBits);
    return static_cast<size_t>(std::clamp(bin, kFirst, kFirst + kBins - 1) - kFirst);
  }

  /// The upper end of the bin that holds the `thousandths`-th of a thousand equal shares, at most `largest_`.
  double quantile(int64_t thousandths) const {
    int64_t total = zeros_, below = zeros_;
    for (const int64_t count : counts_) total += count;
    const int64_t wanted = total - total * (1000 - thousandths) / 1000;
    if (below >= wanted) return 0;
    for (size_t i = 0; i < kBins; ++i) {
      below += counts_[i];
      if (below >= wanted) return std::min(largest_, std::bit_cast<double>((kFirst + i + 1) << (52 - kFractionBits)));
    }
    return largest_;
  }

  std::array<int64_t, kBins> counts_{};
  size_t low_ = kBins, end_ = 0;  ///< bins before `low_` and from `end_` on are empty
  int64_t zeros_ = 0;
  double largest_ = 0;
};

}  // namespace checkop
