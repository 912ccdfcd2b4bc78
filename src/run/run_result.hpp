// SPDX-License-Identifier: Apache-2.0
// What a run of one candidate on one case is asked to look at, and what it found.
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

/// `no_memory`: the candidate used up what it may have. `skipped`: it was not asked, for want of memory; no worker says
/// that of itself.
enum class RunStatus : uint8_t { ok, unsupported, failed, crashed, timeout, no_device, no_memory, skipped };
std::string_view to_string(RunStatus status);

struct RunChecks {
  bool determinism = true, invariance = true, memory = true;
  AxisPlan plan = {};  ///< of its axes, those that determinism and invariance ask for are looked at
  std::chrono::milliseconds rank_limit{60'000};  ///< how long tensor-parallel ranks wait for one of them
  bool outputs = true;                           ///< what the first launch wrote is brought back
};

/// A context as it was launched.
struct ContextRun {
  Axis axis = Axis::repetition;
  std::string what;
  bool supported = true;
  std::string message;  ///< why not; otherwise the candidate's own words, which may name the variant that ran
  int64_t rows = 0;     ///< of the launch
};

/// One output in one context against the full batch or the context's twin; places are those of the full batch.
struct ContextBits {
  BitDifference bits;              ///< compared is 0 where nothing could be; row 0 of axes of rows is not in it
  int64_t row_zero_different = 0;  ///< elements of row 0, which is the first in most decompositions: told, not counted
};

struct OutputRun {
  int64_t unwritten = 0, first_unwritten = -1;  ///< elements that still held the poison of a run that was to write them
  BitDifference repeat;                         ///< first run against second
  std::vector<ContextBits> contexts;            ///< one per RunResult::contexts
  /// Where a row's bits depend on the number of rows: the smallest number, found by bisection, at which they are not
  /// those of the row alone; 0 where none was found.
  int64_t smallest_rows = 0;
};

/// One rank of a case that several share.
struct RankRun {
  int32_t rank = 0;
  std::string device;  ///< "cuda:1 NVIDIA H200"
  std::string host;
  int64_t process = 0;  ///< its number there
  double ms = 0;        ///< of the launch; 0 where it did not end
  std::string message;  ///< the candidate's own words, or why it failed
};

struct RunResult {
  RunStatus status = RunStatus::failed;
  std::string message;                        ///< the candidate's own words, the device's error or the signal
  std::vector<OutputRun> outputs;             ///< in the order of the pass; empty unless ok
  std::vector<ContextRun> contexts;           ///< in the order of contexts_of(); empty unless ok
  std::optional<Case> rows_case;              ///< whose rows contexts of axes of rows have, where not the case's own
  std::vector<std::string> guard_violations;  ///< "output 'dlogits': 3 elements changed behind its end, first at +0"
  std::vector<std::string> modified_inputs;   ///< "logits: 2 elements changed, first at index 12"
  std::vector<std::string>
      rank_differences;        ///< "logp: rank 2 is the first that does not have the bits of rank 0: ..."
  std::vector<RankRun> ranks;  ///< of the first launch, or the one that failed; empty unless several share the case
  std::string rank_gone;       ///< why a rank's process will not come to any further case; "" while all do
  bool device_lost = false;    ///< the process can't use its device any more
  double transfer_ms = 0, run_ms = 0;
  bool repeat_elsewhere = false;  ///< OutputRun::repeat is against a run in a second process
};

}  // namespace checkop
