// SPDX-License-Identifier: Apache-2.0
// Chooses the rows of each output for a gold that does not compute all rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "case/case.hpp"

namespace checkop {

/// The product of a case's extents: of the order of its gold's multiply-adds. Contracts compare it with "sample_above".
double gold_work(const Case& c);

/// Chooses at most `rows` rows of each `sampled` output of c.pass, and every row of the other outputs; 0: every row of
/// all outputs. Takes rows in this order until there are enough: the first and the last row; rows on both sides of a
/// mask's edge, and around ids that select nothing; in outputs by vocabulary, rows that ids select; both sides of
/// multiples of 256, 128, 64 and 16 near both ends, and of powers of two; random rows, a quarter of all at least. Where
/// OutputSpec::sampled_whole is given, takes all rows of the last entry and of a random one instead, however many.
/// Outputs of one row_group() get the same rows. `seed` draws the random ones: by default the case's, so that the same
/// rows are judged again.
std::vector<RowSet> sample_rows(const Case& c, const std::vector<Tensor>& inputs, int64_t rows,
                                std::optional<uint64_t> seed = {});

/// Entries of OutputSpec::sampled_whole that sample_rows() takes.
inline constexpr int64_t kSampledEntries = 2;
/// Entries of OutputSpec::sampled_whole in all.
int64_t entries_of(const Case& c, const OutputSpec& spec);

/// Key of the outputs that must get the same rows: "+rows" for per-row outputs with a row for each row of the batch,
/// "+batch q_heads" for those with a row for each entry of these dimensions, the first dimension for others.
std::string row_group(const Case& c, const TensorSpec& spec);

/// What a gold has to compute for these rows of one output, ascending: they of the `sampled` outputs of its
/// row_group(), and no row of the other sampled ones. Outputs that are not sampled have every row.
std::vector<RowSet> rows_of(const Case& c, const OutputSpec& output, const std::vector<int64_t>& rows);

}  // namespace checkop
