// SPDX-License-Identifier: Apache-2.0
// Where this build is: compiled in each, unlike the other objects of the tests.
#include "support/built.hpp"

namespace checkop {

const char* const kBuildFolder = CHECKOP_BINARY_DIR;
const char* const kPluginFolder = CHECKOP_BINARY_DIR "/tests/plugins";
const char* const kProgram = CHECKOP_BINARY_DIR "/check_operator";

}  // namespace checkop
