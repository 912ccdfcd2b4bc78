// SPDX-License-Identifier: Apache-2.0
// Runs the positive control and applies its result to a report.
#include "session/control.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "base/error.hpp"
#include "base/paths.hpp"
#include "case/inputs.hpp"
#include "worker/worker.hpp"

namespace checkop {
namespace {

constexpr std::string_view kCandidate = "split_k_by_rows";
constexpr std::chrono::seconds kLimit{60};

/// A case with sums long enough, and rows enough, for each of the control's three ways to add up.
Case control_case() {
  Case c;
  c.op = find_operator("matmul");
  c.pass = find_pass(*c.op, "forward");
  c.dtype = DType::f32;
  c.dims = {{"batch", 1}, {"seq", 64}, {"k_dim", 256}, {"n_dim", 32}};
  return c;
}

/// The verdict of the invariance check on the control.
Judgment judge_control(const std::string& device, const AxisPlan& plan) {
  const Case c = control_case();
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = make_outputs(c);
  const RunChecks checks{false, true, false, plan};
  WorkerConfig config{{control_plugin(device == "cpu" ? "cpu" : "cuda")}, device};
  config.in_worker = device != "cpu";
  Worker worker(std::move(config));
  const RunResult run = worker.run(std::string(kCandidate), c, inputs, outputs, checks, kLimit);
  return judge(c, run, {}, {Demands()}, checks, /*accuracy=*/false);
}

}  // namespace

std::string control_plugin(const std::string& kind) {
  const auto beside = std::filesystem::path(shipped_kernels()).parent_path();
  return (beside / "controls" / kind / fmt::format("{}.so", kCandidate)).string();
}

Control run_control(const std::string& device, const AxisPlan& plan) {
  Control control;
  control.device = device;
  try {
    const Judgment judgment = judge_control(device, plan);
    control.caught = judgment.verdict == Verdict::fail && judgment.kind == "invariance";
    control.reason = judgment.verdict == Verdict::pass ? "the check found no batch dependence in it" : judgment.reason;
  } catch (const InputError& e) {
    control.reason = e.what();
  } catch (const EnvironmentError& e) {
    control.reason = e.what();
  }
  return control;
}

void void_passes(Report& report) {
  for (const Control& control : report.controls) {
    if (control.caught) continue;
    const bool cpu = control.device == "cpu";
    for (CaseRecord& record : report.records) {
      if (record.judgment.verdict != Verdict::pass || !record.checks.invariance) continue;
      if ((record.device.kind == "cpu") != cpu) continue;
      record.judged_by_run = true;
      record.judgment = {Verdict::error, "control",
                         fmt::format("the positive control {}, whose bits depend on the number of rows, was not caught "
                                     "on {}: {}",
                                     kCandidate, control.device, control.reason)};
    }
  }
}

void judge_as_a_whole(Report& report) {
  if (report.complete && !report.shard) {
    mark_vacuous(report);
    mark_insensitive(report);
  }
  void_passes(report);
}

}  // namespace checkop
