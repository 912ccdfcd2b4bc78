// SPDX-License-Identifier: Apache-2.0
// A second worker: other data, then the case, one launch each.
#include "session/second_process.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "case/rank_parts.hpp"
#include "tensor/bits.hpp"

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

bool SecondProcess::may_run_beside(const Case& c) const {
  const bool meets = world_size(c) > 1 && config_.device != "cpu";  // on the CPU, ranks are threads of one process
  return fits_side_by_side(c) && !meets && !config_.ranks;
}

void SecondProcess::begin(const std::string& candidate, const Case& c, const std::vector<Tensor>& inputs,
                          std::chrono::seconds limit, unsigned threads) {
  again_ = make_outputs(c);
  waiting_.reset(), other_.reset();
  is_running_ = false;
  try {
    start();
  } catch (const EnvironmentError& e) {
    result_ = {};
    result_.status = RunStatus::no_device;
    result_.message = fmt::format("{}; name --check without determinism to do without one", e.what());
    return;
  } catch (const InputError& e) {  // the first process could load the plugins
    result_ = {};
    result_.status = RunStatus::crashed;
    result_.message = e.what();
    return;
  }
  waiting_ = {&candidate, &c, &inputs, limit};
  if (tensor_bytes(c) > kMostOtherBytes) {
    go_on();
    return;
  }
  constexpr RunChecks kWithoutOutputs{.determinism = false, .invariance = false, .memory = false, .outputs = false};
  other_ = {other_data(c), {}};
  other_->inputs = make_inputs(other_->c, threads);
  worker_->begin(candidate, other_->c, other_->inputs, again_, kWithoutOutputs, limit);
}

void SecondProcess::go_on() {
  if (!waiting_) return;
  const Request own = *std::exchange(waiting_, {});
  if (other_) {
    result_ = worker_->finish();
    other_.reset();
    if (result_.status != RunStatus::ok && result_.status != RunStatus::unsupported) {
      result_.message = fmt::format("on other data: {}", result_.message);
      return;
    }
  }
  constexpr RunChecks kOneLaunch{.determinism = false, .invariance = false, .memory = false};
  worker_->begin(*own.candidate, *own.c, *own.inputs, again_, kOneLaunch, own.limit);
  is_running_ = true;
}

void SecondProcess::finish() {
  go_on();
  if (std::exchange(is_running_, false)) result_ = worker_->finish();
}

void SecondProcess::compare(const std::vector<Tensor>& outputs, unsigned threads, RunResult& first) {
  const std::vector<Tensor> again = std::exchange(again_, {});
  if (result_.status != RunStatus::ok) {
    first = {};
    first.status = result_.status;
    first.message = "in a second process: " + result_.message;
    first.ranks = std::move(result_.ranks);
    first.rank_gone = std::move(result_.rank_gone);
    return;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].name.empty() || first.outputs[i].repeat.different > 0) continue;
    const BitDifference bits =
        compare_bits(outputs[i].dtype, outputs[i].bytes.data(), again[i].bytes.data(), outputs[i].count(), threads);
    if (bits.different == 0) continue;
    first.outputs[i].repeat = bits;
    first.repeat_elsewhere = true;
  }
}

}  // namespace checkop
