// SPDX-License-Identifier: Apache-2.0
// Invalid plugins and the errors about them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <fstream>

#include "base/error.hpp"
#include "device/plugin.hpp"
#include "support/contract_helper.hpp"
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

checkop_status do_nothing(const checkop_call*) { return CHECKOP_OK; }

/// A kernel for rms_norm forward that declares `recipes`.
constexpr checkop_kernel declaring(const char* recipes) {
  return {sizeof(checkop_kernel), "mine", "rms_norm", "forward", CHECKOP_CPU, 0, 0, nullptr, do_nothing, recipes};
}

/// What load_plugin() says of a table with `kernel` alone.
std::vector<Candidate> loaded(const checkop_kernel& kernel) {
  const checkop_plugin table{CHECKOP_ABI_VERSION, 1, &kernel};
  const LinkedPlugin linked(test_plugin("honest"), table);
  return load_plugin(test_plugin("honest"));
}

TEST(Plugin, AKernelDeclaresRecipesOfAnyPassOfItsOperator) {
  const checkop_kernel both = declaring("normalised_row_in_16_bit weighted_gradient_in_16_bit"),
                       none = declaring(nullptr);
  EXPECT_EQ(loaded(both)[0].recipes,
            (std::vector<std::string>{"normalised_row_in_16_bit", "weighted_gradient_in_16_bit"}));
  EXPECT_EQ(loaded(none)[0].recipes, std::vector<std::string>{});
}

TEST(Plugin, ADeclaredRecipeThatTheOperatorLacksIsAnError) {
  const checkop_kernel misspelt = declaring("normalised_row_in_16_bits"), foreign = declaring("p_in_16_bit");
  const auto complaint_about = [](const checkop_kernel& kernel) {
    return contract_test::error_of([&] { loaded(kernel); });
  };
  const std::string where = test_plugin("honest") + ": kernels[0] 'mine': operator 'rms_norm' has no recipe ";
  EXPECT_EQ(complaint_about(misspelt), where + "'normalised_row_in_16_bits'; did you mean 'normalised_row_in_16_bit'?");
  EXPECT_EQ(complaint_about(foreign), where + "'p_in_16_bit'; see 'check_operator show rms_norm'");
}

TEST(Plugin, WhatAKernelLacksIsSaid) {
  const auto complaint_about = [](auto change) {
    checkop_kernel kernel = declaring(nullptr);
    change(kernel);
    return contract_test::error_of([&] { loaded(kernel); });
  };
  const std::string where = test_plugin("honest") + ": kernels[0] 'mine': ";
  EXPECT_EQ(complaint_about([](checkop_kernel& k) { k.op = ""; }), where + "no operator; set checkop_kernel.op");
  EXPECT_EQ(complaint_about([](checkop_kernel& k) { k.pass = nullptr; }),
            where + "no pass; set checkop_kernel.pass to \"forward\" or \"backward\"");
  EXPECT_EQ(complaint_about([](checkop_kernel& k) { k.op = "rotary"; }),
            where + "unknown operator 'rotary'; see 'check_operator list'");
  EXPECT_EQ(complaint_about([](checkop_kernel& k) { k.device = 7; }),
            where + "unknown device 7; use CHECKOP_CPU or CHECKOP_CUDA");
  EXPECT_EQ(complaint_about([](checkop_kernel& k) { k.min_arch = 90, k.max_arch = 80; }),
            where + "min_arch 90 is above max_arch 80; swap them");
  EXPECT_EQ(complaint_about([](checkop_kernel& k) { k.name = "-mine"; }),
            test_plugin("honest") + ": kernels[0] '-mine': is no candidate name; " + kCandidateNameHint);
}

TEST(Plugin, EntriesOfDifferentSizesAreAnError) {
  checkop_kernel both[] = {declaring(nullptr), declaring(nullptr)};
  --both[1].struct_size;
  const checkop_plugin table{CHECKOP_ABI_VERSION, 2, both};
  EXPECT_EQ(
      contract_test::error_of([&] { read_table("mine.so", table); }),
      fmt::format("mine.so: kernels[1]: struct_size is {}, but {} in kernels[0]; set it to sizeof(checkop_kernel) in "
                  "every entry",
                  sizeof(checkop_kernel) - 1, sizeof(checkop_kernel)));
}

TEST(Plugin, AnEntryOfTheFirstHeaderDeclaresNothing) {
  // What follows an entry of the first header is not its own.
  checkop_kernel kernel = declaring("no recipe at all");
  kernel.struct_size = offsetof(checkop_kernel, recipes);
  EXPECT_EQ(loaded(kernel)[0].recipes, std::vector<std::string>{});
  --kernel.struct_size;
  EXPECT_THROW(loaded(kernel), InputError);
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
  EXPECT_EQ(file_digest(path),
            "3ce10647828a0c12474300948edf5cef34e42a4cde2ee5a805fd80abc8684f8b");  // as sha256sum says
  std::remove(path.c_str());
  EXPECT_EQ(contract_test::error_of([&] { file_digest(path); }),
            path + ": cannot be read; check the path and its permissions");
}

}  // namespace
}  // namespace checkop::plugin_test
