// SPDX-License-Identifier: Apache-2.0
// The message of an InputError: one line of limited length.
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace checkop::error_test {
namespace {

TEST(InputError, JoinsWhereWhatAndHint) {
  EXPECT_STREQ(InputError("--vocab", "expected 1", "give 1").what(), "--vocab: expected 1; give 1");
  EXPECT_STREQ(InputError("", "expected 1").what(), "expected 1");
}

TEST(InputError, IsOneLineWhateverANameHolds) {
  EXPECT_STREQ(InputError("a\nb.json", "unknown key '\r\x1b[2J'", "\t\x7f").what(),
               "a\\nb.json: unknown key '\\x0d\\x1b[2J'; \\x09\\x7f");
}

TEST(InputError, LeavesOutTheMiddleOfLongParts) {
  const std::string longest(1000, 'a');
  EXPECT_EQ(InputError("", longest).what(), longest);
  std::string cut(700, 'a');
  cut.append("...").append(200, 'a');
  EXPECT_EQ(InputError("", std::string(1'000'000, 'a')).what(), cut);
}

TEST(InputError, CutsBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "\xe2\x82\xac";
  const std::string message = InputError("", text).what();
  EXPECT_EQ(message.size(), 3u * 234 + 3 + 3u * 66);
  EXPECT_EQ(message.substr(3 * 234 - 3, 9), "\xe2\x82\xac...\xe2\x82\xac");
}

}  // namespace
}  // namespace checkop::error_test
