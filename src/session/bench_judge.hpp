// SPDX-License-Identifier: Apache-2.0
// The data that candidates are timed on, and the judgment of the outputs of timed launches.
#pragma once

#include <string>
#include <vector>

#include "contract/contract.hpp"
#include "run/bench.hpp"
#include "session/selection.hpp"

namespace checkop {

/// The case of a data set: that of set 0 is `c`, the others differ in their seeds.
Case case_of_set(const Case& c, size_t set);

/// Makes data sets for `candidates` on `c`, as many as a budget of memory and of messages allows, and room for outputs.
/// `info` is the device that they run on.
BenchData make_bench_data(const Case& c, const std::vector<const ChosenCandidate*>& candidates, const DeviceInfo& info,
                          const Contract& contract, const std::string& arch_key, unsigned threads);

/// Judges the kept outputs of a candidate's launches by the contract, and how others differ from them. If an output
/// does not pass, the run's status becomes failed, and its message says why.
void judge_bench(const Case& c, const ChosenCandidate& candidate, const BenchData& data, size_t index,
                 const Contract& contract, const std::string& arch_key, unsigned threads, BenchRun& run);

}  // namespace checkop
