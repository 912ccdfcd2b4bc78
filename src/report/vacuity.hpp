// SPDX-License-Identifier: Apache-2.0
// Finds outputs about which a whole run proves nothing; works on records and on the JSON of run shards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/report.hpp"

namespace checkop {

/// The data about one output of a check that judging the whole run needs.
struct OutputFacts {
  /// Whether another order of addition would show. Set if invariance was requested by name and applies.
  struct Shown {
    bool measured = false, proves = false;
    double share = 0, unseen = 1;
    int64_t compared = 0;
    std::string why;  ///< reason if not measured
  };
  std::string name;
  int64_t count = 0, total_rows = 0;  ///< `count`: elements compared; 0: proves nothing
  bool gold_is_zero = false, rows_are_equal = false;
  std::optional<Shown> shown;
};

/// The same for a check.
struct CheckFacts {
  std::string candidate, op, pass, dtype;
  bool passes = false;  ///< by the check's own results
  bool has_rows = true, has_own_inputs = false;
  std::vector<OutputFacts> outputs;
};

CheckFacts facts_of(const CaseRecord& record);

/// One entry per check; nullopt leaves the check's own judgment.
using RunJudgments = std::vector<std::optional<Judgment>>;

/// See mark_vacuous() and mark_insensitive().
RunJudgments find_vacuous(const std::vector<CheckFacts>& checks);
RunJudgments find_insensitive(const std::vector<CheckFacts>& checks);

}  // namespace checkop
