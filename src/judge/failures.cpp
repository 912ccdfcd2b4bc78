// SPDX-License-Identifier: Apache-2.0
// Keeps the elements whose indices have the lowest hashes, so the sample does not depend on the order of arrival.
#include "judge/failures.hpp"

#include <algorithm>
#include <tuple>

#include "base/mix.hpp"

namespace checkop {

uint64_t FailureRecorder::rank_of(const FailingElement& e) const {
  return mix_bits(static_cast<uint64_t>(e.row * columns_ + e.column) + 1);
}

void FailureRecorder::note(const FailingElement& element, RowFailures& row) const {
  row.columns_.push_back(element.column);
  if (rank_of(element) <= highest_.load(std::memory_order_relaxed)) row.sample_.push_back(element);
}

void FailureRecorder::add(const RowFailures& row, int64_t number) {
  if (row.empty()) return;
  const std::lock_guard lock(mutex_);
  counts_.by_row.resize(static_cast<size_t>(rows_));
  counts_.by_column.resize(static_cast<size_t>(columns_));
  counts_.count += std::ssize(row.columns_);
  counts_.by_row[static_cast<size_t>(number)] += std::ssize(row.columns_);
  for (const int64_t column : row.columns_) ++counts_.by_column[static_cast<size_t>(column)];
  for (const FailingElement& element : row.sample_) {
    kept_.push_back({rank_of(element), element});
    if (kept_.size() >= 2 * kMost) shrink();
  }
}

void FailureRecorder::shrink() {
  const auto cut = kept_.begin() + kMost;
  std::nth_element(kept_.begin(), cut - 1, kept_.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  highest_.store((cut - 1)->rank, std::memory_order_relaxed);
  kept_.erase(cut, kept_.end());
}

FailureSummary FailureRecorder::summary() const {
  FailureSummary summary = counts_;
  std::vector<Ranked> kept = kept_;
  std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  kept.resize(std::min(kept.size(), kMost));
  for (const Ranked& each : kept) summary.sample.push_back(each.element);
  std::sort(summary.sample.begin(), summary.sample.end(),
            [](const auto& a, const auto& b) { return std::tie(a.row, a.column) < std::tie(b.row, b.column); });
  return summary;
}

}  // namespace checkop
