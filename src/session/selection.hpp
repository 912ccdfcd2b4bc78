// SPDX-License-Identifier: Apache-2.0
// Turns options into the checks to make: cases, candidates and devices.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "contract/contract.hpp"
#include "session/run_options.hpp"
#include "worker/worker.hpp"

namespace checkop {

/// A candidate for one operator and pass, and the device that it will run on.
struct ChosenCandidate {
  std::string name, plugin_path, plugin_digest;
  std::string device;                     ///< "cpu" or "cuda:N"
  bool has_kernel = false;                ///< false: no chosen candidate has one, and the user named the operator
  std::string no_kernel = {};             ///< if has_kernel is false, a sentence that says so
  std::vector<std::string> recipes = {};  ///< that the kernel declares
};

struct Check {
  Case c;
  ChosenCandidate candidate;
  size_t case_number = 0;  ///< index in the list of cases; the same for all candidates of a case
  bool here = true;        ///< false: another run shard makes the check
};

struct Selection {
  std::vector<Check> checks;  ///< of the whole run; grouped by candidate, so that each needs one worker
  /// Workers of the commands of --exec, by candidate; started to ask for their candidates, and kept for the checks.
  std::map<std::string, std::shared_ptr<Worker>> external;
  std::string why_empty;  ///< a sentence for the user where flags left no check; "" otherwise

  /// Plugins used by the checks of the same candidate on the same device.
  std::vector<std::string> plugins_of(const ChosenCandidate& candidate) const;
  /// The device with the buffers of a check: for a candidate process the host, wherever it computes.
  std::string device_of(const Check& check) const;
  std::vector<const Check*> checks_here() const;
  size_t candidate_count() const;  ///< of checks_here()
};

/// The contract of --contract, or of `path`, evaluated for today. Also throws InputError for an unknown --arch-key.
Contract load_contract(const RunOptions& options);
Contract load_contract(const RunOptions& options, const std::string& path);

/// The cases described by flags or files, before --filter. Throws InputError for unknown names and sizes.
std::vector<Case> select_cases(const RunOptions& options);

/// Throws InputError for unknown names, sizes and candidates, EnvironmentError for a missing device.
Selection select_checks(const RunOptions& options);

/// --arch-key without a device to ask: "" for auto and none.
std::string chosen_arch(const CandidateChoice& options);

/// The architecture whose overlays apply on a device; "" for none. Throws InputError where that of --arch-key is
/// another.
std::string resolve_arch_key(const CandidateChoice& options, const DeviceInfo& device);

/// How long ranks wait for each other. A quarter of the worker's time limit, because they wait twice in a row.
std::chrono::milliseconds rank_limit(const RunOptions& options);

/// Number of threads for the gold and the generator.
unsigned thread_count(const RunOptions& options);

/// "logp/forward/native/logp-fp32-2x16x257", as matched by --filter and printed by --list.
std::string check_name(const Check& check);

/// The candidates of the shipped plugins for `ops` (all if empty) and of `plugins`; loads the plugins in a child
/// process.
WorkerInfo probe_candidates(const std::vector<std::string>& ops, const std::vector<std::string>& plugins,
                            bool count_cuda_devices = false);

}  // namespace checkop
