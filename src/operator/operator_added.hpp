// SPDX-License-Identifier: Apache-2.0
// Registers operators for this run of the program only.
#pragma once

#include "operator/operator.hpp"

namespace checkop {

/// Makes find_operator() find `op`, which must live as long as the program. operators() does not list it. Processes
/// forked later find it too.
void add_operator(const Operator& op);

}  // namespace checkop
