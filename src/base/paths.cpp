// SPDX-License-Identifier: Apache-2.0
// Finds the files that ship with the program.
#include "base/paths.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.hpp"
#include "base/version.hpp"

namespace checkop {

namespace fs = std::filesystem;

namespace {

std::string& chosen_folder() {
  static std::string folder;
  return folder;
}

}  // namespace

std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

std::string executable_path() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).string();
}

std::string program_folder() {
  return chosen_folder().empty() ? fs::path(executable_path()).parent_path().string() : chosen_folder();
}

void set_program_folder(const std::string& folder) { chosen_folder() = folder; }

std::string short_path(const std::string& path) {
  std::error_code error;
  const fs::path normal = fs::path(path).lexically_normal(),
                 below = normal.lexically_proximate(fs::current_path(error));
  return below.empty() || *below.begin() == ".." ? normal.string() : below.string();
}

std::string find_shipped(const std::string& relative) {
  const fs::path here = program_folder();
  // Search an installation first: two folders above an installed program there is no source tree.
  for (const fs::path& folder :
       {here / kSharedFiles, here, here / "../..", here / "../../src", fs::path(), fs::path("src")}) {
    const fs::path path = folder / relative;
    std::error_code error;
    if (fs::exists(path, error)) return short_path(path.string());
  }
  throw InputError(relative, "is neither in the working directory nor beside the program",
                   "install it again, or run from the source tree");
}

std::string installed_prefix() {
  const fs::path here = program_folder();
  std::error_code error;
  return fs::exists(here / kSharedFiles, error) ? (here / kPrefix).lexically_normal().parent_path().string() : "";
}

std::string shipped_kernels() {
  const fs::path here = program_folder(), installed = here / kInstalledKernels;
  std::error_code error;
  return (fs::exists(installed, error) ? installed : here / "kernels").lexically_normal().string();
}

}  // namespace checkop
