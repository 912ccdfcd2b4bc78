// SPDX-License-Identifier: Apache-2.0
// Differences of two contracts on a case. Runs nothing.
#pragma once

#include <string>
#include <vector>

#include "contract/contract.hpp"

namespace checkop {

/// Whether the second contract accepts more or less.
enum class Tendency : uint8_t { looser, tighter, either };
std::string_view to_string(Tendency tendency);

struct Change {
  Tendency tendency = Tendency::either;
  std::string what;  ///< "bound_ratio lambda", "gate bits", "determinism", "a rule"
  std::string a, b;  ///< the values: "6" and "5", "asked" and "not asked"

  auto operator<=>(const Change&) const = default;
};

/// Differences in gates, their numbers and demands of one output. If only one contract has a rule for the output, that
/// is the only change.
std::vector<Change> diff_output(const Contract& a, const Contract& b, const Case& c, const OutputSpec& output,
                                const Subject& subject);

/// Differences that concern the whole case: the number of rows that the gold computes, with `work` from gold_work(),
/// and the expected failures.
std::vector<Change> diff_case(const Contract& a, const Contract& b, const Case& c, const Subject& subject, double work);

/// The architectures and candidates named by overlays and known failures of either contract, "" first. A glob of
/// candidates is replaced by a name that it matches: '*' removed, '?' replaced by 'x'.
std::vector<std::string> archs_named(const Contract& a, const Contract& b);
std::vector<std::string> candidates_named(const Contract& a, const Contract& b);

}  // namespace checkop
