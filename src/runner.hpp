// SPDX-License-Identifier: Apache-2.0
// Runs one candidate on one case: own copies, poisoned outputs, guard bands, two runs, row subsets.
#pragma once

#include <string>
#include <vector>

#include "bits.hpp"
#include "case.hpp"
#include "device.hpp"
#include "plugin.hpp"

namespace checkop {

enum class RunStatus : uint8_t { ok, unsupported, failed, crashed, timeout, no_device };
std::string_view to_string(RunStatus status);

struct RunChecks {
  bool determinism = true, invariance = true, memory = true;
};

/// Rows [begin, end) computed alone against the same rows of the full batch.
struct SubsetResult {
  int64_t begin = 0, end = 0;
  BitDifference bits;  ///< compared is 0 when the candidate does not support this number of rows
};

struct OutputRun {
  int64_t unwritten = 0, first_unwritten = -1;  ///< elements that still held the poison of a run that was to write them
  BitDifference repeat;                         ///< first run against second
  std::vector<SubsetResult> subsets;            ///< per-row outputs only
};

struct RunResult {
  RunStatus status = RunStatus::failed;
  std::string message;                        ///< the candidate's own words, the device's error or the signal
  std::vector<OutputRun> outputs;             ///< in the order of the pass; empty unless ok
  std::vector<std::string> guard_violations;  ///< "output 'dlogits': 3 elements changed behind its end, first at +0"
  std::vector<std::string> modified_inputs;   ///< "logits: 2 elements changed, first at index 12"
  bool device_lost = false;                   ///< the process can't use its device any more
  double transfer_ms = 0, run_ms = 0;
};

/// Elements of poison on both sides of every buffer.
inline constexpr int64_t kGuardElements = 4096;

/// Why `kernel` can't run on `device`; empty when it can.
std::string why_unsupported(const checkop_kernel& kernel, const DeviceInfo& device);

/// Room for the outputs of `c`, in the order of the pass; an absent optional output is a Tensor with an empty name.
std::vector<Tensor> make_outputs(const Case& c);

/// Runs `candidate` on copies of `inputs` and stores what it wrote first into `outputs`, made by make_outputs().
/// Never throws for what the candidate does: that is in the result.
RunResult run_candidate(Device& device, const Candidate& candidate, const Case& c, const std::vector<Tensor>& inputs,
                        std::vector<Tensor>& outputs, const RunChecks& checks);

/// Row ranges [begin, end) to recompute alone: the first row, the last, some inner ones, half the batch. Empty for a
/// single row.
std::vector<std::pair<int64_t, int64_t>> subset_ranges(int64_t rows);

}  // namespace checkop
