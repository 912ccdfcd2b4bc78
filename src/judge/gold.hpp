// SPDX-License-Identifier: Apache-2.0
// Runs the FP64 gold of a case and judges a candidate's outputs against it, block of rows by block of rows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "case/case.hpp"
#include "contract/contract.hpp"
#include "judge/compare.hpp"

namespace checkop {

class EmulatedFaults;
struct JudgedOutputs;

/// Runs the gold of c.pass on `inputs` (from make_inputs) and hands its rows to `sink`: the rows of sample_rows(), or
/// all rows if `rows` is empty. `kept`: of golds of the same case, inputs and numbers of the recipes.
void run_gold(const Case& c, const std::vector<Tensor>& inputs, unsigned threads, const GoldSink& sink,
              const std::vector<RowSet>& rows = {}, const ActiveRecipes& recipes = {}, KeptResults* kept = nullptr);

/// Floating-point operations of the case and bytes moved at least, from Pass::work; `inputs` as for run_gold.
struct Cost {
  double flops = 0, bytes = 0;
};
Cost cost_of(const Case& c, const std::vector<Tensor>& inputs);

/// Describes the errors of the outputs that failed, in Comparison::diagnosis; see known_faults() and diagnose(). Runs
/// the gold again for some rows, unless the gold can't compute single rows and the case is large. `poisoned`: see
/// Suspect.
void diagnose_outputs(const JudgedOutputs& judged, EmulatedFaults& emulated, std::vector<Comparison>& results,
                      bool poisoned = true);

/// The length of the longest sum behind one element of `output`, from OutputSpec::reduced; 1 without sums.
int64_t sum_terms(const Case& c, const OutputSpec& output);

/// Hands all gold rows under some recipes to a sink, from the given number of threads at once.
using GoldReplay = std::function<void(unsigned, const ActiveRecipes&, const GoldSink&)>;

struct GoldTimes {
  double wall_ms = 0;     ///< gold and comparison together
  double compare_ms = 0;  ///< time of the comparison: its thread time over the number of threads
};

/// What to find out about an output that fails without recipes.
enum class RecipeSearch : uint8_t {
  granted,   ///< whether it passes by granted ones; if not, the smallest set of others that would do
  every_set  ///< Comparison::every_set, whatever is granted and however long the gold takes; the output stays failed
};

/// Compares `outputs` with the gold under `contract`. `outputs` are in the order of the pass; absent ones have an empty
/// name. Returns one Comparison per output; that of an absent output is empty.
/// The gold is streamed, so no output is held in FP64.
/// `rows` comes from sample_rows(). Rows without gold are checked by the operator's identities, if the pass has any.
/// Comparison::would_pass names the trivial answers that all gates accept. If the element-wise gates accept an answer
/// and the contract has other gates, the answer is generated and judged, which runs the gold again.
/// An output that fails is judged once more under the sets of granted recipes, the smallest first; Comparison::recipes
/// names the set under which it passes. If there is none, Comparison::passes_under names a set of other recipes under
/// which it would pass, unless the gold takes too long. If `stored` is set, all gold rows come from it, and failures
/// are diagnosed only if `emulated` is set.
std::vector<Comparison> judge_outputs(const Case& c, const std::vector<Tensor>& inputs,
                                      const std::vector<Tensor>& outputs, const Contract& contract,
                                      const Subject& subject, unsigned threads, const std::vector<RowSet>& rows = {},
                                      GoldTimes* times = nullptr, const GoldReplay& stored = {},
                                      RecipeSearch search = RecipeSearch::granted, EmulatedFaults* emulated = nullptr);

/// Whether `contract` judges the outputs by a second run, with finite numbers instead of NaN in the elements that the
/// operator leaves out. `with_nan` holds the comparisons of the run with NaN, empty if it gave no outputs: every output
/// that fails there must be granted the second run.
bool accepts_finite(const Case& c, const std::vector<Comparison>& with_nan, const Contract& contract,
                    const Subject& subject);

}  // namespace checkop
