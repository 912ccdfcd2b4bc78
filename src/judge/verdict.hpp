// SPDX-License-Identifier: Apache-2.0
// RunResult and Comparisons -> Verdict and a sentence with the reason. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "judge/compare.hpp"
#include "run/run_result.hpp"

namespace checkop {

enum class Verdict : uint8_t { pass, fail, vacuous, error, timeout, unsupported, skipped, xfail, xpass };
std::string_view to_string(Verdict verdict);
std::span<const Verdict> all_verdicts();

struct Judgment {
  Verdict verdict = Verdict::error;
  std::string kind;  ///< kind of failure: accuracy, nonfinite, unwritten, guard, input, ranks, determinism, invariance,
                     ///< candidate, ...
  std::string reason;  ///< one sentence with element, values and count; for a pass, what was checked, or ""
  std::optional<KnownFailure> known = {};  ///< for xfail and xpass: the contract's entry that expects a failure
};

/// Judges one check. `comparisons` are in the order of the pass's outputs; empty if accuracy was not checked.
/// Memory errors come before numerical errors, because they make the numbers unreliable.
/// `known` are the failures that the contract expects. The verdict is xfail if all findings are of kinds named there;
/// xpass if there are no findings, unless the run did not look for all expected kinds.
Judgment judge(const Case& c, const RunResult& run, const std::vector<Comparison>& comparisons,
               const std::vector<Demands>& demands, const RunChecks& checks, bool accuracy,
               const std::vector<KnownFailure>& known = {});

/// Whether the judgment is about wrong numbers, which causes() explains.
bool is_of_numbers(const Judgment& judgment);
/// The known or likely causes of wrong outputs, one sentence for each output that has one: "o is as where ...".
std::vector<std::string> causes(const Case& c, const std::vector<Comparison>& comparisons);

/// Exit code of a whole run, in the documented priority: 4, 1, 3, 0. 3 means that nothing ran or a check was
/// unsupported. The code is also 1 if more than `max_skip` checks were skipped.
int exit_code(const std::vector<Verdict>& verdicts, const std::optional<int64_t>& max_skip = {});

Shape unravel(const Shape& shape, int64_t index);            ///< the coordinates of a flat index
std::string coordinates(const Shape& shape, int64_t index);  ///< "[12,513]"

}  // namespace checkop
