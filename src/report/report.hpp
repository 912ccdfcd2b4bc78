// SPDX-License-Identifier: Apache-2.0
// What a run found, and its writers: text for people, JSON for machines.
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
  DeviceInfo device;  ///< that the candidate ran on
  Judgment judgment;
  bool judged_by_run = false;  ///< what other checks of the run told changed the judgment, after it was printed
  RunResult run;
  std::vector<Comparison> comparisons;   ///< in the order of the pass; empty when accuracy was not asked for
  std::vector<Demands> demands;          ///< likewise
  std::vector<Sensitivity> sensitivity;  ///< likewise; empty when invariance was not asked for by name
  RunChecks checks;
  std::string data_hash;
  std::map<std::string, std::string> given_inputs;  ///< those that were not generated, and where from: FILE:TENSOR
  std::string gold_file;                            ///< "": the operator's own gold
  std::vector<DType> gold_dtypes;                   ///< of gold_file, in the order of the pass
  std::string repeat;                               ///< the command that repeats this case alone
  Timings times;
  int64_t whole_index = -1;  ///< of a shard's check: its place in the run that is not divided
};

/// Which part of a run this is, and what tells that other parts are of the same run.
struct RunShard {
  struct Plugin {
    std::string path, digest;
    bool operator==(const Plugin&) const = default;
  };
  int64_t index = 0, total = 1;
  int64_t checks = 0;                  ///< of the whole run
  std::string digest;                  ///< of the list of these
  std::vector<std::string> devices;    ///< whose buffers they use, "cpu", "cuda:0", in their order
  std::vector<Plugin> plugins;         ///< likewise
  std::vector<std::string> arguments;  ///< flags that all parts have in common
  std::string command;                 ///< that makes the whole run, of these

  std::string name() const;  ///< "shard 0 of 3"
};

/// A candidate that must be caught, run beside the others.
struct Control {
  std::string device;
  bool caught = false;
  std::string reason;  ///< how, or why not
};

/// All checks under one tool of compute-sanitizer.
struct SanitizerRun {
  std::string tool, summary;       ///< "memcheck", "ERROR SUMMARY: 0 errors"; empty where it left none
  int64_t errors = 0, checks = 0;  ///< checks that ran to their end under it
};

struct Report {
  std::string suite_name, command;
  std::string contract_path, contract_hash;
  std::vector<std::string> warnings = {};  ///< what has expired in the contract, what was left over of files
  std::vector<SanitizerRun> sanitizers = {};
  std::vector<CaseRecord> records;
  std::vector<Control> controls;         ///< of the check of invariance, one a device; empty where it was not relied on
  int64_t planned = 0;                   ///< checks that the run is to make
  std::optional<int64_t> max_skip = {};  ///< so many may be skipped; nothing: any number
  std::optional<RunShard> shard = {};    ///< nothing: the whole run
  bool complete = false;                 ///< false in the report of a run that is not, or never came, to its end
  std::string stopped = {};              ///< the signal that ended it early
  std::string started, host;
  double wall_ms = 0;
};

std::vector<Verdict> verdicts_of(const Report& report);

/// Of a run, or of one that did not come to its end: then at least 4.
int exit_code_of(const std::vector<Verdict>& verdicts, const std::optional<int64_t>& max_skip, bool complete);

/// The same of a report. A shard is not held to what only the whole run tells: where it has no checks, or all of them
/// were skipped, others may have some that pass.
int exit_code_of(const Report& report);

/// Passes become vacuous where the whole run tells nothing of an output of that candidate, pass and dtype: its gold is
/// zero throughout in every case, or all of its rows have the same bits in every case that has several.
void mark_vacuous(Report& report);

/// Passes become vacuous where invariance was asked for by name and no case of the run would have shown a violation in
/// an output of that candidate, pass and dtype: see Sensitivity::proves().
void mark_insensitive(Report& report);

/// The report as JSON (contracts/report.schema.json), keys sorted; what differs from run to run is under
/// "volatile".
std::string to_json(const Report& report);

/// Terminal text, one part at a time: a header, a line or block per case, a summary. With `color` the verdicts are
/// coloured.
void print_header(std::FILE* out, const Report& report, const DeviceInfo& device, size_t n_cases, size_t n_candidates);
void print_record(std::FILE* out, const CaseRecord& record, bool color = false);
void print_summary(std::FILE* out, const Report& report, bool color = false);

}  // namespace checkop
