// SPDX-License-Identifier: Apache-2.0
// The order of work of a run: which process works on which check, and what this process does meanwhile.
#pragma once

#include <array>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "session/attempt.hpp"
#include "session/judge_thread.hpp"
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
  /// Gets every check once it has run, in order, on a thread of its own.
  std::function<void(Attempt&)> judge;
  /// Gets the first worker's device before anything runs on it.
  std::function<void(const DeviceInfo&)> on_first_device = {};
  /// Whether the check, which is the next one to begin, shall run; false leaves it out.
  std::function<bool(const Check&)> begins = {};
};

/// Runs the checks of a selection in order. The candidate runs in a worker process, and once more in a second process
/// whose bits must be the same: both are a lane. On the CPU a candidate with many checks has two lanes, and small check
/// i+1 begins in one before check i has finished in the other; otherwise the next check only gets its inputs meanwhile.
/// A thread judges what has run, in order, and some small checks may wait for it:
///
///     lane of i       | begin i ............. finish i | begin i+2
///     other lane      |   begin i+1 ............................... finish i+1
///     judging thread  |       judge i-2, i-1           | judge i
///
/// Checks too large for two of them to fit into memory (see fits_side_by_side()) do not overlap: the second process
/// begins when the worker has finished, and all checks before are judged before such a one begins.
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

  /// Processes that work on one check at a time.
  struct Lane {
    std::shared_ptr<Worker> worker;  ///< shared: a command of --exec is started once for the whole run
    std::optional<SecondProcess> second;
  };
  /// A check from its begin to its end.
  struct Running {
    Lane* lane = nullptr;
    Attempt attempt = {};
    Clock::time_point start = {};
    Clock::time_point until = {};  ///< when the launches in the lane's first process must have ended
    bool is_refused = false;
    RunChecks checks = {};  ///< of the launches in the lane
    const Proofs::Entry* proof = nullptr;
    bool has_proof_case = false;      ///< the launches for row axes are on another case
    SecondProcess* second = nullptr;  ///< the lane's, if it runs the check again
    bool is_side_by_side = false;     ///< the second process has begun, too
  };

  void run_checks();
  /// Begins the next check that is to run; nullptr if there is none. `beside`: nullptr, or the check that runs now,
  /// beside which only some may begin.
  std::unique_ptr<Running> begin_next(const Running* beside = nullptr);
  /// Whether the check may begin beside `now`.
  bool may_begin_beside(const Check& check, const Running& now) const;
  /// Starts the second lane if it does not run; false where it can't start. Then there is only the first.
  bool open_second_lane();
  /// Makes the lanes those of the candidate and device of `check`.
  void open_processes(const Check& check);
  void start(Lane& lane) const;
  /// Whether two lanes save time for the candidate of `check`, the first of its checks: on the CPU, if there are many.
  bool deserves_two_lanes(const Check& check) const;
  /// Whether a candidate of a GPU runs in the worker's process: a candidate that is shipped with this program, which
  /// has no reason to cheat, or one with ranks, which communicate through NCCL there.
  bool runs_in_worker(const ChosenCandidate& candidate, const std::vector<std::string>& plugins) const;
  /// Throws EnvironmentError if flags ask for more ranks than the device can hold. Cases of files and suites go on.
  void require_devices(const std::string& candidate, const DeviceInfo& device) const;

  /// Begins a check in a lane that is idle.
  std::unique_ptr<Running> begin(const Check& check, Lane& lane);
  /// The check's results; not judged.
  Attempt finish(Running& running);
  /// Says in the record why the check can't run: no kernel, no memory, no process for the candidate, a rank that is
  /// gone. False when it can.
  bool is_refused(const Check& check, CaseRecord& record);
  void provide_inputs(Attempt& attempt);
  /// Begins the launches on the inputs of the attempt.
  void begin_on_data(Running& running);
  void finish_on_data(Running& running);
  /// Runs the check once more with finite numbers in what the operator leaves out, where NaN there may be why it fails.
  void run_with_finite(Running& running);
  /// Runs the launches for row axes on the case of `proof` in place of the check's own case.
  void run_proof_case(Running& running);

  /// What this process does while the lane works: begins the next check in the other lane, or makes its inputs.
  void work_meanwhile(const Running& running);
  /// Waits for the lane at most for the time that a check may take. Lets second processes go on meanwhile.
  void wait_for(const Running& running);
  /// Makes the inputs of the next check, unless they are large or can't be made.
  PreparedInputs prepare() const;

  SchedulerInputs run_;
  SchedulerCalls calls_;

  WorkerConfig config_;  ///< of the processes of the lanes, but for an external command
  std::array<Lane, 2> lanes_;
  bool has_two_lanes_ = false;  ///< a second one may begin
  double slowest_ms_ = 0;       ///< that a check took in the lanes; 0 before the first has ended
  std::string running_;         ///< candidate and device of the lanes
  std::string arch_key_;        ///< whose overlays apply on the device of the lanes

  size_t next_index_ = 0;            ///< of the first check that has not had its turn
  std::unique_ptr<Running> next_;    ///< the check after the present one, if it has begun
  std::exception_ptr next_error_;    ///< why it could not begin
  Clock::time_point last_end_ = {};  ///< of the check before the present one
  PreparedInputs prepared_;
  JudgeThread judge_;
  std::string broken_;  ///< why the lanes' candidate has no process; "" while it has
  std::string gone_;    ///< why a rank will not come to any further check; "" while all do
};

}  // namespace checkop
