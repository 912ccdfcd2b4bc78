// SPDX-License-Identifier: Apache-2.0
// Invalid plugins and the errors about them.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "base/error.hpp"
#include "base/text.hpp"
#include "device/plugin.hpp"
#include "support/run_helper.hpp"

namespace checkop::plugin_test {
namespace {

/// The message of the InputError thrown by loading; "" if none is thrown.
std::string complaint(const std::vector<std::string>& paths) {
  try {
    load_plugins(paths);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

/// Expects that loading tests/plugins/<stem> fails with a message that names the file and contains `text`.
void expect_complaint(std::string_view stem, std::string_view text) {
  const std::string message = complaint({test_plugin(stem)});
  EXPECT_TRUE(message.starts_with(test_plugin(stem) + ":")) << message;
  EXPECT_NE(message.find(text), std::string::npos) << message;
}

TEST(Plugin, LoadsEveryKernelOfTheTable) {
  const auto candidates = load_plugin(test_plugin("honest"));
  ASSERT_EQ(candidates.size(), 9u);
  EXPECT_EQ(candidates[0].name, "honest");
  EXPECT_EQ(candidates[0].op, "matmul");
  EXPECT_EQ(candidates[0].pass, "forward");
  EXPECT_EQ(candidates[0].path, test_plugin("honest"));
  EXPECT_NE(candidates[0].kernel->launch, nullptr);
}

TEST(Plugin, OneNameMayServeBothPassesAndSeveralOperators) {
  EXPECT_NO_THROW(find_candidate("honest", "tells_bias", "forward"));
  EXPECT_NO_THROW(find_candidate("honest", "tells_bias", "backward"));
}

TEST(Plugin, EntriesOfALaterHeaderAreReadAtTheirOwnSize) {
  const auto candidates = load_plugin(test_plugin("longer_struct"));
  ASSERT_EQ(candidates.size(), 2u);
  EXPECT_EQ(candidates[1].name, "second");
}

TEST(Plugin, MissingFileIsAnError) {
  EXPECT_NE(complaint({"/no/such/plugin.so"}).find("/no/such/plugin.so: no such file"), std::string::npos);
}

TEST(Plugin, FileThatIsNoLibraryIsAnErrorWithTheLoadersWords) {
  const std::string path = testing::TempDir() + "no_library.so";
  std::ofstream(path) << "text";
  const std::string message = complaint({path});
  std::remove(path.c_str());
  EXPECT_NE(message.find("not a loadable shared library"), std::string::npos) << message;
  EXPECT_NE(message.find("file too short"), std::string::npos) << message;
}

TEST(Plugin, MissingSymbolIsAnError) {
  expect_complaint("no_symbol", "no symbol 'check_operator_plugin'; declare it with CHECKOP_EXPORT");
}

TEST(Plugin, OtherAbiVersionIsAnErrorWithBothNumbers) {
  expect_complaint("other_abi", "built for ABI version 99, this program has 1");
}

TEST(Plugin, TableWithoutKernelsIsAnError) { expect_complaint("no_kernels", "holds no kernels"); }

TEST(Plugin, ShortStructSizeIsAnError) { expect_complaint("short_struct", "struct_size is 8, expected at least"); }

TEST(Plugin, KernelWithoutNameIsAnError) { expect_complaint("no_name", "kernels[0]: no name"); }

TEST(Plugin, KernelWithoutLaunchIsAnError) { expect_complaint("null_launch", "'null_launch': launch is NULL"); }

TEST(Plugin, UnknownOperatorIsAnErrorWithTheNearestName) {
  expect_complaint("unknown_op", "unknown operator 'matmull'; did you mean 'matmul'?");
}

TEST(Plugin, UnknownPassIsAnErrorWithTheNearestName) {
  expect_complaint("unknown_pass", "operator 'matmul' has no pass 'foward'; did you mean 'forward'?");
}

TEST(Plugin, SameKernelTwiceInOneTableIsAnError) {
  expect_complaint("duplicate_name", "kernels[0] and kernels[1] are both matmul/forward 'twin'");
}

TEST(Plugin, SameCandidateInTwoPluginsIsAnErrorThatNamesBoth) {
  const std::string message = complaint({test_plugin("honest"), test_plugin("same_as_honest")});
  EXPECT_NE(message.find(test_plugin("same_as_honest") + ": brings matmul/forward 'honest'"), std::string::npos)
      << message;
  EXPECT_NE(message.find(test_plugin("honest") + " brings too"), std::string::npos) << message;
}

TEST(Plugin, SamePluginTwiceIsAnError) { EXPECT_NE(complaint({test_plugin("honest"), test_plugin("honest")}), ""); }

TEST(Plugin, DigestIsThatOfTheWholeFile) {
  const std::string path = testing::TempDir() + "digest.bin";
  const std::string bytes = std::string(100000, 'a') + "b";  // more than one block
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(file_digest(path), fnv1a_hex(bytes));
  std::remove(path.c_str());
  EXPECT_THROW(file_digest(path), InputError);
}

}  // namespace
}  // namespace checkop::plugin_test
