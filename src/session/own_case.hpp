// SPDX-License-Identifier: Apache-2.0
// The case that --inputs and --gold describe.
#pragma once

#include "case/case.hpp"
#include "session/run_options.hpp"

namespace checkop {

/// Makes the case. Adds an unknown operator, described by its tensors; call once per process. Throws InputError if
/// tensors do not fit the operator or each other, or if anything needed to judge them is missing.
Case case_of_given_files(const RunOptions& options);

}  // namespace checkop
