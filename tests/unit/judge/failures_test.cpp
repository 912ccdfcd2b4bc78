// SPDX-License-Identifier: Apache-2.0
// The record of failing elements: its counts are complete, its sample is bounded, and it does not depend on order.
#include <gtest/gtest.h>

#include <set>

#include "judge/failures.hpp"

namespace checkop::failures_test {
namespace {

constexpr int64_t kRows = 50, kColumns = 1000;

FailureSummary record(bool reversed, int64_t every) {
  FailureRecorder recorder(kRows, kColumns);
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t row = reversed ? kRows - 1 - r : r;
    RowFailures failures;
    for (int64_t c = row % every; c < kColumns; c += every)
      recorder.note({row, c, 1, static_cast<double>(row * kColumns + c), 0}, failures);
    recorder.add(failures, row);
  }
  return recorder.summary();
}

TEST(Failures, NothingIsKeptOfNothing) {
  const FailureSummary none = FailureRecorder(kRows, kColumns).summary();
  EXPECT_EQ(none.count, 0);
  EXPECT_TRUE(none.sample.empty() && none.by_row.empty() && none.by_column.empty());
}

TEST(Failures, AFewAreAllKept) {
  const FailureSummary few = record(false, 100);
  EXPECT_EQ(few.count, 500);
  ASSERT_EQ(few.sample.size(), 500u);
  EXPECT_EQ(few.by_row[3], 10);
  EXPECT_EQ(few.by_column[3], 1);
  EXPECT_EQ(few.by_column[103], 1);
  EXPECT_EQ(few.by_column[60], 0);
}

TEST(Failures, OfManyARandomSampleIsKeptThatDoesNotDependOnTheirOrder) {
  const FailureSummary a = record(false, 2), b = record(true, 2);
  EXPECT_EQ(a.count, 25000);
  ASSERT_EQ(a.sample.size(), FailureRecorder::kMost);
  ASSERT_EQ(b.sample.size(), FailureRecorder::kMost);
  std::set<int64_t> rows;
  for (size_t i = 0; i < a.sample.size(); ++i) {
    EXPECT_EQ(a.sample[i].row, b.sample[i].row);
    EXPECT_EQ(a.sample[i].column, b.sample[i].column);
    EXPECT_EQ(a.sample[i].gold, static_cast<double>(a.sample[i].row * kColumns + a.sample[i].column));
    rows.insert(a.sample[i].row);
  }
  EXPECT_EQ(rows.size(), static_cast<size_t>(kRows));
  EXPECT_EQ(a.by_row, b.by_row);
  EXPECT_EQ(a.by_column, b.by_column);
}

}  // namespace
}  // namespace checkop::failures_test
