// SPDX-License-Identifier: Apache-2.0
// Plans launches of a batch in pieces, with sums carried from piece to piece.
#pragma once

#include <cstddef>
#include <vector>

#include "run/invariance/contexts.hpp"

namespace checkop {

/// One context for each entry of `rows` that gives more than one piece: the batch in pieces of that many rows, rounded
/// up to a multiple of kCarryRows. The first one covers its axis. Empty for a case without carried sums.
std::vector<Context> carried_pieces(const Case& c, const std::vector<int64_t>& rows);

/// The index of the input whose sums output `output` carries on.
size_t carry_of(const Case& c, size_t output);

}  // namespace checkop
