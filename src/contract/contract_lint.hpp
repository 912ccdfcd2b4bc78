// SPDX-License-Identifier: Apache-2.0
// What is wrong with a contract that loads: entries past their date, and those that do nothing.
#pragma once

#include <string>
#include <vector>

#include "contract/contract.hpp"

namespace checkop {

struct Finding {
  std::string path;  ///< "overlays[2].set.bound_ratio.lambda"
  std::string what;  ///< a sentence, without the path
};

/// In this order: overlays and known failures that have expired; numbers of overlays that are what they would be
/// anyway; overlays of which more specific ones set every number; rules of which more specific ones judge every output;
/// known failures that no check can match. Nothing is run.
std::vector<Finding> lint(const Contract& contract);

}  // namespace checkop
