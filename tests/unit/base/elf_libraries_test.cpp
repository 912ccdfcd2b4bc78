// SPDX-License-Identifier: Apache-2.0
// What a plugin may read because it says that it needs it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/elf_libraries.hpp"
#include "base/external_process.hpp"
#include "support/built.hpp"
#include "support/run_helper.hpp"

namespace checkop::elf_libraries_test {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ElfLibraries, ANameOfALibraryOpensNothingElse) {
  const TempFolder folder;
  const std::string plugin = folder.path() + "/plugin.so";
  std::string bytes = bytes_of(test_plugin("honest"));
  // It says that it needs "/" in place of the C library, and looks there for its libraries.
  const std::string needed = std::string("libc.so.6") + '\0';
  const size_t at = bytes.find('\0' + needed) + 1;
  ASSERT_NE(at, 0u);
  bytes.replace(at, needed.size(), "/" + std::string(needed.size() - 1, '\0'));
  std::ofstream(plugin, std::ios::binary) << bytes;
  setenv("LD_LIBRARY_PATH", folder.path().c_str(), 1);
  const std::vector<std::string> files = libraries_of(plugin);
  unsetenv("LD_LIBRARY_PATH");
  EXPECT_EQ(std::count(files.begin(), files.end(), "/"), 0);
  EXPECT_EQ(std::count(files.begin(), files.end(), plugin), 1);
}

TEST(ElfLibraries, BesideThePluginOnlyLibrariesAreRead) {
  const TempFolder folder;
  const auto in_folder = [&](const char* name) { return folder.path() + "/" + name; };
  const std::string bytes = bytes_of(test_plugin("honest"));
  for (const char* name : {"plugin.so", "other.so", "other.so.1.2", "gold.sorted"})
    std::ofstream(in_folder(name), std::ios::binary) << bytes;
  std::ofstream(in_folder("text.so")) << "secret";
  fs::create_directory(in_folder("folder.so"));
  std::vector<std::string> beside;
  for (const std::string& file : libraries_of(in_folder("plugin.so")))
    if (file.starts_with(folder.path())) beside.push_back(fs::path(file).filename().string());
  EXPECT_EQ(beside, (std::vector<std::string>{"other.so", "other.so.1.2", "plugin.so"}));
}

}  // namespace
}  // namespace checkop::elf_libraries_test
