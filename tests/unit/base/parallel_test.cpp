// SPDX-License-Identifier: Apache-2.0
// Threads over an index range.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "base/parallel.hpp"

namespace checkop::parallel_test {
namespace {

TEST(Parallel, EveryIndexRunsOnce) {
  for (const unsigned threads : {0u, 1u, 3u, 64u}) {
    std::vector<std::atomic<int>> seen(100);
    parallel_for(threads, 100, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; });
    for (const auto& count : seen) EXPECT_EQ(count, 1);
  }
}

TEST(Parallel, EmptyRangeRunsNothing) {
  parallel_for(4, 0, [](int64_t) { FAIL(); });
}

TEST(Parallel, ExceptionsReachTheCaller) {
  for (const unsigned threads : {1u, 4u}) {
    EXPECT_THROW(parallel_for(threads, 100,
                              [](int64_t i) {
                                if (i == 42) throw std::runtime_error("42");
                              }),
                 std::runtime_error);
  }
}

}  // namespace
}  // namespace checkop::parallel_test
