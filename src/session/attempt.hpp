// SPDX-License-Identifier: Apache-2.0
// One check as it was run: what the candidate got, what it gave, and the record that judgement completes.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/report.hpp"
#include "session/selection.hpp"

namespace checkop {

/// What one candidate did on other data of a case.
struct DataRun {
  RunResult run;
  std::string data_hash;
  std::vector<Sensitivity> sensitivity;
  std::vector<Tensor> inputs, outputs;
};

/// What one candidate did on one case.
struct Attempt {
  const Check* check = nullptr;
  std::string arch_key;  ///< whose overlays apply
  CaseRecord record;     ///< without the contract's demands and verdict until Session::judge_by()
  std::vector<Tensor> inputs, outputs;
  std::vector<RowSet> rows;  ///< rows that the gold computed; from Session::judge_by()
  /// The run with the other content of left-out elements than record.left_out names. Present only if the run with NaN
  /// failed or left a result that is not finite.
  std::optional<DataRun> other;

  /// Exchanges the run in the record and `other`.
  void exchange_data() {
    std::swap(record.run, other->run);
    std::swap(record.data_hash, other->data_hash);
    std::swap(record.sensitivity, other->sensitivity);
    std::swap(inputs, other->inputs);
    std::swap(outputs, other->outputs);
    record.left_out = record.left_out == LeftOut::finite ? LeftOut::nonfinite : LeftOut::finite;
  }

  Subject subject() const {
    return {arch_key, check->candidate.name, check->candidate.recipes, !record.run.unobserved.empty()};
  }
};

}  // namespace checkop
