// SPDX-License-Identifier: Apache-2.0
// check_operator init: the files that it writes, and refusals. tests/program/install_test.sh builds and checks a
// project.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "support/process.hpp"

namespace checkop::init_test {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

struct Init : testing::Test {
  Init() { fs::remove_all(folder); }
  ~Init() override { fs::remove_all(folder); }
  const fs::path folder = fs::path(testing::TempDir()) / "init_test";
};

TEST_F(Init, WritesFourFilesWithoutPlaceholders) {
  for (const std::string device : {"cpu", "cuda"}) {
    const fs::path project = folder / device;
    expect_exit(run_program(fmt::format("init my_op {} --{}", project.string(), device)), 0, "'my_op' for rms_norm");
    const std::string source = device == "cpu" ? "my_op.cpp" : "my_op.cu";
    for (const std::string& file :
         {std::string("CMakeLists.txt"), std::string("README.md"), std::string("cases.json"), source}) {
      const std::string text = read(project / file);
      EXPECT_FALSE(text.empty()) << file;
      EXPECT_EQ(text.find('@'), std::string::npos) << file << ":\n" << text;
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(project), {}), 4);
    EXPECT_NE(read(project / "CMakeLists.txt").find("SOURCES " + source + " OPERATOR rms_norm"), std::string::npos);
    EXPECT_NE(read(project / source).find("\"my_op\", \"rms_norm\", \"forward\""), std::string::npos);
  }
}

TEST_F(Init, TakesAnEmptyFolder) {
  fs::create_directories(folder);
  expect_exit(run_program("init my_op --cpu " + folder.string()), 0, "ctest --test-dir build");
}

TEST_F(Init, RefusesAFolderWithFilesAndLeavesItAsItIs) {
  fs::create_directories(folder);
  std::ofstream(folder / "mine.cu") << "mine";
  expect_exit(run_program("init my_op " + folder.string()), 2, "init_test: exists and is not empty; name a folder");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
  expect_exit(run_program("init my_op " + (folder / "mine.cu").string()), 2, "mine.cu: is no folder");
}

TEST_F(Init, RefusesNamesThatCannotBe) {
  const std::pair<std::string, std::string> mistakes[] = {
      {"3x", "'3x' is no name for a candidate"},
      {"a/b", "'a/b' is no name"},
      {"'a b'", "'a b' is no name"},
      {"''", "'' is no name"},
      {"test", "'test' is reserved by CMake"},
      {"native", "rms_norm has a candidate 'native' already"},
  };
  for (const auto& [name, error] : mistakes) {
    expect_exit(run_program(fmt::format("init {} {}", name, folder.string())), 2, error);
    EXPECT_FALSE(fs::exists(folder)) << name;
  }
}

TEST_F(Init, HasOneOperatorForTwoDevices) {
  expect_exit(run_program("init my_op --op silu " + folder.string()), 2, "unknown flag '--op'");
  expect_exit(run_program("init my_op --cpu --cuda " + folder.string()), 2, "excludes");
  EXPECT_FALSE(fs::exists(folder));
}

}  // namespace
}  // namespace checkop::init_test
