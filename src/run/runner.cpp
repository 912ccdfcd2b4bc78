// SPDX-License-Identifier: Apache-2.0
// Runs one candidate on one case: the full batch twice, then its rows in other contexts.
#include "run/runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/clock.hpp"
#include "case/rank_parts.hpp"
#include "run/invariance/run_contexts.hpp"
#include "run/stage.hpp"

namespace checkop {
namespace {

/// Compares an output of the second launch, whose buffer held `second_poison` before, with `first`. `copy`, if given,
/// is a copy of `first` on the device.
OutputRun compare_runs(GuardedBuffer& second, uint64_t second_poison, const Tensor& first, GuardedBuffer* copy) {
  OutputRun result;
  if (copy != nullptr && second.equals(*copy)) {
    result.repeat.compared = first.count();
    return result;
  }
  const DType dtype = first.dtype;
  const uint64_t first_poison = poison_of(dtype).output[0];
  second.for_each_block([&](const std::byte* block, int64_t begin, int64_t n) {
    const size_t width = info(dtype).bytes;
    const std::byte* expected = first.bytes.data() + static_cast<size_t>(begin) * width;
    result.repeat.compared += n;
    if (std::memcmp(expected, block, static_cast<size_t>(n) * width) == 0) return;
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t a = load_bits(dtype, expected, i), b = load_bits(dtype, block, i);
      if (a == b) continue;
      if (a == first_poison || b == second_poison) {
        if (result.unwritten++ == 0) result.first_unwritten = begin + i;
      } else if (result.repeat.different++ == 0) {
        result.repeat.first_index = begin + i;
        result.repeat.a_bits = a;
        result.repeat.b_bits = b;
      }
    }
  });
  return result;
}

void run_all(Device& device, const checkop_kernel& kernel, const Case& c, const std::vector<Tensor>& inputs,
             std::vector<Tensor>& outputs, const RunChecks& checks, RunResult& result) {
  Stage stage(device, kernel, c, "");
  stage.rank_limit = checks.rank_limit;
  const bool is_accuracy_alone = !checks.determinism && !checks.invariance && !checks.memory;
  auto start = Clock::now();
  try {
    for (size_t i = 0; i < inputs.size(); ++i) {
      stage.inputs.push_back(stage.make_buffer("input", c.pass->inputs[i]));
      if (!stage.inputs[i]) continue;
      stage.inputs[i]->put(inputs[i].bytes.data());
      if (!is_accuracy_alone) stage.inputs[i]->note_given();  // else nobody asks whether it has changed
    }
    result.transfer_ms = ms_since(start);
    stage.make_outputs_and_workspace();
  } catch (const OutOfMemory& e) {  // the case itself fits; the candidate's workspace, or memory it keeps, does not
    throw Stopped{RunStatus::no_memory, fmt::format("could not be prepared: {}", e.what())};
  } catch (const DeviceError& e) {  // the candidate has not run yet, so its device is gone
    throw Stopped{RunStatus::no_device, fmt::format("could not be prepared: {}", e.what())};
  }

  const auto launch = [&](int run) {
    try {
      const std::string words = stage.launch(run);
      if (run == 0) result.message = words;
    } catch (...) {
      result.ranks = stage.rank_runs();
      throw;
    }
  };
  launch(0);
  result.ranks = stage.rank_runs();
  result.run_ms = stage.elapsed_ms;
  start = Clock::now();
  // Judges a private copy of the outputs, since another process can write to them at any time.
  const std::vector<BufferPtr> copies =
      is_accuracy_alone ? std::vector<BufferPtr>(outputs.size()) : stage.copy_outputs();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const BufferPtr& copy = copies[i] ? copies[i] : stage.outputs[i];
    if (copy && checks.outputs) copy->download(outputs[i].bytes.data());
  }
  result.transfer_ms += ms_since(start);
  result.outputs.resize(outputs.size());
  if (is_accuracy_alone) return note_rank_differences(stage, result);

  // The outputs must also stay as they were copied.
  const auto note_late_writes = [&](const std::vector<Tensor>& judged) {
    for (size_t i = 0; i < judged.size(); ++i) {
      if (!stage.outputs[i] || !checks.memory || !checks.outputs) continue;
      if (!copies[i] && device.info().kind != "cpu") continue;  // reading it once more takes too long
      if (copies[i] && stage.outputs[i]->equals(*copies[i])) continue;
      if (const BitDifference late = stage.outputs[i]->difference_from(judged[i].bytes.data()); late.different > 0) {
        result.guard_violations.push_back(fmt::format("{}: {} element{} changed after the launch had returned",
                                                      stage.outputs[i]->what(), late.different,
                                                      late.different == 1 ? "" : "s"));
      }
    }
  };
  // Checked after each launch: the second may restore an input that the first one changed.
  if (checks.memory) note_modified_inputs(stage, inputs, result.modified_inputs);
  if (checks.determinism || checks.memory) {
    note_late_writes(outputs);
    launch(1);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!stage.outputs[i]) continue;
      result.outputs[i] =
          compare_runs(*stage.outputs[i], stage.poison_before(outputs[i].dtype), outputs[i], copies[i].get());
    }
  }
  if (checks.memory) {
    stage.check_guards(result.guard_violations);
    note_modified_inputs(stage, inputs, result.modified_inputs);
  }
  note_rank_differences(stage, result);

  run_contexts(device, kernel, c, inputs, {outputs, copies}, checks, stage, result);
}

}  // namespace

RunResult run_candidate(Device& device, const Candidate& candidate, const Case& c, const std::vector<Tensor>& inputs,
                        std::vector<Tensor>& outputs, const RunChecks& checks) {
  if (inputs.size() != c.pass->inputs.size() || outputs.size() != c.pass->outputs.size()) {
    throw std::invalid_argument("run_candidate: inputs and outputs must be those of the pass");
  }
  RunResult result;
  const auto stop = [&](RunStatus status, std::string message) {
    result.status = status;
    result.message = std::move(message);
    result.outputs.clear();
    result.contexts.clear();
  };
  try {
    if (std::string why = why_unsupported(*candidate.kernel, device.info()); !why.empty()) {
      stop(RunStatus::unsupported, std::move(why));
      return result;
    }
    run_all(device, *candidate.kernel, c, inputs, outputs, checks, result);
    result.status = RunStatus::ok;
  } catch (const Stopped& stopped) {
    stop(stopped.status, stopped.message);
    if (!stopped.modified_input.empty()) result.modified_inputs.push_back(stopped.modified_input);
    if (!stopped.guard_violation.empty()) result.guard_violations.push_back(stopped.guard_violation);
    // The next check needs a fresh process: a rank that did not return is still running in this one.
    result.device_lost = stopped.status == RunStatus::crashed || stopped.status == RunStatus::timeout;
  } catch (const OutOfMemory& e) {
    stop(RunStatus::no_memory, e.what());
  } catch (const DeviceError& e) {
    stop(RunStatus::failed, e.what());
    result.device_lost = e.sticky();
  } catch (const std::bad_alloc&) {
    stop(RunStatus::no_memory, "the host ran out of memory");
  }
  return result;
}

}  // namespace checkop
