// SPDX-License-Identifier: Apache-2.0
// Finding files that are shipped with the program.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/paths.hpp"
#include "support/message_of.hpp"

namespace checkop::paths_test {
namespace {

TEST(Paths, ProgramFolderHoldsThisTestUnlessItIsSet) {
  EXPECT_TRUE(std::filesystem::exists(program_folder() + "/checkop_tests"));
  EXPECT_EQ(executable_path(), program_folder() + "/checkop_tests");
  set_program_folder("/elsewhere/bin");
  EXPECT_EQ(program_folder(), "/elsewhere/bin");
  EXPECT_EQ(shipped_kernels(), "/elsewhere/bin/kernels");
  set_program_folder("");
  EXPECT_EQ(executable_path(), program_folder() + "/checkop_tests");
}

TEST(Paths, ShortPathsAreRelativeToTheWorkingDirectoryBelowIt) {
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(short_path(here + "/a/../b/c.json"), "b/c.json");
  EXPECT_EQ(short_path("/elsewhere/./c.json"), "/elsewhere/c.json");
  EXPECT_EQ(short_path("b/c.json"), "b/c.json");
}

TEST(Paths, FilesThatAreNowhereAreAnError) {
  EXPECT_EQ(message_of([] { find_shipped("contracts/none.json"); }),
            "contracts/none.json: is neither in the working directory nor beside the program; install it again, or run "
            "from the source tree");
}

}  // namespace
}  // namespace checkop::paths_test
