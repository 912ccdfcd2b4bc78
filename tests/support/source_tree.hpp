// SPDX-License-Identifier: Apache-2.0
// For tests that need what comes with the program: contracts, case files, presets.
#pragma once

#include <filesystem>

namespace checkop {

/// Works in the source tree for a while: what comes with the program is found there.
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
