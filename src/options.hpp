// SPDX-License-Identifier: Apache-2.0
// argv -> Options. What can be wrong with a flag by itself is found here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rank_hello.hpp"
#include "report_forms.hpp"

namespace checkop {

/// Flags of `check_operator [run]`, as the user gave them; bench has those that choose cases and candidates.
struct RunOptions {
  std::vector<std::string> ops{"logp"}, candidates{"all"}, dtypes{"fp32"}, passes{"forward"};
  std::string device = "auto", arch_key = "auto";
  bool force_arch_key = false;
  std::map<std::string, std::string, std::less<>> dims;  ///< dimension -> "7", "1,7,64", "1:4096:x2"
  std::map<std::string, double, std::less<>> attrs;
  std::vector<int64_t> shard_bounds;  ///< of ranks' parts; empty: as even as can be
  int64_t rank = 0;                   ///< of this process, where several share cases; see rank_place()
  std::string master;                 ///< HOST:PORT where they meet
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

  bool has(const std::string& flag) const { return given.contains(flag); }
};

/// Flags of `check_operator bench` on top of those that choose cases and candidates.
struct BenchOptions {
  std::vector<std::string> timings{"burst", "sustained"};
  int64_t repeats = 20;
  std::string baseline;  ///< candidate that the others are compared with; empty: none

  bool wants(const std::string& timing) const {
    return std::find(timings.begin(), timings.end(), timing) != timings.end();
  }
};

/// Flags of `check_operator mutate` on top of those that choose cases.
struct MutateOptions {
  int64_t seeds = 1;    ///< every case is tried with so many
  double min_kill = 1;  ///< share of the faults that the contract must reject
};

/// Of `check_operator report`.
struct ReportOptions {
  std::string file;                 ///< a JSON report
  ReportForms forms;                ///< made of it
  std::vector<std::string> shards;  ///< of `report merge`, which writes what RunOptions says
  bool partial = false;             ///< some may be missing
  std::string before, after;        ///< of `report diff`
  double factor = 1.5;              ///< a headroom that shrank by more is lost
  bool allow_gone = false;
  std::string diff_markdown;
};

/// Of `check_operator certify` and `verify`.
struct CertificateOptions {
  std::string out;                 ///< of certify
  std::vector<std::string> files;  ///< of verify: one, to be seen again, or two
};

/// Of `check_operator init`.
struct InitOptions {
  std::string name, folder, op = "rms_norm";
  std::string device;  ///< "cpu" or "cuda"; empty: as the program was built
};

/// Of `check_operator compare`, on top of those of a run that apply.
struct CompareOptions {
  std::string got, gold;  ///< files
};

enum class Command : uint8_t {
  run,
  compare,
  bench,
  mutate,
  init,
  doctor,
  list,
  show,
  explain,
  lint,
  diff,
  calibrate,
  report,
  report_diff,
  report_merge,
  certify,
  verify,
  completion
};

struct Options {
  Command command = Command::run;
  RunOptions run;  ///< of bench and the subcommands of contract too, where they apply
  BenchOptions bench;
  MutateOptions mutate;
  ReportOptions report;
  CertificateOptions certificate;
  InitOptions init;
  CompareOptions compare;
  std::string completion;              ///< a script for a shell
  bool diff_mutants = false;           ///< of contract diff
  std::vector<std::string> contracts;  ///< of lint any number, of diff two
  std::string show_op;
  std::string command_line;  ///< quoted for a shell
  /// The flags of a run that say which checks to make and how, one an argument: "--op=logp".
  std::vector<std::string> check_flags;
  /// Those that all shards of a run have in common.
  std::vector<std::string> shard_flags;
};

/// Returns the options, or nothing when help or the version was asked for and printed.
/// Throws InputError naming the flag for anything else that does not parse.
std::optional<Options> parse_options(int argc, const char* const* argv);

/// What --class takes: the names of Numerics.
const std::vector<std::string>& class_names();

/// Suites that the shipped case files know, for hints.
const std::vector<std::string>& shipped_suites();

/// Which of several processes this one is, if they share cases: as --rank and --world-size say, or else the variables
/// of torchrun, mpirun or srun. Throws InputError for what makes no sense.
std::optional<RankPlace> rank_place(const RunOptions& run);

/// Joins arguments so that a shell reads them back as they are.
std::string quote_command(const std::vector<std::string>& arguments);

}  // namespace checkop
