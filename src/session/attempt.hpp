// SPDX-License-Identifier: Apache-2.0
// One check as it was run: what the candidate got, what it gave, and the record that judgement completes.
#pragma once

#include <string>
#include <vector>

#include "report/report.hpp"
#include "session/selection.hpp"

namespace checkop {

/// What one candidate did on one case.
struct Attempt {
  const Check* check = nullptr;
  std::string arch_key;  ///< whose overlays apply
  CaseRecord record;     ///< without the contract's demands and verdict until Session::judge_by()
  std::vector<Tensor> inputs, outputs;
  std::vector<RowSet> rows;  ///< rows that the gold computed; from Session::judge_by()

  Subject subject() const { return {arch_key, check->candidate.name, check->candidate.recipes}; }
};

}  // namespace checkop
