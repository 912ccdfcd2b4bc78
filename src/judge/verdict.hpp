// SPDX-License-Identifier: Apache-2.0
// RunResult + Comparisons -> Verdict and a reason sentence. Pure.
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
  std::string kind;    ///< what failed: accuracy, nonfinite, unwritten, guard, input, ranks, determinism, invariance,
                       ///< candidate, ...
  std::string reason;  ///< one sentence with element, values and count; of a pass empty, or what it is about
  std::optional<KnownFailure> known = {};  ///< of xfail and xpass: the contract's entry that expects a failure
};

/// `comparisons` in the order of the pass's outputs; empty when accuracy was not asked for.
/// What is wrong with memory comes before what is wrong with numbers: the numbers can't be trusted then.
/// `known` are failures that the contract expects of the check. Where each finding is of a kind that one of them names,
/// the verdict is xfail; where there is none, xpass, unless the run did not look at all that was expected.
Judgment judge(const Case& c, const RunResult& run, const std::vector<Comparison>& comparisons,
               const std::vector<Demands>& demands, const RunChecks& checks, bool accuracy,
               const std::vector<KnownFailure>& known = {});

/// Process exit code of a whole run, by the documented priority: 4, 1, 3, 0. 3: nothing ran, or a check was
/// unsupported. 1 also where more checks were skipped than `max_skip`.
int exit_code(const std::vector<Verdict>& verdicts, const std::optional<int64_t>& max_skip = {});

Shape unravel(const Shape& shape, int64_t index);            ///< the coordinates of a flat index
std::string coordinates(const Shape& shape, int64_t index);  ///< "[12,513]"

}  // namespace checkop
