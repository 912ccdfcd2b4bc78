// SPDX-License-Identifier: Apache-2.0
// Checks of a kernel that is part of the running program, such as a test binary.
#pragma once

#include <string>
#include <vector>

#include "abi/check_operator.h"

namespace checkop {

struct LinkedOutcome {
  int code = 0;      ///< as the program's exit code
  std::string text;  ///< what did not pass, or why nothing could be asked
};

/// Checks `kernel` on the cases that `arguments`, flags of the program, select. Its name may be any text, of which the
/// candidate's name is made, and its device -1: what --device says, else CUDA where this program knows it. `test` is
/// the name for --gtest_filter in lines that repeat a check. Throws nothing.
LinkedOutcome check_linked(const checkop_kernel& kernel, const std::vector<std::string>& arguments,
                           const std::string& test);

}  // namespace checkop
