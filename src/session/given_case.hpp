// SPDX-License-Identifier: Apache-2.0
// The case that --inputs and --gold make.
#pragma once

#include "case/case.hpp"
#include "session/run_options.hpp"

namespace checkop {

/// An operator that is not known becomes so, by its tensors; once in a run of the program. Throws InputError for
/// tensors that do not fit the operator or each other, and for what is missing to judge them.
Case case_of_given_files(const RunOptions& options);

}  // namespace checkop
