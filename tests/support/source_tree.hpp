// SPDX-License-Identifier: Apache-2.0
// For tests that need files shipped with the program: contracts, case files, presets.
#pragma once

#include <filesystem>

namespace checkop {

/// Changes to the source tree for its lifetime, so that shipped files are found.
class InSourceTree {
 public:
  InSourceTree() { std::filesystem::current_path(CHECKOP_SOURCE_DIR); }
  ~InSourceTree() { std::filesystem::current_path(before_); }
  InSourceTree(const InSourceTree&) = delete;
  InSourceTree& operator=(const InSourceTree&) = delete;

 private:
  std::filesystem::path before_ = std::filesystem::current_path();
};

}  // namespace checkop
