// SPDX-License-Identifier: Apache-2.0
// Paths of this build. Compiled in each build; the other test objects are shared.
#include "support/built.hpp"

namespace checkop {

const char* const kBuildFolder = CHECKOP_BINARY_DIR;
const char* const kPluginFolder = CHECKOP_BINARY_DIR "/tests/plugins";
const char* const kProgram = CHECKOP_BINARY_DIR "/check_operator";

}  // namespace checkop
