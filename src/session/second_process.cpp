// SPDX-License-Identifier: Apache-2.0
// A second worker: other data, then the case, one launch each.
#include "session/second_process.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "case/rank_parts.hpp"
#include "run/invariance/rows.hpp"
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

constexpr RunChecks kOneLaunch{.determinism = false, .invariance = false, .memory = false};

/// The last row of the case alone; none where no such launch would be compared.
std::optional<Context> row_alone(const Case& c, const DeviceInfo& device) {
  constexpr RunChecks kRows{.determinism = false, .memory = false};
  for (const Context& context : contexts_of(c, device, kRows)) {
    const bool is_plain = !context.has_twin() && context.piece_rows == 0 && context.ranks == 0;
    if (context.axis == Axis::batch && context.rows.size() == 1 && is_plain && context.rearrangement == nullptr)
      return context;
  }
  return {};
}

/// What the context's launch gets of the inputs of `c`.
std::vector<Tensor> inputs_of(const Case& c, const Context& context, const std::vector<Tensor>& inputs) {
  const Case launched = context_case(c, context);
  std::vector<Tensor> gathered(inputs.size());
  std::vector<std::byte> storage;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].name.empty()) continue;
    const TensorSpec& spec = c.pass->inputs[i];
    gathered[i] = Tensor(inputs[i].name, inputs[i].dtype, shape_of(launched, spec));
    std::memcpy(gathered[i].bytes.data(), gather(c, context, inputs[i], spec, 0, storage), gathered[i].bytes.size());
  }
  return gathered;
}

}  // namespace

bool SecondProcess::may_run_beside(const Case& c) const {
  const bool meets = world_size(c) > 1 && config_.device != "cpu";  // on the CPU, ranks are threads of one process
  return fits_side_by_side(c) && !meets && !config_.ranks;
}

void SecondProcess::begin(const std::string& candidate, const Case& c, const std::vector<Tensor>& inputs, bool a_row,
                          std::chrono::seconds limit, unsigned threads) {
  case_ = c;
  again_ = make_outputs(c);
  before_.clear();
  waiting_.reset(), alone_.reset();
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
  if (tensor_bytes(c) <= kMostOtherBytes) {
    const Case other = other_data(c);
    before_.push_back({"on other data", other, make_inputs(other, threads), {}});
    if (a_row) {
      if (const std::optional<Context> row = row_alone(c, worker_->info().device.value()))
        before_.push_back({"on a row alone", context_case(c, *row), inputs_of(c, *row, inputs), row});
    }
  }
  before_.empty() ? go_on() : begin_before();
}

void SecondProcess::begin_before() {
  constexpr RunChecks kWithoutOutputs{.determinism = false, .invariance = false, .memory = false, .outputs = false};
  Before& now = before_.front();
  if (now.row) now.outputs = make_outputs(now.c);
  worker_->begin(*waiting_->candidate, now.c, now.inputs, now.row ? now.outputs : again_,
                 now.row ? kOneLaunch : kWithoutOutputs, waiting_->limit);
}

void SecondProcess::go_on() {
  if (!waiting_) return;
  if (!before_.empty()) {
    result_ = worker_->finish();
    Before done = std::move(before_.front());
    before_.pop_front();
    if (result_.status != RunStatus::ok && result_.status != RunStatus::unsupported) {
      result_.message = fmt::format("{}: {}", done.what, result_.message);
      before_.clear();
      waiting_.reset();
      return;
    }
    if (done.row && result_.status == RunStatus::ok) alone_ = std::move(done);
    if (!before_.empty()) return begin_before();
  }
  const Request own = *std::exchange(waiting_, {});
  worker_->begin(*own.candidate, *own.c, *own.inputs, again_, kOneLaunch, own.limit);
  is_running_ = true;
}

void SecondProcess::finish() {
  while (waiting_) go_on();
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
  compare_row(outputs, first);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].name.empty() || first.outputs[i].repeat.different > 0) continue;
    const BitDifference bits =
        compare_bits(outputs[i].dtype, outputs[i].bytes.data(), again[i].bytes.data(), outputs[i].count(), threads);
    if (bits.different == 0) continue;
    first.outputs[i].repeat = bits;
    first.repeat_elsewhere = true;
  }
}

void SecondProcess::compare_row(const std::vector<Tensor>& outputs, RunResult& first) const {
  if (!alone_) return;
  const Case& c = case_;
  std::vector<ContextBits> found(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorSpec& spec = c.pass->outputs[i].tensor;
    if (outputs[i].name.empty() || !is_per_row(*c.op, spec)) continue;
    const int64_t columns = matrix_view(*c.op, spec, outputs[i].shape).columns;
    RowsCompared(*alone_->row, outputs[i], columns, 0, found[i])
        .add(alone_->outputs[i].bytes.data(), 0, alone_->outputs[i].count());
  }
  const bool differs =
      std::any_of(found.begin(), found.end(), [](const ContextBits& of) { return of.bits.different > 0; });
  if (!differs) return;
  first.contexts.push_back(
      {Axis::batch, alone_->row->what + ", in a process that has not seen the batch", true, "", 1});
  for (size_t i = 0; i < outputs.size(); ++i) first.outputs[i].contexts.push_back(found[i]);
}

}  // namespace checkop
