// SPDX-License-Identifier: Apache-2.0
// What a run is asked; the command line is parsed in options.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "report/report_forms.hpp"

namespace checkop {

/// Flags of `check_operator [run]`, as the user gave them; bench has those that choose cases and candidates.
struct RunOptions {
  std::vector<std::string> ops{"logp"}, candidates{"all"}, dtypes{"fp32"}, passes{"forward"};
  std::string device = "auto", arch_key = "auto";
  bool force_arch_key = false;
  std::map<std::string, std::string, std::less<>> dims;  ///< dimension -> "7", "1,7,64", "1:4096:x2"
  std::map<std::string, double, std::less<>> attrs;
  std::vector<int64_t> shard_bounds;  ///< of ranks' parts; empty: as even as can be
  std::vector<std::string> presets;   ///< of models; sizes and attributes that are given win
  std::vector<std::string> with{"none"};
  std::vector<std::string> cases;                    ///< files or folders; empty: the flags make the cases
  std::string suite;                                 ///< of the shipped case files, or of --cases
  std::optional<int64_t> shard_index, total_shards;  ///< the part of the run that this one is; nothing: all of it
  std::string contract;                              ///< empty: the shipped contracts/default.json
  std::string input_mode = "random", grad_mode = "random";
  double constant_value = 0.25;
  int64_t token_value = 0, ignored_every = 8, ignored_run = 1;
  uint64_t seed = 123, grad_seed = 123;
  std::optional<int64_t> random_cases;  ///< of each operator so many with sizes that nobody gave; nothing: one sweep
  std::optional<int64_t> for_s;         ///< after so many seconds no further one of them is begun
  std::vector<std::string> checks;      ///< empty: all that the contract asks
  std::string gold_rows;                ///< "all" or a number; empty: as the contract says
  bool json_to_stdout = false;
  std::string json_file, jsonl_file;
  ReportForms forms;           ///< of the same report
  std::optional<bool> github;  ///< annotations and the step's summary; unless given, as GITHUB_ACTIONS says
  std::string color = "auto";  ///< of the text: auto, always or never
  bool list = false;
  std::string filter;
  std::vector<std::string> plugins;
  std::vector<std::string> external, external_names;  ///< commands of --exec, and what they are called
  std::vector<std::string> inputs;                    ///< NAME=FILE:TENSOR in place of generated ones
  std::string inputs_file, gold_file;                 ///< a case of files: its inputs, and a gold of its outputs
  std::string numerics;                               ///< the class of outputs whose gold a file gives
  int64_t terms = 1;                                  ///< the longest sum behind one of their elements
  std::string save_folder, save_which = "incorrect";
  std::string replay;
  int64_t timeout_s = 300;
  bool no_isolate = false;                    ///< candidates run in this process
  uint64_t memory_limit = 0;                  ///< bytes of the host's memory that a check may take; 0: what is free
  std::optional<int64_t> max_skip;            ///< so many checks may be skipped; nothing: any number
  std::optional<uint64_t> shuffle;            ///< seed of the order of checks; nothing: as they are listed
  std::vector<std::string> sanitizers;        ///< tools of compute-sanitizer
  unsigned threads = 0;                       ///< 0: one per core
  std::set<std::string> given;                ///< every flag that was given, "--vocab"
  std::vector<std::string> given_case_flags;  ///< those of them that make cases: sizes, attributes, data, --with

  /// Those that say which checks to make and how, one an argument: "--op=logp".
  std::vector<std::string> check_flags;
  /// Those that all shards of a run have in common.
  std::vector<std::string> shard_flags;

  bool has(const std::string& flag) const { return given.contains(flag); }
};

}  // namespace checkop
