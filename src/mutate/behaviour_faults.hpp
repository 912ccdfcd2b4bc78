// SPDX-License-Identifier: Apache-2.0
// Candidates with right numbers and wrong behaviour: they write where they must not, or differ between launches.
#pragma once

#include <span>
#include <vector>

#include "abi/check_operator.h"
#include "operator/emulation.hpp"
#include "run/run_result.hpp"

namespace checkop {

struct BehaviourFault {
  FaultSpec spec;
  bool of_rows = false;  ///< only for passes whose first output is per-row
  /// Answers a call to `pass` with the gold and the fault. `calls`: number of earlier calls.
  void (*answer)(const Operator& op, const Pass& pass, const checkop_call& call, unsigned calls);
};

std::span<const BehaviourFault> behaviour_faults();

/// Runs `c` on the CPU device with a candidate that has the fault. The first output and the floating-point inputs of
/// `c` must have elements. `outputs` as for run_candidate().
RunResult run_with_fault(const BehaviourFault& fault, const Case& c, const std::vector<Tensor>& inputs,
                         std::vector<Tensor>& outputs, const RunChecks& checks);

}  // namespace checkop
