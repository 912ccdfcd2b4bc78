// SPDX-License-Identifier: Apache-2.0
// A second worker: other data, then the case, one launch each.
#include "commands/second_process.hpp"

#include <fmt/format.h>

#include <utility>

#include "bits.hpp"
#include "error.hpp"
#include "inputs.hpp"

namespace checkop {
namespace {

/// Larger cases are not preceded by other data: making them takes longer than all the rest.
constexpr int64_t kMostOtherBytes = int64_t{256} << 20;

/// Other data of the same sizes.
Case other_data(Case c) {
  if (c.input_mode == InputMode::constant) c.input_mode = InputMode::random;
  c.seed = ~c.seed;
  c.grad_seed = ~c.grad_seed;
  return c;
}

}  // namespace

void SecondProcess::repeat(const std::string& candidate, const Case& c, const std::vector<Tensor>& inputs,
                           const std::vector<Tensor>& outputs, std::chrono::seconds limit, unsigned threads,
                           RunResult& run) {
  const auto fail = [&](RunStatus status, const std::string& message, std::vector<RankRun> ranks = {},
                        std::string rank_gone = "") {
    run = {};
    run.status = status;
    run.message = "in a second process: " + message;
    run.ranks = std::move(ranks);
    run.rank_gone = std::move(rank_gone);
  };
  try {
    if (!worker_) worker_.emplace(config_);
  } catch (const EnvironmentError& e) {
    return fail(RunStatus::no_device, fmt::format("{}; name --check without determinism to do without one", e.what()));
  }
  constexpr RunChecks kOneLaunch{false, false, false};
  std::vector<Tensor> again = make_outputs(c);
  if (tensor_bytes(c) <= kMostOtherBytes) {
    const Case other = other_data(c);
    const RunResult before = worker_->run(candidate, other, make_inputs(other, threads), again, kOneLaunch, limit);
    if (before.status != RunStatus::ok && before.status != RunStatus::unsupported)
      return fail(before.status, fmt::format("on other data: {}", before.message), before.ranks, before.rank_gone);
  }
  const RunResult second = worker_->run(candidate, c, inputs, again, kOneLaunch, limit);
  if (second.status != RunStatus::ok) return fail(second.status, second.message, second.ranks, second.rank_gone);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].name.empty() || run.outputs[i].repeat.different > 0) continue;
    const BitDifference bits =
        compare_bits(outputs[i].dtype, outputs[i].bytes.data(), again[i].bytes.data(), outputs[i].count(), threads);
    if (bits.different == 0) continue;
    run.outputs[i].repeat = bits;
    run.repeat_elsewhere = true;
  }
}

}  // namespace checkop
