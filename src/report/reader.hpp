// SPDX-License-Identifier: Apache-2.0
// Reads a JSON report back, for its other forms and for comparing two reports.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "judge/verdict.hpp"
#include "report/report.hpp"

namespace checkop {

struct ReadGate {
  std::string metric;
  double achieved = 0, limit = 0, headroom = 0;  ///< headroom: infinite without errors
};

struct ReadOutput {
  std::string name;
  int64_t count = 0, out_of_bound = 0;
  std::vector<ReadGate> gates;
  double computation_headroom = HUGE_VAL;  ///< infinite too where the report has none
  double headroom() const;                 ///< of the tightest gate
};

struct ReadCase {
  std::string candidate, op, pass, dtype, name;
  std::string device, plugin_digest, data_hash;
  Verdict verdict = Verdict::error;
  std::string kind, reason, repeat;
  std::vector<ReadOutput> outputs;
  double total_ms = 0;  ///< 0 if the report has no time for it

  double headroom() const;    ///< of the tightest gate of any output
  std::string title() const;  ///< "logp/forward  native  logp-bf16-1x2x17"
};

struct ReadReport {
  std::string suite_name, command, started, host, device, contract_path, contract_hash;
  int64_t planned = 0;  ///< 0 if the report does not say
  std::optional<int64_t> max_skip = {};
  std::optional<RunShard> shard = {};  ///< unset: the whole run
  bool complete = false;
  int exit_code = 4;
  double wall_ms = 0;
  std::vector<ReadCase> cases;  ///< by candidate, in the order of the report

  std::map<Verdict, int64_t> counts() const;
  bool too_many_skipped() const;  ///< more than max_skip
  bool checked_nothing() const;   ///< false for a run shard, whose checks may be in other shards
  std::string program() const;    ///< "check_operator", "check_operator, shard 0 of 3"
  /// "3 of 120 checks did not pass: 2 fail, 1 vacuous". Also says if fewer checks ran than planned, and names the
  /// shard.
  std::string verdict_line() const;
};

/// A verdict by name. Throws InputError for an unknown name.
Verdict read_verdict(const JsonValue& value);

/// Throws InputError with file and path if `document` is no report.
ReadReport read_report(const JsonValue& document);

/// Whether the verdict lets a run pass.
bool is_good(Verdict verdict);

}  // namespace checkop
