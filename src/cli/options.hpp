// SPDX-License-Identifier: Apache-2.0
// argv -> Options. Refuses flags whose values or combinations are wrong whatever the operator, case or device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/forms.hpp"
#include "session/run_options.hpp"

namespace checkop {

/// Flags of `check_operator bench` on top of those that choose cases and candidates.
struct BenchOptions {
  std::vector<std::string> timings{"burst", "sustained"};
  int64_t repeats = 20;
  std::string baseline;            ///< candidate, or name of a peer, that the others are compared with; empty: none
  std::vector<std::string> peers;  ///< commands that time implementations of their own

  bool wants(const std::string& timing) const {
    return std::find(timings.begin(), timings.end(), timing) != timings.end();
  }
};

/// Flags of `check_operator mutate` on top of those that choose cases.
struct MutateOptions {
  int64_t seeds = 1;    ///< number of seeds that each case is tried with
  double min_kill = 1;  ///< share of the faults that the contract must reject
};

/// Flags of `check_operator report`.
struct ReportOptions {
  std::string file;                 ///< a JSON report
  ReportFiles forms;                ///< forms to make of it
  std::vector<std::string> shards;  ///< of `report merge`, which writes what RunOptions says
  bool partial = false;             ///< shards may be missing or unfinished
  std::string before, after;        ///< of `report diff`
  double factor = 1.5;              ///< headroom that shrank by more than this is reported as lost
  bool allow_gone = false;
  std::string diff_markdown;
};

/// Flags of `check_operator certify` and `verify`.
struct CertificateOptions {
  std::string out;                 ///< of certify
  std::vector<std::string> files;  ///< of verify: one to verify on this machine, or two to compare
};

/// Flags of `check_operator init`.
struct InitOptions {
  std::string name, folder;
  std::string device;  ///< "cpu" or "cuda"; empty: as the program was built
};

/// Arguments of `check_operator compare`, on top of the flags of a run that apply.
struct CompareOptions {
  std::string got, gold;  ///< safetensors files
};

enum class Command : uint8_t {
  run,
  compare,
  bench,
  mutate,
  recipe,
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
  import_definition,
  completion
};

struct Options {
  Command command = Command::run;
  RunOptions run;  ///< subcommands use the members that apply to them
  BenchOptions bench;
  MutateOptions mutate;
  ReportOptions report;
  CertificateOptions certificate;
  InitOptions init;
  CompareOptions compare;
  std::string completion;  ///< the script that `completion` prints
  std::vector<std::string> import_arguments;
  bool diff_mutants = false;           ///< --mutants of `contract diff`
  std::vector<std::string> contracts;  ///< files of `contract lint`, or the two of `contract diff`
  std::string show_op;
  std::string command_line;  ///< quoted for a shell
};

/// Returns the options, or nothing when help or the version was asked for and printed.
/// Throws InputError naming the flag for anything else that does not parse.
std::optional<Options> parse_options(int argc, const char* const* argv);

/// The values of --class: the names of Numerics.
const std::vector<std::string>& class_names();

}  // namespace checkop
