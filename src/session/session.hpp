// SPDX-License-Identifier: Apache-2.0
// The checks of one run and what they share; what a candidate did can be judged by any number of contracts.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contract/contract.hpp"
#include "judge/gold.hpp"
#include "report/report.hpp"
#include "session/attempt.hpp"
#include "session/own_data.hpp"
#include "session/proofs.hpp"
#include "session/run_options.hpp"
#include "session/selection.hpp"

namespace checkop {

/// Everything that the checks of one run of the program share.
class Session {
 public:
  /// `ranks`: where the processes of other ranks are, if there are some.
  Session(const RunOptions& options, Selection selection, std::optional<RankService> ranks = {});

  const Selection& selection() const { return selection_; }
  unsigned threads() const { return threads_; }

  /// Plans the checks that `contract` demands; for several contracts, those that the most demanding one does.
  void plan_for(const Contract& contract);

  /// If invariance was asked for by name: measures what the data can show, and finds for every pass and dtype a case
  /// that shows enough. Rows are then compared in that case's launches.
  void find_proofs();

  /// Throws InputError if a selected check can't be judged by `contract`: no rule matches an output, own data or their
  /// gold don't fit, or --gold-rows is wrong. Call it before checks run.
  void require_judgeable(const Contract& contract) const;

  /// Sentences about tensors of --inputs that are no inputs.
  std::vector<std::string> left_over() const;

  /// Runs every check, and calls `judge` with each in order, on a thread of its own; see Scheduler. `on_first_device`
  /// gets the first worker's device before anything runs on it. A check for which `begins` returns false, before it
  /// begins, is left out. Throws InputError when --arch-key is not the device's.
  void run_all(const std::function<void(Attempt&)>& judge,
               const std::function<void(const DeviceInfo&)>& on_first_device = {},
               const std::function<bool(const Check&)>& begins = {}) const;

  /// Devices whose passes need the positive control: those of a suite, or of invariance asked for by name.
  std::vector<std::string> controlled_devices() const;
  const AxisPlan& plan() const { return plan_; }

  /// Enters into the record what `contract` demands, the comparisons and the judgment. May be called for several
  /// contracts.
  void judge_by(const Contract& contract, Attempt& attempt, RecipeSearch search = RecipeSearch::granted) const;

 private:
  std::vector<Demands> demands_for(const Contract& contract, const Case& c) const;
  /// Compares the outputs of the run in the record, if there are any.
  void compare(const Contract& contract, Attempt& attempt, RecipeSearch search) const;
  /// Judges by the other run where the contract accepts its data; otherwise finds out by it why outputs fail.
  void consider_other_data(const Contract& contract, Attempt& attempt, RecipeSearch search) const;

  const RunOptions& options_;
  Selection selection_;
  std::optional<RankService> ranks_;
  unsigned threads_;
  Proofs proofs_;
  AxisPlan plan_{false, 2};  ///< all axes where checks were asked for by name
  OwnInputs own_inputs_;
  std::shared_ptr<const SafetensorsReader> gold_;  ///< of --gold; nullptr for none
};

}  // namespace checkop
