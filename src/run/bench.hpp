// SPDX-License-Identifier: Apache-2.0
// How fast candidates are: interleaved, flushed timings of one case in one process, and the statistics of timings.
#pragma once

#include <string>
#include <vector>

#include "device/device.hpp"
#include "device/plugin.hpp"
#include "run/run_result.hpp"

namespace checkop {

/// With fewer, a median and its spread say little.
inline constexpr int kLeastRepeats = 20;
/// Stretches of back-to-back launches that a candidate's sustained time comes from.
inline constexpr int kSustainedRounds = 5;

struct BenchPlan {
  int repeats = kLeastRepeats;          ///< of `burst`
  bool burst = true, sustained = true;  ///< what to time
  double sustained_ms = 1000;           ///< of launches back to back, for each candidate, all rounds together
};

/// A rank of a case that several share.
struct BenchRank {
  std::string device;
  double workspace_bytes = 0;
  std::vector<double> burst_ms, sustained_ms;  ///< of the samples of the whole, whose time is that of the slowest
};

/// What came of one candidate. The samples of all candidates that are ok are as many, and sample i of each was taken
/// right after the other's: A B A B.
struct BenchRun {
  RunStatus status = RunStatus::failed;
  std::string message;               ///< why it is not ok
  std::vector<double> burst_ms;      ///< one launch each, the cache flushed
  std::vector<double> sustained_ms;  ///< one launch, on average over a round of them back to back
  double workspace_bytes = 0;        ///< of all ranks
  std::vector<BenchRank> ranks;      ///< empty unless several share the case
};

struct BenchResult {
  RunStatus status = RunStatus::failed;  ///< other than ok: nothing was measured
  std::string message;
  std::vector<BenchRun> runs;  ///< in the order of the candidates
  double copy_gbps = 0;        ///< read plus written by a copy within the device, flushed like `burst`; the median
  bool device_lost = false;    ///< the process can't use its device any more
};

/// Times `candidates` on `c` in turns. A candidate that can't run is left out and says so in its run. Never throws for
/// what a candidate does.
///   burst      cache flushed by reading, one launch between two events, its launching covered; after a warm-up
///   sustained  launches back to back, without flush, taking turns on as many sets of buffers as it takes to leave the
///              cache (at most 16); kSustainedRounds rounds of all candidates in turns
BenchResult bench_candidates(Device& device, const std::vector<const Candidate*>& candidates, const Case& c,
                             const std::vector<Tensor>& inputs, const BenchPlan& plan);

/// Between the two samples next to the place q*(n - 1) of the sorted ones, 0 <= q <= 1: 0.5 gives the median.
/// `samples` must not be empty.
double quantile(std::vector<double> samples, double q);

struct Summary {
  double median, p20, p80;
};
Summary summarize(const std::vector<double>& samples);

/// Median of theirs[i] / ours[i]: above 1, ours is faster. Samples that were taken one after the other saw the same
/// clocks and temperature, which a ratio of medians would not respect.
double paired_ratio(const std::vector<double>& ours, const std::vector<double>& theirs);

/// Whether the medians differ by more than each spread from p20 to p80.
bool is_distinct(const Summary& a, const Summary& b);

}  // namespace checkop
