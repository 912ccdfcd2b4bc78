// SPDX-License-Identifier: Apache-2.0
// What a run of one candidate on one case checks, and its result.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "case/axes.hpp"
#include "case/case.hpp"
#include "tensor/bits.hpp"

namespace checkop {

/// `no_memory`: the candidate exceeded its memory. `skipped`: the candidate was not run, because memory is short; a
/// worker never returns it.
enum class RunStatus : uint8_t { ok, unsupported, failed, crashed, timeout, no_device, no_memory, skipped };
std::string_view to_string(RunStatus status);

struct RunChecks {
  bool determinism = true, invariance = true, memory = true;
  AxisPlan plan = {};                            ///< of its axes, only those of the enabled checks are used
  std::chrono::milliseconds rank_limit{60'000};  ///< how long tensor-parallel ranks wait for each other
  bool outputs = true;                           ///< download the outputs of the first launch
};

/// The launch of a context.
struct ContextRun {
  Axis axis = Axis::repetition;
  std::string what;
  bool supported = true;
  std::string message;  ///< why it is unsupported; otherwise the candidate's message, which may name its variant
  int64_t rows = 0;     ///< of the launch
};

/// Compares one output in one context with the full batch or the context's twin. Indices are those of the full batch.
struct ContextBits {
  BitDifference bits;              ///< compared is 0 if nothing was; on axes of rows, without row 0
  int64_t row_zero_different = 0;  ///< elements of row 0 on row axes; reported only, as it is first in most contexts
};

struct OutputRun {
  int64_t unwritten = 0, first_unwritten = -1;  ///< elements that still held the poison after the launch
  BitDifference repeat;                         ///< first launch against second
  std::vector<ContextBits> contexts;            ///< one per entry of RunResult::contexts
  /// If a row's bits depend on the number of rows: the smallest number of rows, found by bisection, whose result
  /// differs from the single-row result; 0 if none was found.
  int64_t smallest_rows = 0;
};

/// One rank of a case that several ranks share.
struct RankRun {
  int32_t rank = 0;
  std::string device;  ///< "cuda:1 NVIDIA H200"
  std::string host;
  int64_t process = 0;  ///< process id on `host`
  double ms = 0;        ///< of the launch; 0 if it did not finish
  std::string message;  ///< the candidate's message, or why it failed
};

struct RunResult {
  RunStatus status = RunStatus::failed;
  std::string message;                        ///< the candidate's message, the device's error or the signal
  std::vector<OutputRun> outputs;             ///< in the order of the pass; empty unless ok
  std::vector<ContextRun> contexts;           ///< in the order of contexts_of(); empty unless ok
  std::optional<Case> rows_case;              ///< case used for row-axis contexts, if different
  std::vector<std::string> guard_violations;  ///< "output 'dlogits': 3 elements changed behind its end, first at +0"
  std::vector<std::string> modified_inputs;   ///< "logits: 2 elements changed, first at index 12"
  /// Why not every write of a candidate in another process to its outputs could be observed: "y is returned"; "" if all
  /// were.
  std::string unobserved;
  std::vector<std::string> rank_differences;  ///< "logp: rank 2 is the first that differs from rank 0: ..."
  std::vector<RankRun> ranks;  ///< of the first launch, or the one that failed; empty unless ranks share the case
  std::string rank_gone;       ///< why a rank's process can't serve further cases; "" while all can
  bool device_lost = false;    ///< the process can't use its device any more
  double transfer_ms = 0, run_ms = 0;
  bool repeat_elsewhere = false;  ///< OutputRun::repeat compares with a launch in a second process
};

}  // namespace checkop
