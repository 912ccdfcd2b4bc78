// SPDX-License-Identifier: Apache-2.0
// The tensor-parallel parts of a case: their bounds, and the elements of a tensor in each part.
#pragma once

#include <cstdint>
#include <vector>

#include "case/case.hpp"

namespace checkop {

/// Most ranks of a case; no single machine has more devices.
inline constexpr int64_t kMostRanks = 64;

/// The attribute of tensor-parallel operators that cuts the parallel dimension into segments independent of the number
/// of ranks.
inline constexpr std::string_view kCanonicalSegments = "canonical_segments";
/// The attribute of collective operators for the order in which the leaves of the parallel dimension are added; below 0
/// any order will do.
inline constexpr std::string_view kLeafOrder = "order";

/// Whether the case's operator is tensor-parallel.
bool is_tensor_parallel(const Case& c);
/// Whether each rank holds only a part of this tensor: along the operator's parallel dimension, or along an extent such
/// as "numel/world_size".
bool is_divided(const Case& c, const TensorSpec& spec);

int64_t world_size(const Case& c);  ///< 1 unless is_tensor_parallel()

/// Bounds 0 = bounds[0] <= ... <= bounds[parts] = total of parts of nearly equal length, longer ones first.
std::vector<int64_t> even_bounds(int64_t total, int64_t parts);

/// The number of parts of the parallel dimension whose results are combined in an order that does not depend on the
/// number of ranks: canonical segments, or leaves. 0: sums may depend on the number of ranks.
int64_t canonical_segments(const Case& c);

/// Whether bits must not depend on the number of ranks, and the case has enough ranks to show it. Addition commutes, so
/// fewer than four ranks have few different orders of addition.
bool compares_ranks(const Case& c);

/// Rank r holds [bounds[r], bounds[r + 1]) of the parallel dimension. If the case gives no bounds: even_bounds(); with
/// canonical segments, rank r gets segments [r*segments/ranks, (r+1)*segments/ranks) of even_bounds(total, segments).
/// Empty unless is_tensor_parallel().
std::vector<int64_t> part_bounds(const Case& c);

/// The case with the extents of rank `rank`.
Case rank_case(const Case& c, int64_t rank);

/// A divided tensor as [outer, extent, inner], with `extent` divided over the ranks at `bounds`; [1, 1, all] for any
/// other tensor.
struct PartView {
  int64_t outer, extent, inner;
  std::vector<int64_t> bounds = {};
};
PartView part_view(const Case& c, const TensorSpec& spec);

/// Throws InputError for a rank that would be empty, and for bounds that do not tile the parallel dimension.
void validate_parts(const Case& c);

}  // namespace checkop
