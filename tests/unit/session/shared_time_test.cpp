// SPDX-License-Identifier: Apache-2.0
// How candidates share the time of --for, by a clock that the tests set.
#include "session/shared_time.hpp"

#include <gtest/gtest.h>

namespace checkop::shared_time_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Check of(const char* candidate, const char* device = "cpu") {
  Check check;
  check.candidate.name = candidate;
  check.candidate.device = device;
  return check;
}

const Clock::time_point kStart = Clock::now();

TEST(SharedTime, EachCandidateHasAnEqualShare) {
  const Check a = of("a"), b = of("b"), c = of("c");
  SharedTime time(seconds(9), {&a, &a, &b, &b, &c, &c}, kStart);
  EXPECT_TRUE(time.allows(a, kStart));
  EXPECT_TRUE(time.allows(a, kStart + milliseconds(2999)));
  EXPECT_FALSE(time.allows(a, kStart + seconds(3)));
  EXPECT_TRUE(time.allows(b, kStart + seconds(3)));
  EXPECT_TRUE(time.allows(b, kStart + milliseconds(5999)));
  EXPECT_FALSE(time.allows(b, kStart + seconds(6)));
  EXPECT_TRUE(time.allows(c, kStart + seconds(6)));
  EXPECT_FALSE(time.allows(c, kStart + seconds(9)));
}

TEST(SharedTime, WhatACandidateLeavesGoesToThoseAfterIt) {
  const Check a = of("a"), b = of("b"), c = of("c");
  SharedTime time(seconds(9), {&a, &b, &c}, kStart);
  EXPECT_TRUE(time.allows(a, kStart));
  EXPECT_TRUE(time.allows(b, kStart + seconds(1)));
  EXPECT_TRUE(time.allows(b, kStart + milliseconds(4999)));
  EXPECT_FALSE(time.allows(b, kStart + seconds(5)));
}

TEST(SharedTime, TheSameNameOnAnotherDeviceIsAnotherCandidate) {
  const Check cpu = of("a"), cuda = of("a", "cuda");
  SharedTime time(seconds(4), {&cpu, &cuda}, kStart);
  EXPECT_TRUE(time.allows(cpu, kStart));
  EXPECT_FALSE(time.allows(cpu, kStart + seconds(2)));
  EXPECT_TRUE(time.allows(cuda, kStart + seconds(2)));
  EXPECT_TRUE(time.allows(cuda, kStart + seconds(3)));
}

TEST(SharedTime, TheFirstCheckOfACandidateBeginsAfterTheEndToo) {
  const Check a = of("a"), b = of("b");
  SharedTime time(seconds(1), {&a, &b, &b}, kStart);
  EXPECT_TRUE(time.allows(a, kStart));
  EXPECT_TRUE(time.allows(b, kStart + seconds(5)));
  EXPECT_FALSE(time.allows(b, kStart + seconds(5)));
}

}  // namespace
}  // namespace checkop::shared_time_test
