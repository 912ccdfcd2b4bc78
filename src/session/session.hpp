// SPDX-License-Identifier: Apache-2.0
// Runs checks one after the other; what a candidate did can be judged by any number of contracts.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contract/contract.hpp"
#include "report/report.hpp"
#include "session/given_inputs.hpp"
#include "session/proofs.hpp"
#include "session/run_options.hpp"
#include "session/second_process.hpp"
#include "session/selection.hpp"

namespace checkop {

/// What one candidate did on one case.
struct Attempt {
  const Check* check = nullptr;
  std::string arch_key;  ///< whose overlays apply
  CaseRecord record;     ///< without what a contract says of it, until judge_by()
  std::vector<Tensor> inputs, outputs;
  std::vector<RowSet> rows;  ///< that the gold computed; from judge_by()

  Subject subject() const { return {arch_key, check->candidate.name}; }
};

/// Everything that the checks of one run of the program share.
class Session {
 public:
  /// `ranks`: where the processes of other ranks are, if there are some.
  Session(const RunOptions& options, Selection selection, std::optional<RankService> ranks = {});

  const Selection& selection() const { return selection_; }
  unsigned threads() const { return threads_; }

  /// Looks at as much as `contract` demands; of several contracts, as the one that demands most.
  void plan_for(const Contract& contract);

  /// Finds out what the data can show, and for every pass and dtype a case that shows enough, where invariance is asked
  /// for by name: rows are then compared in that case's launches.
  void find_proofs();

  /// Finds what is wrong with the question before any answer is worked on: an output that `contract` has no rule for,
  /// a bad --gold-rows.
  void check_questions(const Contract& contract) const;

  /// Sentences about tensors of --inputs that are no inputs.
  std::vector<std::string> left_over() const;

  /// Runs every check, with a worker for each candidate and device, and hands over what came of it, in order: of a
  /// small case while the next one runs. `device` is called
  /// with the first worker's device before anything runs on it. Checks that `begins` says no to, asked when it is their
  /// turn, are left out. Throws InputError when --arch-key is not the device's.
  void run_all(const std::function<void(Attempt&)>& body, const std::function<void(const DeviceInfo&)>& device = {},
               const std::function<bool(const Check&)>& begins = {}) const;

  /// Devices whose passes need the positive control: those of a suite, or of invariance asked for by name.
  std::vector<std::string> controlled_devices() const;
  const AxisPlan& plan() const { return plan_; }

  /// Enters into the record what `contract` demands, the comparisons and the judgment; again for another contract.
  void judge_by(const Contract& contract, Attempt& attempt) const;

 private:
  bool wants(std::string_view check) const;
  void require_devices(const std::string& candidate, const DeviceInfo& device) const;
  /// Inputs that were made before their check's turn.
  struct Prepared {
    const Check* check = nullptr;
    std::vector<Tensor> inputs;
    double ms = 0;  ///< that it took
  };
  /// Those of the first check from `index` on, unless they are large or can't be made.
  Prepared prepare(size_t index) const;
  /// What a check is run with; `meanwhile` is called while a worker is at it, or not at all.
  struct Hands {
    Worker& worker;
    SecondProcess* second;  ///< nullptr: the same process is all there is
    Prepared prepared;
    std::function<void()> meanwhile;
  };
  void run(const Hands& hands, const Proofs::Entry* proof, Attempt& attempt) const;
  /// `gone`: why a rank will not come; "" while all do.
  Attempt attempt(Hands hands, const Check& check, const std::string& arch_key, const std::string& gone) const;
  std::vector<Demands> demands_for(const Contract& contract, const Case& c) const;

  const RunOptions& options_;
  Selection selection_;
  std::optional<RankService> ranks_;
  unsigned threads_;
  Proofs proofs_;
  AxisPlan plan_{false, 2};  ///< all axes where checks were asked for by name
  GivenInputs given_;
  std::shared_ptr<const SafetensorsReader> gold_;  ///< of --gold; nullptr for none
};

}  // namespace checkop
