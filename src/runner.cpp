// SPDX-License-Identifier: Apache-2.0
// Runs one candidate on one case: the full batch twice, then some of its rows alone.
#include "runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "stage.hpp"

namespace checkop {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// The second run's output against the first's.
OutputRun compare_runs(GuardedBuffer& second, const Tensor& first) {
  OutputRun result;
  const DType dtype = first.dtype;
  const Poison& poison = poison_of(dtype);
  second.for_each_block([&](const std::byte* block, int64_t begin, int64_t n) {
    const size_t width = info(dtype).bytes;
    const std::byte* expected = first.bytes.data() + static_cast<size_t>(begin) * width;
    result.repeat.compared += n;
    if (std::memcmp(expected, block, static_cast<size_t>(n) * width) == 0) return;
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t a = load_bits(dtype, expected, i), b = load_bits(dtype, block, i);
      if (a == b) continue;
      if (a == poison.output[0] || b == poison.output[1]) {
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

/// Adds a sentence for every input whose bytes are no longer the host's, unless one says so of it already.
/// `rows[i]` is where buffer i's content begins on the host; nullptr for one that is not to be looked at.
void note_modified_inputs(const std::vector<BufferPtr>& buffers, const std::vector<const std::byte*>& rows,
                          const std::vector<Tensor>& host, std::vector<std::string>& modified) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!buffers[i] || rows[i] == nullptr) continue;
    const std::string prefix = host[i].name + ": ";
    const auto known = [&](const std::string& line) { return line.starts_with(prefix); };
    if (std::any_of(modified.begin(), modified.end(), known)) continue;
    const BitDifference bits = buffers[i]->difference_from(rows[i]);
    if (bits.different == 0) continue;
    modified.push_back(fmt::format("{}{} element{} changed, first at index {}", prefix, bits.different,
                                   bits.different == 1 ? "" : "s", bits.first_index));
  }
}

std::vector<const std::byte*> whole_tensors(const std::vector<Tensor>& host) {
  std::vector<const std::byte*> rows;
  for (const Tensor& tensor : host) rows.push_back(tensor.bytes.data());
  return rows;
}

/// Rows [begin, end) alone, against what the full batch left in `outputs`. `whole` holds the full batch's buffers of
/// inputs that are not per-row.
void run_subset(Device& device, const checkop_kernel& kernel, const Case& c, const std::vector<Tensor>& host_inputs,
                const std::vector<BufferPtr>& whole, int64_t begin, int64_t end, const std::vector<Tensor>& outputs,
                const RunChecks& checks, RunResult& result) {
  Stage stage(device, kernel, slice_rows(c, begin, end), fmt::format(" (rows [{},{}) alone)", begin, end));
  std::vector<const std::byte*> host_rows(whole.size(), nullptr);  // whole tensors are compared once, at the end
  for (size_t i = 0; i < whole.size(); ++i) {
    const TensorSpec& spec = c.pass->inputs[i];
    if (!is_per_row(*c.op, spec) || !is_present(c, spec)) {
      stage.inputs.push_back(whole[i]);
      continue;
    }
    const auto first = begin * matrix_view(*c.op, spec, host_inputs[i].shape).columns;
    host_rows[i] = host_inputs[i].bytes.data() + static_cast<size_t>(first) * info(host_inputs[i].dtype).bytes;
    stage.inputs.push_back(stage.make_buffer("input", spec));
    stage.inputs.back()->upload(host_rows[i]);
  }
  stage.make_outputs_and_workspace();
  bool supported = true;
  try {
    stage.launch(0);
  } catch (const Stopped& stopped) {
    if (stopped.status != RunStatus::unsupported) throw;
    supported = false;  // a candidate may demand a multiple of so many rows: then these say nothing
  }
  if (checks.memory) {
    stage.check_guards(result.guard_violations);
    note_modified_inputs(stage.inputs, host_rows, host_inputs, result.modified_inputs);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorSpec& spec = c.pass->outputs[i].tensor;
    if (!is_per_row(*c.op, spec) || !stage.outputs[i]) continue;
    SubsetResult subset{begin, end, {}};
    if (supported) {
      const int64_t first = begin * matrix_view(*c.op, spec, outputs[i].shape).columns;
      subset.bits = stage.outputs[i]->difference_from(outputs[i].bytes.data() +
                                                      static_cast<size_t>(first) * info(outputs[i].dtype).bytes);
      if (subset.bits.different > 0) subset.bits.first_index += first;
    }
    result.outputs[i].subsets.push_back(subset);
  }
}

void run_all(Device& device, const checkop_kernel& kernel, const Case& c, const std::vector<Tensor>& inputs,
             std::vector<Tensor>& outputs, const RunChecks& checks, RunResult& result) {
  Stage stage(device, kernel, c, "");
  auto start = Clock::now();
  try {
    for (size_t i = 0; i < inputs.size(); ++i) {
      stage.inputs.push_back(stage.make_buffer("input", c.pass->inputs[i]));
      if (stage.inputs[i]) stage.inputs[i]->upload(inputs[i].bytes.data());
    }
    result.transfer_ms = ms_since(start);
    stage.make_outputs_and_workspace();
  } catch (const DeviceError& e) {
    // The candidate has not run yet: the machine is too small for the case, or its device is gone.
    throw Stopped{RunStatus::no_device, fmt::format("could not be prepared: {}", e.what())};
  }

  result.message = stage.launch(0);
  result.run_ms = stage.elapsed_ms;
  start = Clock::now();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (stage.outputs[i]) stage.outputs[i]->download(outputs[i].bytes.data());
  }
  result.transfer_ms += ms_since(start);

  result.outputs.resize(outputs.size());
  // After each run: a second run may undo what the first one did to an input.
  if (checks.memory) note_modified_inputs(stage.inputs, whole_tensors(inputs), inputs, result.modified_inputs);
  if (checks.determinism || checks.memory) {
    stage.launch(1);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (stage.outputs[i]) result.outputs[i] = compare_runs(*stage.outputs[i], outputs[i]);
    }
  }
  if (checks.memory) {
    stage.check_guards(result.guard_violations);
    note_modified_inputs(stage.inputs, whole_tensors(inputs), inputs, result.modified_inputs);
  }

  const auto per_row = [&](const OutputSpec& spec) { return is_per_row(*c.op, spec.tensor); };
  if (!checks.invariance || std::none_of(c.pass->outputs.begin(), c.pass->outputs.end(), per_row)) return;
  // Only what the subsets use stays on the device: the largest cases fill it.
  std::vector<BufferPtr> whole = std::move(stage.inputs);
  for (size_t i = 0; i < whole.size(); ++i) {
    if (is_per_row(*c.op, c.pass->inputs[i])) whole[i].reset();
  }
  stage.outputs.clear();
  stage.workspace.reset();
  for (const auto& [begin, end] : subset_ranges(row_count(c))) {
    run_subset(device, kernel, c, inputs, whole, begin, end, outputs, checks, result);
  }
  if (checks.memory) note_modified_inputs(whole, whole_tensors(inputs), inputs, result.modified_inputs);
}

}  // namespace

std::string_view to_string(RunStatus status) {
  switch (status) {
    case RunStatus::ok:
      return "ok";
    case RunStatus::unsupported:
      return "unsupported";
    case RunStatus::failed:
      return "failed";
    case RunStatus::crashed:
      return "crashed";
    case RunStatus::timeout:
      return "timeout";
    case RunStatus::no_device:
      return "no_device";
  }
  return "?";
}

std::string why_unsupported(const checkop_kernel& kernel, const DeviceInfo& device) {
  if (kernel.device == CHECKOP_CPU && device.kind != "cpu") {
    return fmt::format("runs on the CPU, not on '{}'; use --device cpu", device.kind);
  }
  if (kernel.device == CHECKOP_CUDA && device.kind != "cuda") {
    return fmt::format("runs on a CUDA device, not on '{}'; use --device cuda", device.kind);
  }
  if (kernel.device != CHECKOP_CUDA) return "";
  if (kernel.min_arch > 0 && device.arch < kernel.min_arch) {
    return fmt::format("needs sm_{}, device is sm_{}", kernel.min_arch, device.arch);
  }
  if (kernel.max_arch > 0 && device.arch > kernel.max_arch) {
    return fmt::format("runs up to sm_{}, device is sm_{}", kernel.max_arch, device.arch);
  }
  return "";
}

std::vector<Tensor> make_outputs(const Case& c) {
  std::vector<Tensor> outputs;
  for (const OutputSpec& spec : c.pass->outputs) {
    if (is_present(c, spec.tensor)) {
      outputs.emplace_back(std::string(spec.tensor.name), dtype_of(c, spec.tensor), shape_of(c, spec.tensor));
    } else {
      outputs.emplace_back();
    }
  }
  return outputs;
}

std::vector<std::pair<int64_t, int64_t>> subset_ranges(int64_t rows) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  if (rows <= 1) return ranges;
  const auto add = [&](int64_t begin, int64_t end) {
    const std::pair range{begin, end};
    const bool whole_batch = begin == 0 && end == rows;
    if (!whole_batch && std::find(ranges.begin(), ranges.end(), range) == ranges.end()) ranges.push_back(range);
  };
  add(0, 1);
  add(rows - 1, rows);
  add(rows / 3, std::min(rows / 3 + 5, rows));
  if (rows >= 4) add(0, rows / 2);
  return ranges;
}

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
  } catch (const DeviceError& e) {
    stop(RunStatus::failed, e.what());
    result.device_lost = e.sticky();
  } catch (const std::bad_alloc&) {
    stop(RunStatus::failed, "the host ran out of memory");
  }
  return result;
}

}  // namespace checkop
