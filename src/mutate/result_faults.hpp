// SPDX-License-Identifier: Apache-2.0
// Wrong results that any operator can have: right numbers, spoiled.
#pragma once

#include <span>
#include <vector>

#include "operator/emulation.hpp"

namespace checkop {

/// One output of a pass as it is spoiled.
struct Result {
  const OutputSpec& spec;
  MatrixView view;              ///< by judged_view()
  std::vector<double>& values;  ///< row-major, exact; what they become is stored with one rounding
  Tensor& stored;               ///< `values` stored, of the output's dtype
};

struct ResultFault {
  FaultSpec spec;
  /// Changes `values`; the caller stores them. May leave them as they are where the output is too small for the fault.
  void (*spoil)(Result&) = nullptr;
  /// In place of `spoil`: changes `stored`.
  void (*spoil_stored)(Result&) = nullptr;
};

std::span<const ResultFault> result_faults();

}  // namespace checkop
