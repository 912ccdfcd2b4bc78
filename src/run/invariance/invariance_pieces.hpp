// SPDX-License-Identifier: Apache-2.0
// Batches that are cut in pieces whose sums are carried on: which ones a case gets.
#pragma once

#include <cstddef>
#include <vector>

#include "run/invariance/invariance.hpp"

namespace checkop {

/// The batch in pieces of `rows` rows, rounded up to where it may be cut, for each of these that leaves more than one
/// piece; the first covers its axis. None for a case that carries nothing.
std::vector<Context> carried_pieces(const Case& c, const std::vector<int64_t>& rows);

/// The input that output `output` of the case carries on.
size_t carry_of(const Case& c, size_t output);

}  // namespace checkop
