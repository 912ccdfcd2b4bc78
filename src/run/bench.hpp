// SPDX-License-Identifier: Apache-2.0
// Times candidates on one case: interleaved, with a flushed cache, and keeps what they answered; and statistics of
// timings.
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

/// What a case is timed on. A launch's data differ from those of the launch before, where there are several sets.
struct BenchData {
  std::vector<std::vector<Tensor>> inputs;  ///< data sets, at least one
  /// Of each candidate, outputs that are kept to be judged: of one launch on each data set, and behind them room for
  /// launches whose outputs differ from those.
  std::vector<std::vector<std::vector<Tensor>>> outputs;
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
  /// What its launches did to memory, and how the outputs of launches on the same data differ; `message` names the
  /// first launch whose outputs differ from those that are kept.
  RunResult seen = {};
  std::vector<int64_t> kept = {};  ///< the data set of each entry of BenchData::outputs; -1: empty
  int64_t overruled = 0;           ///< entries of burst_ms that were below a bound and are now the judge's times
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
///   burst      after a warm-up, one launch between two events. Before it the stream waits while the host launches,
///              gets the next data set and poisoned outputs, and flushes the cache by reading. A data set is used for a
///              second time only after all others, and never in the warm-up unless it is the only one
///   sustained  back-to-back launches without flush, on alternating sets of buffers with data of their own, enough to
///              leave the cache (at most 16); kSustainedRounds rounds, with all candidates in turns in each. Before a
///              round outputs are poisoned. Beside the rounds, data change amid a chain that is not timed
/// The outputs of the first launch on a data set are kept in `data`, whose shape says how many. The digest of every
/// other launch's outputs, or of the last one's on the same buffers in a round, is compared with theirs. A candidate in
/// a process of its own is timed by PluginHost::time(), and its process is stopped while anything else happens. If it
/// runs on a GPU, its process reports the burst times, and passes timed by this process's clock bound them.
BenchResult bench_candidates(Device& device, const std::vector<const Candidate*>& candidates, const Case& c,
                             BenchData& data, const BenchPlan& plan);

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
