// SPDX-License-Identifier: Apache-2.0
// Norms, block sums and the bias statistic.
#include "judge/summary.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "judge/bound.hpp"

namespace checkop {
namespace {

/// sqrt(a/b); 0 for 0/0.
double root_ratio(double a, double b) {
  if (b > 0) return std::sqrt(a / b);
  return a == 0 ? 0 : kInfinity;  // a NaN is not zero
}

}  // namespace

RowSums& RowSums::operator+=(const RowSums& other) {
  abs_error += other.abs_error;
  signed_error += other.signed_error;
  squared_error += other.squared_error;
  squared_gold += other.squared_gold;
  squared_ratio += other.squared_ratio;
  squared_got += other.squared_got;
  largest_error = std::max(largest_error, other.largest_error);
  largest_of_baseline = std::max(largest_of_baseline, other.largest_of_baseline);
  squared_rounding += other.squared_rounding;
  largest_rounding = std::max(largest_rounding, other.largest_rounding);
  squared_of_reference += other.squared_of_reference;
  largest_of_reference = std::max(largest_of_reference, other.largest_of_reference);
  squared_noise += other.squared_noise;
  noisy += other.noisy;
  noisy_rows += other.noisy_rows;
  finite += other.finite;
  return *this;
}

Achieved rel_l2(const RowSums& total) { return {root_ratio(total.squared_error, total.squared_gold)}; }

Achieved cosine(const RowSums& total) {
  if (total.squared_error == 0) return {};
  return {total.squared_error / (total.squared_got + total.squared_gold)};
}

Achieved max_vs_baseline(const RowSums& total) {
  if (total.largest_error == 0) return {};
  return {total.largest_of_baseline > 0 ? total.largest_error / total.largest_of_baseline : kInfinity};
}

Achieved vs_baseline(const RowSums& total) { return {root_ratio(total.squared_error, total.squared_rounding)}; }

Achieved vs_reference(const RowSums& total) {
  const auto over = [](double error, double reference, double rounding) {
    const double most = reference + rounding / 2;
    return error == 0 ? 0 : most > 0 ? error / most : kInfinity;
  };
  // The common number of elements cancels out of the first one.
  return {std::max(
      over(std::sqrt(total.squared_error), std::sqrt(total.squared_of_reference), std::sqrt(total.squared_rounding)),
      over(total.largest_error, total.largest_of_reference, total.largest_rounding))};
}

Achieved bound_rms(std::span<const RowSums> rows) {
  constexpr int64_t kFewest = 4;
  using Key = std::tuple<double, double, int64_t>;
  std::vector<Key> erring;
  double squares = 0;
  int64_t elements = 0;
  for (const RowSums& row : rows) {
    if (row.squared_ratio == 0) {
      elements += row.finite;
    } else {
      erring.emplace_back(row.squared_gold, row.squared_ratio, row.finite);
    }
  }
  const size_t all = erring.size();
  std::sort(erring.begin(), erring.end());  // also makes the sums below independent of the order of rows
  erring.erase(std::unique(erring.begin(), erring.end()), erring.end());
  int64_t different = 0;  // elements
  for (const auto& [gold, ratio, n] : erring) squares += ratio, different += n;
  if (erring.size() < all && different < kFewest) return {};
  return {root_ratio(squares, static_cast<double>(elements + different))};
}

Achieved noise_rms(const RowSums& total, int64_t independent) {
  if (total.noisy == 0) return {};
  constexpr double kExponent = 25;
  const auto n = static_cast<double>(total.noisy);
  const auto k = static_cast<double>(independent == 0 ? total.noisy : std::min(total.noisy_rows, independent));
  return {std::sqrt(total.squared_noise / n / (1 + 2 * std::sqrt(kExponent / k) + 2 * kExponent / k))};
}

ElementBias bias_of(const PreparedGate& gate, double one_sided, double y, double stored, double c, double magnitude,
                    double rounding, double spread) {
  const double size = std::abs(y), computed = gate.computed(magnitude, rounding, spread);
  const double half = gate.half_ulp(size + computed), bound = computed + half, off = c - stored;
  const bool tells = computed >= half || !(std::abs(c - y) <= bound);
  if (y == 0 || !tells || !std::isfinite(off)) return {};
  const double even = (1 - one_sided) * gate.growth * magnitude + spread;
  const double allowed = computed < half ? 0 : computed - even;
  return {(y < 0 ? -off : off) / bound, allowed / bound};
}

Achieved bias_statistic(std::span<const RowSums> rows, int64_t independent) {
  using Key = std::tuple<double, double, double>;
  std::vector<Key> different;
  for (const RowSums& row : rows) {
    if (row.bias != 0 || row.allowed_bias != 0) different.emplace_back(row.squared_gold, row.bias, row.allowed_bias);
  }
  std::sort(different.begin(), different.end());  // also makes the sums below independent of the order of rows
  different.erase(std::unique(different.begin(), different.end()), different.end());
  double bias = 0, allowed = 0, squares = 0;
  for (const auto& [gold, s, a] : different) {
    bias += s, allowed += a;
    squares += (std::abs(s) + a) * (std::abs(s) + a);
  }
  const double excess = std::abs(bias) - allowed;
  if (excess <= 0 || squares == 0) return {};
  const double alike =
      independent == 0 ? 1 : std::max(1.0, static_cast<double>(different.size()) / static_cast<double>(independent));
  return {excess / std::sqrt(alike * squares)};
}

BlockSums::BlockSums(int64_t rows, int64_t columns, MatrixView view, const RowSet& wanted)
    : rows_(rows), columns_(columns), per_row_(static_cast<size_t>((view.columns + columns - 1) / columns)) {
  strips_.resize(static_cast<size_t>((view.rows + rows - 1) / rows));
  for (int64_t i = 0; i < wanted.count(view.rows); ++i) ++strips_[static_cast<size_t>(wanted.at(i) / rows_)].missing;
}

void BlockSums::add(int64_t row, std::span<const RowSums> sums) {
  const std::lock_guard lock(mutex_);
  Strip& strip = strips_[static_cast<size_t>(row / rows_)];
  strip.pending[row].assign(sums.begin(), sums.end());
  if (std::ssize(strip.pending) < strip.missing) return;
  strip.total.resize(per_row_);
  for (const auto& [each, of_row] : strip.pending) {
    for (size_t i = 0; i < per_row_; ++i) strip.total[i] += of_row[i];
  }
  strip.pending.clear();
}

Achieved BlockSums::worst(double limit) const {
  Achieved all;
  for (const Strip& strip : strips_) {
    for (const RowSums& block : strip.total) {
      const Achieved one = rel_l2(block);
      all.value = std::max(all.value, one.value);
      if (!(one.value <= limit)) ++all.out_of_bound;
    }
  }
  return all;
}

}  // namespace checkop
