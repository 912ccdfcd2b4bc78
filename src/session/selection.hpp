// SPDX-License-Identifier: Apache-2.0
// Options -> the checks to make: which cases, by which candidates, on which device.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "contract/contract.hpp"
#include "session/run_options.hpp"
#include "worker/isolate.hpp"

namespace checkop {

/// A candidate for one operator and pass, on the device it will run on.
struct ChosenCandidate {
  std::string name, plugin_path, plugin_digest;
  std::string device;          ///< "cpu" or "cuda:N"
  bool has_kernel = false;     ///< false: nor has any other that was chosen, and the operator was named
  std::string no_kernel = {};  ///< then a sentence that says so
};

struct Check {
  Case c;
  ChosenCandidate candidate;
  size_t case_number = 0;  ///< in the list of cases: candidates of one case have the same
  bool here = true;        ///< false: another shard of the run makes it
};

struct Selection {
  std::vector<Check> checks;  ///< of the whole run; candidate by candidate, so that each needs one worker
  /// Of the commands of --exec, by candidate: started to ask what they can do, and kept for the checks.
  std::map<std::string, std::shared_ptr<Worker>> external;

  /// Plugins that hold any check of the same candidate on the same device.
  std::vector<std::string> plugins_of(const ChosenCandidate& candidate) const;
  /// Where the buffers of a check are: those of a process's candidate are the host's, wherever it computes.
  std::string device_of(const Check& check) const;
  std::vector<const Check*> checks_here() const;
  size_t candidate_count() const;  ///< of the checks here
};

/// The contract of --contract, or that of `path`, as it stands today. Throws InputError for an unknown --arch-key too.
Contract load_contract(const RunOptions& options);
Contract load_contract(const RunOptions& options, const std::string& path);

/// The cases that flags or files make, without --filter. Throws InputError for unknown names and sizes.
std::vector<Case> select_cases(const RunOptions& options);

/// Throws InputError for unknown names, sizes and candidates, EnvironmentError for a device that is not there.
Selection select_checks(const RunOptions& options);

/// --arch-key where no device is looked at: "" for auto and none.
std::string chosen_arch(const RunOptions& options);

/// How long ranks wait for one of them. They give up on it earlier than a worker's parent on all: twice in a row they
/// wait.
std::chrono::milliseconds rank_limit(const RunOptions& options);

/// Threads of the gold and the generator.
unsigned thread_count(const RunOptions& options);

/// "logp/forward/native/logp-fp32-2x16x257": what --filter matches and --list prints.
std::string check_name(const Check& check);

/// The candidates of the shipped plugins for `ops` (all when empty) and of `plugins`, found out in a child process.
WorkerInfo probe_candidates(const std::vector<std::string>& ops, const std::vector<std::string>& plugins,
                            bool count_cuda_devices = false);

}  // namespace checkop
