// SPDX-License-Identifier: Apache-2.0
// Threads over an index range.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>
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

TEST(Parallel, LoopWithinALoopRunsEveryIndexOnce) {
  std::vector<std::atomic<int>> seen(64);
  parallel_for(4, 8,
               [&](int64_t i) { parallel_for(4, 8, [&, i](int64_t j) { ++seen[static_cast<size_t>(8 * i + j)]; }); });
  for (const auto& count : seen) EXPECT_EQ(count, 1);
}

TEST(Parallel, ThreadsTakePartAndServeTheNextLoop) {
  for (int loop = 0; loop < 100; ++loop) {
    std::atomic<int> here = 0;
    // Each waits for the other: one thread alone would never end.
    parallel_for(2, 2, [&](int64_t) {
      ++here;
      while (here < 2) std::this_thread::yield();
    });
    EXPECT_EQ(here, 2);
  }
}

TEST(Parallel, ForkedChildHasThreadsOfItsOwn) {
  const auto meet = [] {
    std::atomic<int> here = 0;
    parallel_for(2, 2, [&](int64_t) {
      ++here;
      while (here < 2) std::this_thread::yield();
    });
  };
  meet();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    meet();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  meet();
}

}  // namespace
}  // namespace checkop::parallel_test
