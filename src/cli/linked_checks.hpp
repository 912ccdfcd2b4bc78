// SPDX-License-Identifier: Apache-2.0
// Checks a kernel that is linked into the running program, such as a test binary.
#pragma once

#include <string>
#include <vector>

#include "abi/check_operator.h"

namespace checkop {

struct LinkedOutcome {
  int code = 0;      ///< like the program's exit code
  std::string text;  ///< the checks that did not pass, or why nothing was checked
};

/// Checks `kernel` on the cases that `arguments` (flags of the program) select. The kernel's name may be any text; the
/// candidate's name is made from it. If its device is -1, --device decides; without that flag, CUDA if this build has
/// it. `test` is the --gtest_filter name in lines that repeat a check. Does not throw.
LinkedOutcome check_linked(const checkop_kernel& kernel, const std::vector<std::string>& arguments,
                           const std::string& test);

}  // namespace checkop
