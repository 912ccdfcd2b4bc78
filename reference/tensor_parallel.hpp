// SPDX-License-Identifier: Apache-2.0
// Attributes that tensor-parallel operators have in addition to those of their single-rank counterparts.
#pragma once

#include "operator/operator.hpp"

namespace checkop {

inline constexpr AttrSpec kSegments{
    "canonical_segments", 0,
    "number of segments of nearly equal length, longer ones first, that the vocabulary is cut into; their results are "
    "combined in order, and ranks hold whole segments, so that bits do not depend on the number of ranks; 0: one a "
    "rank"};

}  // namespace checkop
