// SPDX-License-Identifier: Apache-2.0
// Finds entries of a valid contract that are expired or have no effect.
#pragma once

#include <string>
#include <vector>

#include "contract/contract.hpp"

namespace checkop {

struct Finding {
  std::string path;  ///< "overlays[2].set.bound_ratio.lambda"
  std::string what;  ///< a sentence, without the path
};

/// Finds, in this order: expired overlays and known failures; numbers of overlays that change nothing; overlays that
/// more specific ones override completely; rules whose outputs more specific rules judge; known failures that match no
/// check. Runs nothing.
std::vector<Finding> lint(const Contract& contract);

}  // namespace checkop
