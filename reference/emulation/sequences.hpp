// SPDX-License-Identifier: Apache-2.0
// Emulated attention of packed sequences: the code shared by varlen_attention and paged_attention.
#pragma once

#include <cmath>
#include <limits>

#include "emulation/attention.hpp"

namespace checkop::emulation {

/// Rows [first, first + n) of every head of a matrix whose rows are tokens times heads, head by head.
inline Matrix heads_first(const Matrix& tokens, int64_t heads, int64_t first, int64_t n) {
  Matrix moved = Matrix::zeros(heads * n, tokens.columns);
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t i = 0; i < n; ++i)
      std::copy_n(tokens.row((first + i) * heads + head), tokens.columns, moved.row(head * n + i));
  return moved;
}

/// Stores the first `kept` of the n rows of every head of `moved` as tokens from `first` on.
inline void store_heads(const Matrix& moved, int64_t heads, int64_t n, int64_t first, int64_t kept,
                        std::vector<double>& to) {
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t i = 0; i < kept; ++i)
      std::copy_n(moved.row(head * n + i), moved.columns, to.begin() + ((first + i) * heads + head) * moved.columns);
}

/// The attention of one sequence of queries [heads * n_queries, head_dim] and keys [heads * n_keys, head_dim].
/// `sinks`: the index of that input.
inline AttentionProblem sequence_problem(const EmulationArgs& args, int sinks, int64_t q_heads, int64_t kv_heads,
                                         Matrix q, Matrix k, Matrix v) {
  const int64_t head_dim = q.columns, queries = q.rows() / q_heads, keys = k.rows() / kv_heads;
  AttentionProblem problem{};
  problem.batch = 1, problem.q_heads = q_heads, problem.kv_heads = kv_heads;
  problem.q_seq = queries, problem.kv_seq = keys, problem.head_dim = head_dim;
  problem.causal = args.attrs[0] != 0;
  problem.scale = scale_of(args.arithmetic, static_cast<float>(args.attrs[1]), head_dim, v.columns);
  read_window_and_cap(args, problem);
  problem.q = std::move(q), problem.k = std::move(k), problem.v = std::move(v);
  problem.keep.assign(static_cast<size_t>(keys), 1);
  if (args.has(sinks)) problem.sinks = args.floats(sinks);
  return problem;
}

/// The arguments for one sequence: short ones are not worth several threads.
inline EmulationArgs of_sequence(const EmulationArgs& args, int64_t queries, int64_t keys) {
  constexpr int64_t kManyPairs = 1 << 12;
  EmulationArgs own = args;
  if (queries * keys < kManyPairs) own.threads = 1;
  return own;
}

/// Packed keys have no mask.
inline constexpr FaultSpec kSequenceValueStride{kValueStrideOfKeys.name, kValueStrideOfKeys.meaning};

/// Faults of the attention of one sequence, in the arithmetic and in the choice of keys.
inline constexpr std::array kSequenceFaults{faults::kLastKDropped,
                                            faults::kLastKTileDropped,
                                            faults::kLastTileSkipped,
                                            faults::kBf16Accumulator,
                                            faults::kBf16Partials,
                                            faults::kPartialLost,
                                            faults::kBf16Exponential,
                                            faults::kTf32Factors,
                                            kPaddedColumnCounted,
                                            kSumNotRescaled,
                                            kMaximumNotSubtracted,
                                            kMaximumOfFirstTile,
                                            kCausalMaskIgnored,
                                            kOwnKeyUnseen,
                                            kCausalMaskLate,
                                            kLastKeyDropped,
                                            kNextGroupRead,
                                            kValuesShifted,
                                            kScaleMissing,
                                            kScaleOfVDim,
                                            kScaleTwice,
                                            kSequenceValueStride,
                                            kValueColumnsLost,
                                            kProbabilitiesRounded};

// Faults of packed sequences.
inline constexpr FaultSpec kSequencesJoined{"sequences_joined", "all sequences are taken for one"};
inline constexpr FaultSpec kLastSequenceSkipped{"last_sequence_skipped", "the last sequence is not computed"};
inline constexpr FaultSpec kTileSpills{"tile_spills",
                                       "the last tile of a sequence writes over the first rows of the next"};
inline constexpr FaultSpec kLongQueriesLost{"long_queries_lost",
                                            "queries behind the mean length of a sequence are not computed"};
inline constexpr FaultSpec kRestComputed{"rest_computed", "rows behind the last sequence are one more", "nonfinite"};
inline constexpr FaultSpec kRestStale{"rest_stale", "rows behind the last sequence keep what lay there: the first row"};
inline constexpr int64_t kTileOfQueries = 8;

/// Queries of a sequence of n that are stored; `bounds` are those of the sequences.
inline int64_t stored_queries(const Arithmetic& arithmetic, const std::vector<int64_t>& bounds, int64_t n) {
  if (!arithmetic.has(kLongQueriesLost.name)) return n;
  return std::min(n, bounds.back() / std::max<int64_t>(1, std::ssize(bounds) - 1));
}

// Faults of lse[tokens, heads].
inline constexpr FaultSpec kLseOfNoKeys{"lse_of_no_keys", "lse of a query without keys is 0", "nonfinite", "", "lse"};
inline constexpr FaultSpec kLseByHead{"lse_by_head", "lse is stored head by head", "accuracy", "", "lse"};
inline constexpr std::array kPackedLseFaults = joined(kLseFaults, std::array{kLseOfNoKeys, kLseByHead});
/// Among packed sequences there are some without keys, whose lse is infinite then.
inline constexpr std::array kPackedSinkForwardFaults = [] {
  std::array faults = kSinkForwardFaults;
  for (FaultSpec& fault : faults)
    if (fault.name == kLseWithoutSink.name) fault.kind = "nonfinite";
  return faults;
}();
/// Some packed sequences have few keys, of which no probability but the sink's is left.
inline constexpr std::array kPackedSinkBackwardFaults = [] {
  std::array faults = kSinkBackwardFaults;
  for (FaultSpec& fault : faults)
    if (fault.name == kSinkNotInMaximum.name) fault.kind = "nonfinite";
  return faults;
}();

/// The lse of a query without keys and a sink.
inline double lse_without_keys(const Arithmetic& arithmetic) {
  return arithmetic.has(kLseOfNoKeys.name) ? 0 : -std::numeric_limits<double>::infinity();
}

/// Stores the lse of a sequence's queries as store_heads() does.
inline void store_lse(const Arithmetic& arithmetic, std::vector<float> lse, int64_t heads, int64_t n, int64_t first,
                      int64_t kept, std::vector<double>& to) {
  std::replace(lse.begin(), lse.end(), -std::numeric_limits<float>::infinity(),
               static_cast<float>(lse_without_keys(arithmetic)));
  store_heads({std::move(lse), 1}, heads, n, first, kept, to);
}

/// With the fault kLseByHead, lse[tokens, heads] becomes what lse[heads, tokens] has.
inline void store_by_head(const Arithmetic& arithmetic, int64_t heads, std::vector<double>& lse) {
  if (!arithmetic.has(kLseByHead.name)) return;
  const std::vector<double> by_token = lse;
  const int64_t tokens = std::ssize(lse) / heads;
  for (int64_t i = 0; i < std::ssize(lse); ++i)
    lse[static_cast<size_t>(i % heads * tokens + i / heads)] = by_token[static_cast<size_t>(i)];
}

/// With the fault kTileSpills, the last of a sequence's tokens [first, first + n) lies in the rest of its tile, too.
/// `used`: tokens of all sequences.
inline void spill_tile(const Arithmetic& arithmetic, int64_t of_token, int64_t first, int64_t n, int64_t used,
                       std::vector<double>& to) {
  if (!arithmetic.has(kTileSpills.name) || n == 0) return;
  const int64_t end = first + n, tiles = (n + kTileOfQueries - 1) / kTileOfQueries * kTileOfQueries;
  for (int64_t token = end; token < std::min(first + tiles, used); ++token)
    std::copy_n(to.begin() + (end - 1) * of_token, of_token, to.begin() + token * of_token);
}

/// With the fault `stale`, tokens [end, tokens) of an output hold what the first one does.
inline void store_rest(const Arithmetic& arithmetic, const FaultSpec& stale, int64_t end, int64_t tokens,
                       std::vector<double>& to) {
  if (!arithmetic.has(stale.name) || tokens == 0) return;
  const int64_t columns = std::ssize(to) / tokens;
  for (int64_t token = end; token < tokens; ++token) std::copy_n(to.begin(), columns, to.begin() + token * columns);
}

}  // namespace checkop::emulation
