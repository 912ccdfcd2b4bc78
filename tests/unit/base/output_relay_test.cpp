// SPDX-License-Identifier: Apache-2.0
// What a plugin prints, as this process prints it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/output_relay.hpp"

namespace checkop::output_relay_test {
namespace {

/// What standard error gets of `text`, written in pieces of 1000 bytes.
std::string printed(const std::string& text) {
  testing::internal::CaptureStderr();
  {
    OutputRelay relay;
    for (size_t at = 0; at < text.size(); at += 1000)
      EXPECT_GT(write(relay.writer(), text.data() + at, std::min<size_t>(1000, text.size() - at)), 0);
    relay.close_writer();
  }
  return testing::internal::GetCapturedStderr();
}

TEST(OutputRelay, MarksEveryLineAndEndsTheLast) {
  EXPECT_EQ(printed(""), "");
  EXPECT_EQ(printed("a\n\nb"), "plugin: a\nplugin: \nplugin: b\n");
}

TEST(OutputRelay, ControlCharactersAreNotPrinted) {
  EXPECT_EQ(printed("a\tb\x1b[2J\rc\x7f\n"), "plugin: a\tb?[2J?c?\n");
}

TEST(OutputRelay, LeavesOutWhatFollowsAMebibyte) {
  const std::string text = printed(std::string(size_t{3} << 20, 'x'));
  EXPECT_LT(text.size(), (size_t{1} << 20) + 10000);
  const std::string end = "x\nplugin: the rest is left out\n";
  ASSERT_GT(text.size(), end.size());
  EXPECT_EQ(text.substr(text.size() - end.size()), end);
}

TEST(OutputRelay, SettlesOnceAllIsPrinted) {
  testing::internal::CaptureStderr();
  OutputRelay relay;
  ASSERT_EQ(write(relay.writer(), "now\n", 4), 4);
  relay.settle();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "plugin: now\n");
}

}  // namespace
}  // namespace checkop::output_relay_test
