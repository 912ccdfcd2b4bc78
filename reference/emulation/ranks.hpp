// SPDX-License-Identifier: Apache-2.0
// A vocabulary divided over ranks, and faults in combining their results.
#pragma once

#include <array>

#include "emulation/common.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kRankLost{"rank_partial_lost", "the last rank's sum of exponentials is lost"};
inline constexpr FaultSpec kRankTwice{"rank_counted_twice", "the last rank's sum of exponentials is counted twice"};
inline constexpr FaultSpec kLocalMax{"local_max_as_global",
                                     "each rank's own maximum is taken for the maximum of all of them"};
inline constexpr FaultSpec kTargetTwice{"target_counted_twice",
                                        "a rank that does not hold the target adds the logit nearest to it"};
inline constexpr FaultSpec kShardOffset{"shard_offset_off_by_one",
                                        "every rank but the first takes its part to begin one column later"};
inline constexpr FaultSpec kNotReduced{"dhidden_not_reduced", "dhidden is not reduced over the ranks"};

/// The rank that holds column `id`.
inline size_t owner_of(const EmulationArgs& args, int64_t id) {
  size_t rank = 0;
  while (rank + 2 < args.bounds.size() && id >= args.bounds[rank + 1]) ++rank;
  return rank;
}

/// `id`, or with the fault kShardOffset the column that its rank reads; -1: none.
inline int64_t column_of(const EmulationArgs& args, int64_t id) {
  const size_t owner = id < 0 ? 0 : owner_of(args, id);
  if (owner == 0 || !args.arithmetic.has(kShardOffset.name)) return id;
  return id == args.bounds[owner] ? -1 : id - 1;
}

/// The logit of column `id` of a row; 0 for -1.
inline float target_of(const EmulationArgs& args, const float* z, int64_t id) {
  if (id < 0) return 0;
  float target = z[id];
  if (args.bounds.size() < 3 || !args.arithmetic.has(kTargetTwice.name)) return target;
  const size_t owner = owner_of(args, id);  // the neighbouring rank clamps the id into its own part
  return target + (owner == 0 ? z[args.bounds[1]] : z[args.bounds[owner] - 1]);
}

/// softmax_row(), or its result with a fault between ranks.
inline SoftmaxRow rank_softmax_row(const EmulationArgs& args, const float* z, int64_t n) {
  const Arithmetic& a = args.arithmetic;
  const bool lost = a.has(kRankLost.name), twice = a.has(kRankTwice.name), local = a.has(kLocalMax.name);
  if (args.bounds.size() < 3 || !(lost || twice || local)) return softmax_row(a, z, n);
  SoftmaxRow all{softmax_row(a, z, n).max, 0};
  const size_t ranks = args.bounds.size() - 1;
  for (size_t r = 0; r < ranks; ++r) {
    const SoftmaxRow part = softmax_row(a, z + args.bounds[r], args.bounds[r + 1] - args.bounds[r]);
    const bool last = r + 1 == ranks;
    if (last && lost) continue;
    if (local && r == 0) all.max = part.max;
    all.sum += (last && twice ? 2.0F : 1.0F) * part.sum * (local ? 1.0F : std::exp(part.max - all.max));
  }
  return all;
}

}  // namespace checkop::emulation
