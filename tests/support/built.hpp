// SPDX-License-Identifier: Apache-2.0
// What the tests run. Not macros: so the tests' objects are the same in every build, and a compiler cache has them
// once.
#pragma once

#include <string>
#include <string_view>

namespace checkop {

extern const char* const kBuildFolder;   ///< of this build
extern const char* const kPluginFolder;  ///< of the plugins that the tests load
extern const char* const kProgram;       ///< check_operator

/// The path of an operator's candidate `native`.
inline std::string native_plugin(std::string_view op) {
  return std::string(kBuildFolder) + "/kernels/" + std::string(op) + "/native.so";
}

}  // namespace checkop
