// SPDX-License-Identifier: Apache-2.0
// The Python package beside the program: candidates of --py and --torch-op, and the subcommand `import`.
#pragma once

#include <string>
#include <vector>

#include "session/run_options.hpp"

namespace checkop {

/// Turns --py and --torch-op into commands of --exec, which serve those functions. Without --candidate they are the
/// candidates, and without --op their operators are checked. Throws InputError where the package is missing, or where
/// --torch-op lacks an operator.
void serve_python_candidates(RunOptions& run);

/// Becomes `check_operator import`, which is a program in Python. Returns only by throwing EnvironmentError.
[[noreturn]] void become_import(const std::vector<std::string>& arguments);

}  // namespace checkop
