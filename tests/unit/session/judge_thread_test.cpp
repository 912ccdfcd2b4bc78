// SPDX-License-Identifier: Apache-2.0
// The thread that judges: order, how many checks may wait, errors, the end.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "session/judge_thread.hpp"
#include "support/run_helper.hpp"

namespace checkop::judge_thread_test {
namespace {

using Names = std::vector<std::string>;

Attempt attempt(const std::string& name) {
  Attempt made;
  made.record.c = matmul_case();
  made.record.candidate = name;
  return made;
}

TEST(JudgeThread, JudgesInOrder) {
  Names judged;
  JudgeThread judge([&](Attempt& each) { judged.push_back(each.record.candidate); });
  for (const char* name : {"a", "b", "c"}) judge.add(attempt(name));
  judge.wait(0);
  EXPECT_EQ(judged, (Names{"a", "b", "c"}));
}

/// How many of three checks are judged when wait() returns; each takes a while.
int judged_after_wait(size_t most, int64_t most_bytes) {
  std::atomic<int> judged = 0;
  JudgeThread judge([&](Attempt&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++judged;
  });
  for (const char* name : {"a", "b", "c"}) judge.add(attempt(name));
  judge.wait(most, most_bytes);
  return judged;
}

TEST(JudgeThread, WaitsForAsManyAsMustNotWait) {
  const int64_t bytes = tensor_bytes(matmul_case());
  EXPECT_EQ(judged_after_wait(0, 3 * bytes), 3);
  EXPECT_GE(judged_after_wait(1, 3 * bytes), 2);
  EXPECT_GE(judged_after_wait(3, 2 * bytes), 1);
  EXPECT_GE(judged_after_wait(3, 0), 2);  // one may always wait
}

TEST(JudgeThread, WorksBesideTheThreadThatAddsChecks) {
  std::binary_semaphore goes_on(0);
  JudgeThread judge([&](Attempt&) { goes_on.acquire(); });
  judge.add(attempt("a"));
  judge.wait(1);
  goes_on.release();
  judge.wait(0);
}

TEST(JudgeThread, ThrowsTheErrorEachTimeAndJudgesNothingBehindIt) {
  Names judged;
  JudgeThread judge([&](Attempt& each) {
    judged.push_back(each.record.candidate);
    if (judged.size() == 2) throw std::runtime_error("no room for the report");
  });
  for (const char* name : {"a", "b", "c"}) judge.add(attempt(name));
  EXPECT_THROW(judge.wait(0), std::runtime_error);
  judge.add(attempt("d"));
  EXPECT_THROW(judge.wait(0), std::runtime_error);
  EXPECT_EQ(judged, (Names{"a", "b"}));
}

TEST(JudgeThread, EndsWithTheCheckAtWork) {
  std::atomic<int> begun = 0, ended = 0;
  {
    JudgeThread judge([&](Attempt&) {
      ++begun;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++ended;
    });
    for (const char* name : {"a", "b", "c"}) judge.add(attempt(name));
    while (begun == 0) std::this_thread::yield();
  }
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace checkop::judge_thread_test
