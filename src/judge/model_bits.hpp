// SPDX-License-Identifier: Apache-2.0
// Outputs against the model of a device's tensor cores, bit for bit.
#pragma once

#include <string>
#include <vector>

#include "contract/contract.hpp"
#include "judge/compare.hpp"

namespace checkop {

/// Compares the stored bits of the outputs that have a bits_of_model gate with what Pass::model leaves there, on the
/// rows of `rows`; every NaN equals every NaN, and nothing else. Where bits differ, the orders of all_orders() are
/// tried on some of the rows that do. `terms` are the longest sums, by output. Stores the results in `comparisons`, in
/// the order of the pass.
void check_model(const Case& c, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                 const std::vector<Gates>& gates, const std::vector<int64_t>& terms, const std::vector<RowSet>& rows,
                 unsigned threads, std::vector<Comparison>& comparisons);

/// "0 of 4096 differ"; "31 of 4096 differ; nearest order: split_k 2 (99.8 % equal)".
std::string describe(const ModelComparison& m);

/// "split_k 2 99.8 %, ascending 16 98.9 %": every order that was tried, the nearest first.
std::string describe_orders(const ModelComparison& m);

}  // namespace checkop
