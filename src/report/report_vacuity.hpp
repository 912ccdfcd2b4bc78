// SPDX-License-Identifier: Apache-2.0
// What no check of a run could tell alone: of records, and of the JSON that shards of a run left.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/report.hpp"

namespace checkop {

/// What a run as a whole asks of one output of a check.
struct OutputFacts {
  /// Whether another order of summation would show, where invariance was asked for by name and applies.
  struct Shown {
    bool measured = false, proves = false;
    double share = 0, unseen = 1;
    int64_t compared = 0;
    std::string why;  ///< it was not measured
  };
  std::string name;
  int64_t count = 0, total_rows = 0;  ///< elements compared; 0: it tells nothing
  bool gold_is_zero = false, rows_are_equal = false;
  std::optional<Shown> shown;
};

/// Of a check.
struct CheckFacts {
  std::string candidate, op, pass, dtype;
  bool passes = false;  ///< as far as the check itself tells
  bool has_rows = true, has_given_inputs = false;
  std::vector<OutputFacts> outputs;
};

CheckFacts facts_of(const CaseRecord& record);

/// One for each check; nothing where the run leaves it its own.
using RunJudgments = std::vector<std::optional<Judgment>>;

/// See mark_vacuous() and mark_insensitive().
RunJudgments find_vacuous(const std::vector<CheckFacts>& checks);
RunJudgments find_insensitive(const std::vector<CheckFacts>& checks);

}  // namespace checkop
