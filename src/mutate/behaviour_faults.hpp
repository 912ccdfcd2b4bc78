// SPDX-License-Identifier: Apache-2.0
// Candidates whose numbers are right and whose behaviour is not: they write where they must not, or not the same twice.
#pragma once

#include <span>
#include <vector>

#include "abi/check_operator.h"
#include "operator/emulation.hpp"
#include "run/run_result.hpp"

namespace checkop {

struct BehaviourFault {
  FaultSpec spec;
  bool of_rows = false;  ///< for passes whose first output is per-row
  /// Answers a call to `pass` with the gold, wrongly. `calls`: how many there were before.
  void (*answer)(const Operator& op, const Pass& pass, const checkop_call& call, unsigned calls);
};

std::span<const BehaviourFault> behaviour_faults();

/// Runs `c`, whose first output and floating-point inputs have elements, on the CPU device by a candidate with that
/// fault. `outputs` as for run_candidate().
RunResult run_with_fault(const BehaviourFault& fault, const Case& c, const std::vector<Tensor>& inputs,
                         std::vector<Tensor>& outputs, const RunChecks& checks);

}  // namespace checkop
