// SPDX-License-Identifier: Apache-2.0
// Checks of whole outputs that need no gold: every element finite, and the operator's identities.
#pragma once

#include <vector>

#include "compare.hpp"
#include "contract.hpp"

namespace checkop {

/// Checks every element of the outputs whose set in `rows` is not `all` and stores the results in `comparisons`, both
/// in the order of the pass.
void check_identities(const Case& c, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                      const std::vector<Gates>& gates, const std::vector<int64_t>& terms,
                      const std::vector<RowSet>& rows, unsigned threads, std::vector<Comparison>& comparisons);

}  // namespace checkop
