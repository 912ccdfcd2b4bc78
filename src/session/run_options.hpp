// SPDX-License-Identifier: Apache-2.0
// What a run is asked, in four parts; cli/options.cpp parses the command line into them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "report/forms.hpp"

namespace checkop {

/// What chooses cases: sizes and data, files of cases, or tensors out of files.
struct CaseChoice {
  std::vector<std::string> ops{"logp"}, dtypes{"fp32"}, passes{"forward"};
  std::map<std::string, std::string, std::less<>> dims;  ///< dimension -> "7", "1,7,64", "1:4096:x2"
  std::map<std::string, double, std::less<>> attrs;
  std::vector<int64_t> shard_bounds;  ///< bounds of tensor-parallel parts; empty: as even as possible
  std::vector<std::string> presets;   ///< models; sizes and attributes of flags take precedence
  std::vector<std::string> with{"none"};

  std::vector<std::string> cases;  ///< files or folders; empty: the flags make the cases
  std::string suite;               ///< of the shipped case files, or of --cases

  std::string input_mode = "random", grad_mode = "random";
  double constant_value = 0.25;
  int64_t token_value = 0, ignored_every = 8, ignored_run = 1;
  uint64_t seed = 123, grad_seed = 123;
  bool secret_seed = false;             ///< both are drawn; they count as given
  std::optional<int64_t> random_cases;  ///< random cases per operator; unset: sweep the given sizes
  bool model_sizes = false;             ///< random cases have sizes of models

  std::vector<std::string> inputs;     ///< NAME=FILE:TENSOR in place of generated inputs
  std::string inputs_file, gold_file;  ///< a case out of files: its inputs, and a gold of its outputs
  std::string numerics;                ///< error class of the outputs that gold_file judges
  int64_t terms = 1;                   ///< longest sum behind one element of these outputs

  std::set<std::string> given;                ///< every flag that was given, "--vocab"
  std::vector<std::string> given_case_flags;  ///< given flags that make cases: sizes, attributes, data, --with

  bool has(const std::string& flag) const { return given.contains(flag); }
};

/// What chooses candidates, and where they run.
struct CandidateChoice {
  std::vector<std::string> candidates{"all"};
  std::string device = "auto", arch_key = "auto";
  bool force_arch_key = false;
  std::vector<std::string> plugins;
  std::vector<std::string> external;                                        ///< commands of --exec
  std::optional<int> external_descriptor;                                   ///< of --exec-fd, a socket
  std::vector<std::string> python_modules, torch_operators, torch_imports;  ///< become commands, too
  std::vector<std::string>
      external_flags;  ///< what to call these commands where the user gave another flag; "": --exec
  std::vector<std::string> external_names;  ///< of these candidates: first the commands, then the socket
};

/// Where reports go.
struct ReportDestinations {
  bool json_to_stdout = false;
  std::string json_file;
  ReportFiles forms;           ///< other forms of the same report
  std::optional<bool> github;  ///< annotations and the step's summary; unset: as GITHUB_ACTIONS says
  std::string color = "auto";  ///< of the text: auto, always or never
};

/// Flags of `check_operator [run]`, as the user gave them. Functions take the part that they need; subcommands share
/// the parts that apply to them.
struct RunOptions : CaseChoice, CandidateChoice, ReportDestinations {
  std::string contract;                 ///< empty: the shipped contracts/default.json
  std::vector<std::string> recipes;     ///< granted beside those of the contract
  std::vector<std::string> checks;      ///< empty: everything that the contract asks
  std::string gold_rows;                ///< "all" or a number; empty: as the contract says
  std::vector<std::string> sanitizers;  ///< tools of compute-sanitizer

  bool list = false;
  std::string filter;
  std::optional<int64_t> shard_index, total_shards;  ///< which run shard this is; unset: the whole run
  std::optional<uint64_t> shuffle;                   ///< seed of the order of checks; unset: as listed
  std::optional<int64_t> for_s;                      ///< seconds after which no further check begins
  std::optional<int64_t> max_skip;                   ///< number of checks that may be skipped; unset: any

  int64_t timeout_s = 300;
  bool no_isolate = false;    ///< candidates run in this process
  uint64_t memory_limit = 0;  ///< bytes of host memory that a check may use; 0: the free memory
  unsigned threads = 0;       ///< 0: one per core

  std::string save_folder, save_which = "incorrect";
  std::string replay;

  std::vector<std::string> check_flags;  ///< flags that say which checks to make and how, one an argument: "--op=logp"
  std::vector<std::string> shard_flags;  ///< the check_flags that all shards of a run have in common

  /// Whether --check asks for `check`: accuracy, invariance, determinism or memory.
  bool wants(std::string_view check) const {
    return checks.empty() || std::find(checks.begin(), checks.end(), check) != checks.end();
  }
};

}  // namespace checkop
