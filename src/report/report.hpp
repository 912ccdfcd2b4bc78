// SPDX-License-Identifier: Apache-2.0
// The report of a run and its writers: text for people, JSON for machines.
#pragma once

#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "device/device.hpp"
#include "judge/compare.hpp"
#include "judge/sensitivity.hpp"
#include "judge/verdict.hpp"
#include "run/run_result.hpp"

namespace checkop {

struct Timings {
  double generate_ms = 0, gold_ms = 0, compare_ms = 0, run_ms = 0, transfer_ms = 0, total_ms = 0;
};

/// One candidate on one case.
struct CaseRecord {
  Case c;
  std::string candidate, plugin_path, plugin_digest;
  std::vector<std::string> declared_recipes = {};  ///< by the kernel
  DeviceInfo device;                               ///< on which the candidate ran
  Judgment judgment;
  bool judged_by_run = false;  ///< other checks of the run changed the judgment after it was printed
  RunResult run;
  std::vector<Comparison> comparisons;   ///< in the order of the pass; empty if accuracy was not checked
  std::vector<Demands> demands;          ///< in the order of the pass
  std::vector<Sensitivity> sensitivity;  ///< in the order of the pass; empty unless invariance was requested by name
  RunChecks checks;
  std::string data_hash;
  LeftOut left_out = LeftOut::nonfinite;            ///< what the data hold where the operator leaves elements out
  std::map<std::string, std::string> given_inputs;  ///< input -> FILE:TENSOR, for inputs that were not generated
  std::string gold_file;                            ///< "": the operator's gold of reference/
  std::vector<DType> gold_dtypes;                   ///< of gold_file's tensors, in the order of the pass
  std::string repeat;                               ///< the command that repeats this case alone
  Timings times;
  int64_t whole_index = -1;  ///< in a run shard: the index of the check in the whole run
};

/// A run shard: its part of the run, and the data that shows whether other shards belong to the same run.
struct RunShard {
  struct Plugin {
    std::string path, digest;
    bool operator==(const Plugin&) const = default;
  };
  int64_t index = 0, total = 1;
  int64_t checks = 0;                ///< number of checks of the whole run
  std::string digest;                ///< of the whole run's list of checks
  std::vector<std::string> devices;  ///< devices used by the whole run's checks, "cpu", "cuda:0", in order of first use
  std::vector<Plugin> plugins;       ///< plugins used by the whole run's checks, in order of first use
  std::vector<std::string> arguments;  ///< flags that all shards share
  std::string command;                 ///< the command of the whole run, from `arguments`

  std::string name() const;  ///< "shard 0 of 3"
};

/// The positive control: a candidate that must be caught, run beside the others.
struct Control {
  std::string device;
  bool caught = false;
  std::string reason;  ///< how it was caught, or why not
};

/// All checks under one tool of compute-sanitizer.
struct SanitizerRun {
  std::string tool, summary;       ///< "memcheck"; "ERROR SUMMARY: 0 errors", empty if the tool wrote none
  int64_t errors = 0, checks = 0;  ///< `checks`: checks that completed under the tool
};

struct Report {
  std::string suite_name, command;
  std::string contract_path, contract_hash;
  std::vector<std::string> warnings = {};  ///< expired entries of the contract, leftover files
  std::vector<SanitizerRun> sanitizers = {};
  std::vector<CaseRecord> records;
  std::vector<Control> controls;         ///< of the invariance check, one per device; empty if no check relied on it
  int64_t planned = 0;                   ///< checks that the run will make
  std::optional<int64_t> max_skip = {};  ///< allowed number of skipped checks; unset: any number
  std::optional<RunShard> shard = {};    ///< unset: the whole run
  bool complete = false;                 ///< whether the run came to its end
  std::string stopped = {};              ///< the signal that ended the run early
  std::string started, host;
  double wall_ms = 0;
};

std::vector<Verdict> verdicts_of(const Report& report);

/// The exit code of a run; at least 4 if it is not `complete`.
int exit_code_of(const std::vector<Verdict>& verdicts, const std::optional<int64_t>& max_skip, bool complete);

/// The exit code of a report. A run shard without checks, or with skipped checks only, is no error: other shards may
/// have checks that pass.
int exit_code_of(const Report& report);

/// Turns passes into vacuous where the whole run proves nothing about an output of that candidate, pass and dtype: its
/// gold is zero in every case, or all its rows are equal in every case that has several.
void mark_vacuous(Report& report);

/// Turns passes into vacuous if invariance was requested by name and no case of the run would have shown a violation in
/// an output of that candidate, pass and dtype; see Sensitivity::proves().
void mark_insensitive(Report& report);

/// The report as JSON (contracts/report.schema.json) with sorted keys. Values that differ between runs are under
/// "volatile".
std::string to_json(const Report& report);

/// Prints the report to a terminal in parts: a header, a line or block per case, a summary. `color` colours verdicts.
void print_header(std::FILE* out, const Report& report, const DeviceInfo& device, size_t n_cases, size_t n_candidates);
void print_record(std::FILE* out, const CaseRecord& record, bool color = false);
void print_summary(std::FILE* out, const Report& report, bool color = false);

}  // namespace checkop
