// SPDX-License-Identifier: Apache-2.0
// Checks of whole outputs that need no gold: all elements are finite, and the operator's identities hold.
#pragma once

#include <vector>

#include "contract/contract.hpp"
#include "judge/compare.hpp"

namespace checkop {

/// For outputs with sampled gold (`rows` is not `all`): checks that every element is finite (where the gold may be
/// infinite: that none is NaN) and that the identities hold in every row. For other outputs: checks the identities if
/// the contract has a gate for them. Stores the results in `comparisons`, which are in the order of the pass.
/// Identities allow for the roundings of `recipes`.
void check_identities(const Case& c, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                      const std::vector<Gates>& gates, const std::vector<int64_t>& terms,
                      const std::vector<RowSet>& rows, unsigned threads, const ActiveRecipes& recipes,
                      std::vector<Comparison>& comparisons);

}  // namespace checkop
