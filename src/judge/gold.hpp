// SPDX-License-Identifier: Apache-2.0
// Runs the FP64 gold of a case and judges a candidate's outputs against it, row block by row block.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "case/case.hpp"
#include "contract/contract.hpp"
#include "judge/compare.hpp"

namespace checkop {

/// Runs c.pass's gold on `inputs` (as make_inputs gives them) and hands its rows to `sink`: those of sample_rows(), or
/// every one where `rows` is empty.
void run_gold(const Case& c, const std::vector<Tensor>& inputs, unsigned threads, const GoldSink& sink,
              const std::vector<RowSet>& rows = {});

/// Floating-point operations of the case and the bytes that have to move, by Pass::work; `inputs` as for run_gold.
struct Cost {
  double flops = 0, bytes = 0;
};
Cost cost_of(const Case& c, const std::vector<Tensor>& inputs);

/// What output `index` of a failed comparison looks like; see emulated_fault() and diagnose(). The gold is run again
/// for some of its rows, unless that would mean all rows of a large case.
std::string diagnose_output(const Case& c, const std::vector<Tensor>& inputs, size_t index, const Tensor& output,
                            const OutputComparison& comparison, const RowSet& rows, unsigned threads);

/// The longest sum behind one element of `output`, from OutputSpec::reduced; 1 when there is none.
int64_t sum_terms(const Case& c, const OutputSpec& output);

/// Hands all gold rows to a sink, from that many threads at once.
using GoldReplay = std::function<void(unsigned, const GoldSink&)>;

struct GoldTimes {
  double wall_ms = 0;     ///< gold and comparison together
  double compare_ms = 0;  ///< the comparison's share: its thread time over the number of threads
};

/// Compares `outputs` (in the order of the pass, absent ones with an empty name) with the gold under `contract`.
/// The gold is streamed: no output is ever held in FP64. One Comparison per output; an absent output's is empty.
/// `rows` are those of sample_rows(): what the gold leaves out is held to the operator's identities.
/// Comparison::would_pass names the trivial answers that all gates together accept: where those of single elements do
/// and the contract has others, the answer is made and judged, which runs the gold again.
/// With `stored` the gold is taken from there, all of it, and failures are not diagnosed. A pass without identities is
/// not held to any.
std::vector<Comparison> judge_outputs(const Case& c, const std::vector<Tensor>& inputs,
                                      const std::vector<Tensor>& outputs, const Contract& contract,
                                      const Subject& subject, unsigned threads, const std::vector<RowSet>& rows = {},
                                      GoldTimes* times = nullptr, const GoldReplay& stored = {});

}  // namespace checkop
