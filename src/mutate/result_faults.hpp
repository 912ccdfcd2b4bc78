// SPDX-License-Identifier: Apache-2.0
// Wrong results that any operator can have: the right values with one fault.
#pragma once

#include <span>
#include <vector>

#include "operator/emulation.hpp"

namespace checkop {

/// One output of a pass, to be changed by a fault.
struct Result {
  const OutputSpec& spec;
  MatrixView view;              ///< judged_view() of the output
  std::vector<double>& values;  ///< exact, row-major; stored with one rounding after the change
  Tensor& stored;               ///< `values` as stored in the output's dtype
};

struct ResultFault {
  FaultSpec spec;
  /// Changes `values`; the caller stores them. May change nothing if the output is too small for the fault.
  void (*spoil)(Result&) = nullptr;
  /// Used instead of `spoil`: changes `stored`.
  void (*spoil_stored)(Result&) = nullptr;
};

std::span<const ResultFault> result_faults();

}  // namespace checkop
