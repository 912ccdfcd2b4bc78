// SPDX-License-Identifier: Apache-2.0
// In what two contracts differ on a case. Nothing is run.
#pragma once

#include <string>
#include <vector>

#include "contract/contract.hpp"

namespace checkop {

/// Whether the second contract lets more pass.
enum class Tendency : uint8_t { looser, tighter, either };
std::string_view to_string(Tendency tendency);

struct Change {
  Tendency tendency = Tendency::either;
  std::string what;  ///< "bound_ratio lambda", "gate bits", "determinism", "rule"
  std::string a, b;  ///< the values: "6" and "5", "none" and "there"

  auto operator<=>(const Change&) const = default;
};

/// Gates, their numbers and demands of one output. Where only one contract has a rule for it, that is the change.
std::vector<Change> diff_output(const Contract& a, const Contract& b, const Case& c, const OutputSpec& output,
                                const Subject& subject);

/// What holds for the case as a whole: how many rows the gold computes, for `work` as gold_work() gives it, and which
/// failures are expected.
std::vector<Change> diff_case(const Contract& a, const Contract& b, const Case& c, const Subject& subject, double work);

/// Architectures and candidates that overlays and known failures of either contract name, "" first. A glob of
/// candidates stands for the name that remains without its '*', with 'x' for each '?'.
std::vector<std::string> archs_named(const Contract& a, const Contract& b);
std::vector<std::string> candidates_named(const Contract& a, const Contract& b);

}  // namespace checkop
