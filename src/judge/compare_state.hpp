// SPDX-License-Identifier: Apache-2.0
// Shared by compare.cpp and compare_rows.cpp: the state of a comparison and the tallies of its rows.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "judge/compare.hpp"
#include "judge/summary.hpp"
#include "judge/trivial.hpp"

namespace checkop {

struct GateTally {
  double worst = 0;  ///< largest error over allowed error, infinite for different bits; for ulp: the largest distance
  int64_t out_of_bound = 0;
};

/// Results of one or more rows. Merging two tallies is commutative.
struct Tally {
  int64_t count = 0, out_of_bound = 0, nonfinite = 0;
  std::optional<ElementReport> first, worst, first_nonfinite;
  double max_abs = 0;
  uint64_t max_ulp = 0;
  std::vector<GateTally> gates;
  RowFailures failures;                 ///< of one row; not merged
  std::optional<ErrorMapper::Row> map;  ///< of one row; not merged

  void take_first(const ElementReport& e) { take_lower(e, first); }
  void take_nonfinite(const ElementReport& e) { take_lower(e, first_nonfinite); }
  void take_worst(const ElementReport& e) {
    if (!worst || e.ratio > worst->ratio || (e.ratio == worst->ratio && e.index < worst->index)) worst = e;
  }
  void merge(const Tally& other) {
    count += other.count;
    out_of_bound += other.out_of_bound;
    nonfinite += other.nonfinite;
    max_abs = std::max(max_abs, other.max_abs);
    max_ulp = std::max(max_ulp, other.max_ulp);
    if (other.first) take_first(*other.first);
    if (other.first_nonfinite) take_nonfinite(*other.first_nonfinite);
    if (other.worst) take_worst(*other.worst);
    for (size_t k = 0; k < gates.size(); ++k) {
      gates[k].worst = std::max(gates[k].worst, other.gates[k].worst);
      gates[k].out_of_bound += other.gates[k].out_of_bound;
    }
  }

 private:
  static void take_lower(const ElementReport& e, std::optional<ElementReport>& place) {
    if (!place || e.index < place->index) place = e;
  }
};

inline constexpr int kBinades = 2048;  // exponents of a double
inline int binade(double x) { return static_cast<int>((std::bit_cast<uint64_t>(x) >> 52) & 0x7ff); }

/// The largest relative error of each binade of the gold.
struct RelativeErrors {
  std::array<double, kBinades> largest{};
  int low = kBinades, high = -1;

  /// `error` is the relative error.
  void add(double gold, double error) {
    if (!(error > 0) || gold == 0) return;
    const int b = binade(gold);
    double& place = largest[static_cast<size_t>(b)];
    place = std::max(place, error);
    low = std::min(low, b);
    high = std::max(high, b);
  }
  void merge(const RelativeErrors& other) {
    for (int b = other.low; b <= other.high; ++b) {
      double& place = largest[static_cast<size_t>(b)];
      place = std::max(place, other.largest[static_cast<size_t>(b)]);
    }
    low = std::min(low, other.low), high = std::max(high, other.high);
  }
  void clear() {
    if (low <= high) std::fill(largest.begin() + low, largest.begin() + high + 1, 0.0);
    low = kBinades, high = -1;
  }
};

/// Results of some of the rows.
struct Stripe {
  Stripe(MatrixView view, size_t gates) : map(view.rows, view.columns) { total.gates.resize(gates); }

  std::mutex mutex;  ///< guards all members, and State::rows of the rows in this stripe
  Tally total;
  ErrorMapper map;
  RelativeErrors relative;

  void merge(const Stripe& other) {
    total.merge(other.total);
    map.merge(other.map);
    relative.merge(other.relative);
  }
};

/// Some consecutive elements of one row, in the forms that the loops below need.
struct Block {
  int64_t row, first_column;
  size_t count;
  const double *got, *value, *magnitude, *rounding;
  const std::byte *stored, *expected;  ///< as the candidate wrote it; the gold rounded once
  uint64_t max_ulp;                    ///< the largest distance between `stored` and `expected`
};

struct OutputComparison::State {
  State(DType dtype, const std::byte* got, MatrixView view, Gates all_gates, int64_t terms, RowSet set,
        TokenQuantity tokens);

  DType dtype;
  const std::byte* got;
  MatrixView view;
  RowSet wanted;
  Gates gates;
  std::vector<PreparedGate> prepared;  ///< of the element-wise gates
  std::optional<PreparedGate> bound;   ///< the bound_ratio gate, needed by bias_t
  const Gate *baseline = nullptr, *bias = nullptr,
             *clip = nullptr;  ///< gates of the output that need extra sums
  std::unique_ptr<BlockSums> blocks;
  TokenQuantity quantity;
  std::vector<Token> tokens;
  std::vector<RowSums> rows;
  FailureRecorder failures;
  TrivialAnswers trivial;
  /// Row r uses stripe r modulo their number. With one stripe, threads with short rows would mostly wait for its mutex.
  std::deque<Stripe> stripes;

  struct Element;
  Element element_at(const Block& block, size_t i) const;
  template <typename AtGate>
  ElementReport report_of(const Element& e, const Block& block, size_t i, const AtGate& at_gate) const;
  Stripe& stripe_of(int64_t row) { return stripes[static_cast<size_t>(row) % stripes.size()]; }
  void compare_row(int64_t row, const double* value, const double* magnitude, const double* rounding);
  bool compare_ordinary(const Block& block, Tally& tally, RowSums& sums, RelativeErrors& relative) const;
  void compare_any(const Block& block, Tally& tally, RowSums& sums, RelativeErrors& relative) const;
  void add_leaning(const Block& block, RowSums& sums) const;
  void add_baseline(const Block& block, RowSums& sums) const;
  void add_blocks(int64_t row, const double* decoded, const double* value);
  double allowed(double value, double magnitude, double rounding) const;
  Achieved achieved(const Gate& gate, const RowSums& sum, const std::optional<PolicyMetrics>& policy) const;
  std::optional<PolicyMetrics> policy() const;
};

}  // namespace checkop
