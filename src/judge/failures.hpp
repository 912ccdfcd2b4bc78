// SPDX-License-Identifier: Apache-2.0
// A summary of an output's failing elements, in memory that does not grow with their number.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

namespace checkop {

struct FailingElement {
  int64_t row = 0, column = 0;
  double got = 0, gold = 0, bound = 0;
};

/// Failing elements of one output, seen as a matrix. Independent of the order of rows and threads.
struct FailureSummary {
  int64_t count = 0;
  std::vector<int64_t> by_row, by_column;  ///< failing elements per row and per column; empty if none failed
  std::vector<FailingElement> sample;      ///< at most kMost, chosen at random; sorted by row and column
};

/// The failing elements of one row, before they are added to a FailureRecorder.
class RowFailures {
 public:
  bool empty() const { return columns_.empty(); }

 private:
  friend class FailureRecorder;
  std::vector<int64_t> columns_;
  std::vector<FailingElement> sample_;
};

class FailureRecorder {
 public:
  static constexpr size_t kMost = 4096;

  FailureRecorder(int64_t rows, int64_t columns) : rows_(rows), columns_(columns) {}

  /// May be called from any thread, but only one thread may use the same RowFailures.
  void note(const FailingElement& element, RowFailures& row) const;
  void add(const RowFailures& row, int64_t number);
  FailureSummary summary() const;

 private:
  struct Ranked {
    uint64_t rank;
    FailingElement element;
  };
  uint64_t rank_of(const FailingElement& element) const;
  void shrink();  ///< keeps the kMost lowest ranks; call under mutex_

  int64_t rows_, columns_;
  std::atomic<uint64_t> highest_{std::numeric_limits<uint64_t>::max()};  ///< elements with higher ranks are not kept
  std::mutex mutex_;
  std::vector<Ranked> kept_;
  FailureSummary counts_;
};

}  // namespace checkop
