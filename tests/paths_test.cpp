// SPDX-License-Identifier: Apache-2.0
// Finding the files that come with the program.
#include "paths.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "error.hpp"

namespace checkop {
namespace {

TEST(Paths, ExecutableFolderHoldsThisTest) {
  EXPECT_TRUE(std::filesystem::exists(executable_folder() + "/checkop_tests"));
}

TEST(Paths, ShortPathsAreRelativeToTheWorkingDirectoryBelowIt) {
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(short_path(here + "/a/../b/c.json"), "b/c.json");
  EXPECT_EQ(short_path("/elsewhere/./c.json"), "/elsewhere/c.json");
  EXPECT_EQ(short_path("b/c.json"), "b/c.json");
}

TEST(Paths, FilesThatAreNowhereAreAnError) { EXPECT_THROW(find_shipped("contracts/none.json"), InputError); }

}  // namespace
}  // namespace checkop
