// SPDX-License-Identifier: Apache-2.0
// Where the files that come with the program lie.
#include "paths.hpp"

#include <filesystem>

#include "error.hpp"

namespace checkop {

namespace fs = std::filesystem;

std::string executable_folder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path().string();
}

std::string short_path(const std::string& path) {
  std::error_code error;
  const fs::path normal = fs::path(path).lexically_normal(),
                 below = normal.lexically_proximate(fs::current_path(error));
  return below.empty() || *below.begin() == ".." ? normal.string() : below.string();
}

std::string find_shipped(const std::string& relative) {
  const fs::path here = executable_folder();
  for (const fs::path& folder : {here, here / "../..", here / "../share/check_operator", fs::path()}) {
    const fs::path path = folder / relative;
    std::error_code error;
    if (fs::exists(path, error)) return short_path(path.string());
  }
  throw InputError(relative, "is neither in the working directory nor beside the program", "run from the source tree");
}

}  // namespace checkop
