// SPDX-License-Identifier: Apache-2.0
// Compares outputs bit for bit with the software model of a device's tensor cores.
#pragma once

#include <string>
#include <vector>

#include "contract/contract.hpp"
#include "judge/compare.hpp"

namespace checkop {

/// Compares outputs that have a bits_of_model gate with the results of Pass::model, on the rows in `rows`. Stored bits
/// must be equal, except that all NaNs are equal. Where bits differ, tries the orders of all_orders() on some of the
/// differing rows. `terms` holds the length of the longest sum of each output. Stores the results in `comparisons`,
/// which are in the order of the pass.
void check_model(const Case& c, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                 const std::vector<Gates>& gates, const std::vector<int64_t>& terms, const std::vector<RowSet>& rows,
                 unsigned threads, std::vector<Comparison>& comparisons);

/// "0 of 4096 differ" or "31 of 4096 differ; nearest order: split_k 2 (99.8 % equal)".
std::string describe(const ModelComparison& m);

/// "split_k 2 99.8 %, ascending 16 98.9 %": every order that was tried, the nearest first.
std::string describe_orders(const ModelComparison& m);

}  // namespace checkop
