// SPDX-License-Identifier: Apache-2.0
// The order of work of a run: which process works on which check, and what this process does meanwhile.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "session/attempt.hpp"
#include "session/own_data.hpp"
#include "session/proofs.hpp"
#include "session/run_options.hpp"
#include "session/second_process.hpp"
#include "session/selection.hpp"

namespace checkop {

/// What all checks of a run share. The owner must outlive the scheduler.
struct SchedulerInputs {
  const RunOptions& options;
  const Selection& selection;
  const OwnInputs& own_inputs;
  const Proofs& proofs;
  const AxisPlan& plan;
  std::optional<RankService> ranks;  ///< processes of the other ranks, if the run has any
  std::string gold_file;             ///< of --gold; "" for none
  unsigned threads = 1;
};

/// Called while the checks run; each may be empty but `judge`.
struct SchedulerCalls {
  std::function<void(Attempt&)> judge;  ///< gets every check once it has run, in order
  /// Gets the first worker's device before anything runs on it.
  std::function<void(const DeviceInfo&)> on_first_device = {};
  /// Whether the check, whose turn it is, shall run; false leaves it out.
  std::function<bool(const Check&)> begins = {};
};

/// Runs the checks of a selection in order. The candidate runs in a worker process, and once more in a second process
/// whose bits must be the same. While they work on check i, this process makes the inputs of check i+1 and judges
/// checks before i. It keeps the others busy first: once both have finished it begins check i+1, and leaves some small
/// checks to be judged later, while it would otherwise wait:
///
///     worker          | begin i ................. finish i | begin i+1
///     second process  |   begin i ............. finish i   |   begin i+1
///     this process    |     make inputs of i+1, judge i-2  |     make inputs of i+2, judge i-1, i
///
/// Checks too large for two of them to fit into memory (see fits_side_by_side()) do not overlap: the second process
/// begins when the worker has finished, and a check is judged before the next one begins.
class Scheduler {
 public:
  Scheduler(const SchedulerInputs& run, SchedulerCalls calls);

  /// Runs all checks. Throws InputError when --arch-key is not the device's, EnvironmentError when a device or a
  /// process is missing, and whatever `judge` throws.
  void run();

 private:
  /// Inputs that were made before the turn of their check.
  struct PreparedInputs {
    const Check* check = nullptr;
    std::vector<Tensor> inputs;
    double ms = 0;  ///< time it took to make them
  };

  void run_checks();
  /// Makes worker_ and second_ those of the candidate and device of `check`.
  void open_processes(const Check& check);
  /// Whether a candidate of a GPU runs in the worker's process: a candidate that is shipped with this program, which
  /// has no reason to cheat, or one with ranks, which communicate through NCCL there.
  bool runs_in_worker(const ChosenCandidate& candidate, const std::vector<std::string>& plugins) const;
  /// Throws EnvironmentError if flags ask for more ranks than the device can hold. Cases of files and suites go on.
  void require_devices(const std::string& candidate, const DeviceInfo& device) const;

  /// One check, from its record to its results; not judged.
  Attempt attempt(size_t index);
  /// Says in the record why the check can't run: no kernel, no memory, a rank that is gone. False when it can.
  bool is_refused(const Check& check, CaseRecord& record) const;
  void provide_inputs(Attempt& attempt);
  /// Runs the check on the inputs of `attempt`.
  void run_on_data(size_t index, Attempt& attempt);
  /// Runs the check once more with finite numbers in what the operator leaves out, where NaN there may be why it fails.
  void run_with_finite(size_t index, Attempt& attempt);
  /// Runs the case in both processes, and does the work for the neighbours of check `index` meanwhile.
  void run_in_processes(size_t index, const RunChecks& checks, Attempt& attempt);
  /// Runs the launches for row axes on the case of `proof` in place of the check's own case.
  void run_proof_case(const Proofs::Entry& proof, CaseRecord& record);

  /// What this process does until the processes have finished check `index`, or there is nothing left but to wait for
  /// them. `second` is nullptr where it does not run beside.
  void work_meanwhile(size_t index, SecondProcess* second);
  void judge_next();
  void judge_all();
  /// Whether more checks wait to be judged than may wait.
  bool has_backlog() const;
  /// Makes the inputs of the first check from `index` on, unless they are large or can't be made.
  PreparedInputs prepare(size_t index) const;

  SchedulerInputs run_;
  SchedulerCalls calls_;

  std::shared_ptr<Worker> worker_;  ///< shared: a command of --exec is started once for the whole run
  std::optional<SecondProcess> second_;
  std::string running_;   ///< candidate and device of worker_
  std::string arch_key_;  ///< whose overlays apply on the device of worker_

  std::deque<Attempt> ran_;  ///< and wait to be judged, in order
  PreparedInputs prepared_;
  std::string gone_;  ///< why a rank will not come to any further check; "" while all do
};

}  // namespace checkop
