// SPDX-License-Identifier: Apache-2.0
// The parts of a case that tensor-parallel ranks hold: which there are, and which elements of a tensor each has.
#pragma once

#include <cstdint>
#include <vector>

#include "case/case.hpp"

namespace checkop {

/// More ranks than one machine has.
inline constexpr int64_t kMostRanks = 64;

/// The attribute of sharded operators that cuts the sharded dimension into parts that do not depend on the ranks.
inline constexpr std::string_view kCanonicalSegments = "canonical_segments";

/// Whether the case's operator is one that ranks share.
bool is_sharded(const Case& c);
/// Whether each rank holds a part of that tensor alone.
bool is_sharded(const Case& c, const TensorSpec& spec);

int64_t world_size(const Case& c);  ///< 1 unless is_sharded()

/// 0 = bounds[0] < ... < bounds[parts] = total: parts of nearly equal length, longer ones first.
std::vector<int64_t> even_bounds(int64_t total, int64_t parts);

/// The number of canonical segments; 0 where the sums may depend on the ranks.
int64_t canonical_segments(const Case& c);

/// Whether bits must not depend on the number of ranks, and there are enough to tell: two sums commute, so that fewer
/// than four ranks add up in few orders.
bool compares_ranks(const Case& c);

/// Rank r holds [bounds[r], bounds[r + 1]) of the sharded dimension. Unless the case gives them: even_bounds(); with
/// canonical segments those of even_bounds(total, segments), of which rank r gets [r*segments/ranks, (r+1)*segments/
/// ranks). Empty unless is_sharded().
std::vector<int64_t> shard_bounds(const Case& c);

/// The case with the extents that rank `rank` sees.
Case rank_case(const Case& c, int64_t rank);

/// A sharded tensor as [outer, extent, inner]: the middle is what ranks share. One that is not sharded: [1, 1, all].
struct ShardView {
  int64_t outer, extent, inner;
};
ShardView shard_view(const Case& c, const TensorSpec& spec);

/// Throws InputError for ranks that would hold nothing, and for bounds that do not tile the sharded dimension.
void validate_shards(const Case& c);

}  // namespace checkop
