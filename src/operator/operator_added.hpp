// SPDX-License-Identifier: Apache-2.0
// Operators that only this run of the program knows.
#pragma once

#include "operator/operator.hpp"

namespace checkop {

/// Makes find_operator() know `op` too, which has to live as long as the program; operators() does not list it.
/// Processes that are forked later know it as well.
void add_operator(const Operator& op);

}  // namespace checkop
