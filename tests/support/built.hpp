// SPDX-License-Identifier: Apache-2.0
// Paths of what the tests run. Variables, not macros, so that the test objects are the same in every build and a
// compiler cache can share them.
#pragma once

#include <string>
#include <string_view>

namespace checkop {

extern const char* const kBuildFolder;   ///< of this build
extern const char* const kPluginFolder;  ///< of the plugins that the tests load
extern const char* const kProgram;       ///< check_operator

/// Path of an operator's `native` candidate.
inline std::string native_plugin(std::string_view op) {
  return std::string(kBuildFolder) + "/kernels/" + std::string(op) + "/native.so";
}

}  // namespace checkop
