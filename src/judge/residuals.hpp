// SPDX-License-Identifier: Apache-2.0
// Checks of whole outputs that need no gold: every element finite, and the operator's identities.
#pragma once

#include <vector>

#include "contract/contract.hpp"
#include "judge/compare.hpp"

namespace checkop {

/// Of outputs whose set in `rows` is not `all`: every element is finite, and every identity holds of every row. Of
/// others the identities, where the contract has a gate for them. Stores the results in `comparisons`, in the order of
/// the pass.
void check_identities(const Case& c, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                      const std::vector<Gates>& gates, const std::vector<int64_t>& terms,
                      const std::vector<RowSet>& rows, unsigned threads, std::vector<Comparison>& comparisons);

}  // namespace checkop
