// SPDX-License-Identifier: Apache-2.0
// Attributes that tensor-parallel operators have in addition to those of their single-rank counterparts.
#pragma once

#include "operator/operator.hpp"

namespace checkop {

inline constexpr AttrSpec kSegments{
    "canonical_segments", 0,
    "cuts the vocabulary into so many parts of nearly equal length, longer ones first, whose results are combined in "
    "order: bits do not depend on the number of ranks, each of which holds whole parts. 0: a part a rank"};

}  // namespace checkop
