// SPDX-License-Identifier: Apache-2.0
// Which rows of each output the gold computes, when it does not compute all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "case/case.hpp"

namespace checkop {

/// The product of the extents of a case: of the order of its gold's multiply-adds, and what contracts compare with
/// "sample_above".
double gold_work(const Case& c);

/// At most `rows` rows of each output of c.pass whose spec says `sampled`, every row of the others; 0: every row of
/// all. Deterministic: from the case, its seed and its inputs. In this order, until there are enough: the first and the
/// last row; rows on both sides of an edge of a mask, and around ids that select nothing; in outputs by vocabulary,
/// rows that ids select; both sides of multiples of 256, 128, 64 and 16 near both ends and of powers of two; random
/// ones. All per-row outputs have the same rows, and so have other outputs with the same first dimension.
std::vector<RowSet> sample_rows(const Case& c, const std::vector<Tensor>& inputs, int64_t rows);

/// What those outputs share whose rows must be the same: "+rows" of per-row outputs, the first dimension of others.
std::string row_group(const Case& c, const TensorSpec& spec);

}  // namespace checkop
