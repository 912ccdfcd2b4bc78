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

TEST(Paths, FilesThatAreNowhereAreAnError) { EXPECT_THROW(find_shipped("contracts/none.json"), InputError); }

}  // namespace
}  // namespace checkop
