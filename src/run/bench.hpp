// SPDX-License-Identifier: Apache-2.0
// Times candidates on one case: interleaved in one process, with a flushed cache; and statistics of timings.
#pragma once

#include <string>
#include <vector>

#include "device/device.hpp"
#include "device/plugin.hpp"
#include "run/run_result.hpp"

namespace checkop {

/// With fewer repeats, a median and its spread say little.
inline constexpr int kLeastRepeats = 20;
/// Rounds of back-to-back launches for a candidate's sustained time.
inline constexpr int kSustainedRounds = 5;

struct BenchPlan {
  int repeats = kLeastRepeats;          ///< of burst timing
  bool burst = true, sustained = true;  ///< kinds of timing
  double sustained_ms = 1000;           ///< of back-to-back launches, for each candidate, over all rounds
};

/// One rank of a case that several ranks share.
struct BenchRank {
  std::string device;
  double workspace_bytes = 0;
  std::vector<double> burst_ms, sustained_ms;  ///< this rank's times; the run's are those of its slowest rank
};

/// The result of one candidate. All candidates that are ok have the same number of samples, and samples i of all
/// candidates were taken one right after the other: A B A B.
struct BenchRun {
  RunStatus status = RunStatus::failed;
  std::string message;               ///< why the status is not ok
  std::vector<double> burst_ms;      ///< of one launch each, with a flushed cache
  std::vector<double> sustained_ms;  ///< of one launch: the mean over a round of back-to-back launches
  double workspace_bytes = 0;        ///< of all ranks
  std::vector<BenchRank> ranks;      ///< empty unless several ranks share the case
};

struct BenchResult {
  RunStatus status = RunStatus::failed;  ///< if not ok, nothing was measured
  std::string message;
  std::vector<BenchRun> runs;  ///< in the order of the candidates
  double copy_gbps = 0;        ///< bytes read plus written by a copy on the device, flushed like burst; the median
  bool device_lost = false;    ///< the process can't use its device any more
};

/// Times `candidates` on `c` in turns. A candidate that can't run is left out; its BenchRun says why. Never throws for
/// errors of a candidate.
///   burst      after a warm-up, one launch between two events; the cache is flushed by reading, and the stream waits
///              while the host launches
///   sustained  back-to-back launches without flush, on alternating sets of buffers, enough to leave the cache (at most
///              16); kSustainedRounds rounds, with all candidates in turns in each
BenchResult bench_candidates(Device& device, const std::vector<const Candidate*>& candidates, const Case& c,
                             const std::vector<Tensor>& inputs, const BenchPlan& plan);

/// Quantile 0 <= q <= 1 of `samples`, interpolated between the two sorted samples next to index q*(n - 1); 0.5 gives
/// the median. `samples` must not be empty.
double quantile(std::vector<double> samples, double q);

struct Summary {
  double median, p20, p80;
};
Summary summarize(const std::vector<double>& samples);

/// Median of theirs[i] / ours[i]: above 1, ours is faster. Consecutive samples saw the same clocks and temperature,
/// which a ratio of medians would ignore.
double paired_ratio(const std::vector<double>& ours, const std::vector<double>& theirs);

/// Whether the medians differ by more than either spread from p20 to p80.
bool is_distinct(const Summary& a, const Summary& b);

}  // namespace checkop
