// SPDX-License-Identifier: Apache-2.0
// The result of timing one candidate on one case with one kind of timing, and its writers.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "judge/gold.hpp"
#include "run/bench.hpp"

namespace checkop {

struct BenchRecord {
  Case c;
  bool is_step = false;   ///< a forward and a backward pass, as a training step needs them; `c` is that of the forward
  std::string candidate;  ///< several names, joined by commas, if none of them could be timed
  bool is_peer = false;   ///< timed by a process of its own, in its own way; nobody judged what it computed
  RunStatus status = RunStatus::failed;
  std::string message;  ///< why the status is not ok
  // The members down to `ranks` are set only if the status is ok.
  std::string timing;  ///< "burst" or "sustained"
  Summary ms{};
  size_t repeats = 0;
  int64_t overruled = 0;  ///< repeats whose time the judge's clock replaced; see BenchRun::overruled
  Cost cost;
  double peak_bytes = 0;                ///< memory of inputs, outputs and workspace; of a peer: what it says, or 0
  double copy_gbps = 0;                 ///< measured in the same process
  std::optional<double> cublas_tflops;  ///< matmul's candidate cublas, in the same process with the same kind of timing
  std::string baseline;                 ///< empty if there is none, or if the candidate is the baseline itself
  double ratio = 0;                     ///< the baseline's time over the candidate's, from paired measurements
  bool distinct = false;                ///< the medians differ by more than the spreads
  struct Rank {
    std::string device;
    double ms_median, workspace_bytes;
  };
  std::vector<Rank> ranks;  ///< empty unless several ranks share the case
  // Always set.
  std::string run;  ///< the same for all records that were measured in turns
  std::string device, kernels_digest, date;

  std::string_view pass() const { return is_step ? "forward+backward" : c.pass->name; }
  double gbps() const { return cost.bytes / ms.median / 1e6; }
  double tflops() const { return cost.flops / ms.median / 1e9; }
};

/// For every candidate that was timed forward and backward on the same sizes, the sum of both: a training step needs
/// the results of the forward pass before it knows the gradients that go into the backward pass. The times of the
/// passes are added, and the ratio to the baseline is that of the sums.
std::vector<BenchRecord> training_steps(const std::vector<BenchRecord>& records);

/// The record as one line of JSON, without a line break. docs/bench.md explains the figures.
std::string to_json_line(const BenchRecord& record);

/// Prints the records of one interleaved run as a table, and says which candidates can't be told apart.
void print_bench(std::FILE* out, const std::vector<BenchRecord>& records);

/// Prints how the records of many cases are distributed, for each operator, pass, candidate and kind of timing: the
/// geometric mean and the 5 % quantile of the baseline's time over the candidate's, or of the share of the copy rate
/// where there is no baseline, and the ten worst cases.
void print_distribution(std::FILE* out, const std::vector<BenchRecord>& records);

}  // namespace checkop
