// SPDX-License-Identifier: Apache-2.0
// Threads over an index range.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/parallel.hpp"

namespace checkop::parallel_test {
namespace {

/// Runs a loop of two indices that wait for each other: one thread alone would never end. Returns how many have come.
int meet() {
  std::atomic<int> here = 0;
  parallel_for(2, 2, [&](int64_t) {
    ++here;
    while (here < 2) std::this_thread::yield();
  });
  return here;
}

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
  for (int loop = 0; loop < 100; ++loop) EXPECT_EQ(meet(), 2);
}

TEST(Parallel, TwoThreadsMayBeginLoopsAtOnce) {
  const auto loops = [] {
    for (int loop = 0; loop < 1000; ++loop) EXPECT_EQ(meet(), 2);
  };
  std::thread other(loops);
  loops();
  other.join();
}

TEST(Parallel, NothingRunsAfterAnExceptionAndThreadsServeTheNextLoop) {
  for (int loop = 0; loop < 20; ++loop) {
    std::atomic<bool> has_begun = false, has_ended = false;
    const auto body = [&](int64_t i) {
      if (i == 0) {
        while (!has_begun) std::this_thread::yield();
        throw std::invalid_argument("body");
      }
      has_begun = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      has_ended = true;
    };
    EXPECT_THROW(parallel_for(2, 2, body), std::invalid_argument);
    EXPECT_TRUE(has_ended);
    EXPECT_EQ(meet(), 2);
  }
}

TEST(Parallel, ForkedChildHasThreadsOfItsOwn) {
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
