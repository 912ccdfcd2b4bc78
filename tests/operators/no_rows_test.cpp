// SPDX-License-Identifier: Apache-2.0
// Cases without rows: the results of every operator, and what a candidate can still get wrong.
#include <gtest/gtest.h>

#include <cstring>

#include "case/inputs.hpp"
#include "device/device.hpp"
#include "device/plugin.hpp"
#include "judge/verdict.hpp"
#include "report/report.hpp"
#include "run/runner.hpp"
#include "support/built.hpp"
#include "support/gold_helper.hpp"
#include "worker/worker.hpp"

namespace checkop::no_rows_test {
namespace {

/// Both passes of every operator that has rows, each row dimension 0 in turn, with and without optional inputs.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Operator* op : operators()) {
    for (const std::string_view none : split_dims(op->row_dims)) {
      for (const Pass& pass : op->passes) {
        std::set<std::string, std::less<>> optionals;
        for (const std::string_view name : optionals_of(pass)) optionals.emplace(name);
        Case c = fitted(gold_case(op->name, pass.name, DType::bf16, test_dims(*op, 3)));
        c.dims.find(none)->second = 0;
        all.push_back(c);
        if (optionals.empty()) continue;
        c.optionals = optionals;
        all.push_back(c);
      }
    }
  }
  return all;
}

struct Judged {
  std::vector<Comparison> comparisons;
  Judgment judgment;
};

Judged judged(const Case& c, const Candidate& candidate) {
  static const Contract contract = Contract::load(std::string(CHECKOP_SOURCE_DIR) + "/contracts/default.json");
  const auto device = open_cpu_device();
  const std::vector<Tensor> inputs = make_inputs(c, 2);
  std::vector<Tensor> outputs = make_outputs(c);
  std::vector<Demands> demands;
  for (const OutputSpec& spec : c.pass->outputs) demands.push_back(contract.demands_for(c, spec));
  const RunResult run = run_candidate(*device, candidate, c, inputs, outputs, RunChecks{});
  Judged result;
  if (run.status == RunStatus::ok) result.comparisons = judge_outputs(c, inputs, outputs, contract, {}, 2);
  result.judgment = judge(c, run, result.comparisons, demands, RunChecks{}, true);
  return result;
}

Candidate candidate_of(const Case& c, const std::string& path) {
  for (const Candidate& candidate : load_plugin(path)) {
    if (candidate.op == c.op->name && candidate.pass == c.pass->name) return candidate;
  }
  throw std::logic_error("no candidate in " + path);
}

TEST(NoRows, EveryOperatorPassesAndSaysWhatWasSeen) {
  int empty = 0, sums = 0;
  for (const Case& c : cases()) {
    for (const std::string& path : {std::string(kPluginFolder) + "/perfect.so", native_plugin(c.op->name)}) {
      const Judged result = judged(c, candidate_of(c, path));
      const std::string name = case_name(c) + "/" + std::string(c.pass->name) + " " + path;
      EXPECT_EQ(result.judgment.verdict, Verdict::pass) << name << ": " << result.judgment.reason;
      bool any_sum = false;
      for (size_t i = 0; i < result.comparisons.size(); ++i) {
        const TensorSpec& spec = c.pass->outputs[i].tensor;
        if (!is_present(c, spec)) continue;
        const Comparison& comparison = result.comparisons[i];
        EXPECT_EQ(comparison.count, comparison.expected) << name;
        // Outputs of a transposed input have a column for each row.
        EXPECT_EQ(comparison.count == 0, is_per_row(*c.op, spec) || spec.name.ends_with("_t"))
            << name << " " << spec.name;
        // Sums over no rows are 0, and the log-sum-exp of a query that belongs to none is -inf.
        const bool is_zero = comparison.count > 0 && !is_carried(c, spec) && spec.name != "lse";
        EXPECT_EQ(comparison.gold_is_zero, is_zero) << name << " " << spec.name;
        any_sum |= comparison.count > 0;
      }
      EXPECT_EQ(result.judgment.reason,
                any_sum ? "no rows: the launch, the memory and what sums over rows" : "no rows: launch and memory only")
          << name;
      (any_sum ? sums : empty) += 1;
    }
  }
  EXPECT_GT(empty, 30);
  EXPECT_GT(sums, 10);
}

Case weight_gradients() {
  return gold_case("lm_head", "backward", DType::f32, {{"batch", 0}, {"seq", 3}, {"hidden", 5}, {"vocab", 7}},
                   {"bias"});
}

/// Writes `value` to every element of every output.
template <int power>
checkop_status fill_outputs(const checkop_call* call) {
  for (int32_t i = 0; i < call->n_outputs; ++i) {
    int64_t count = 1;
    for (int32_t d = 0; d < call->outputs[i].rank; ++d) count *= call->outputs[i].shape[d];
    for (int64_t e = 0; e < count; ++e) {
      static_cast<float*>(call->outputs[i].data)[e] = power == 0 ? 0.0f : std::ldexp(1.0f, power);
    }
  }
  return CHECKOP_OK;
}
checkop_status return_early(const checkop_call*) { return CHECKOP_OK; }
checkop_status write_one_row(const checkop_call* call) {
  static_cast<float*>(call->outputs[0].data)[0] = 0.0f;
  return fill_outputs<0>(call);
}
checkop_status refuse(const checkop_call*) { return CHECKOP_FAILED; }

Judgment judgment_of(checkop_status (*launch)(const checkop_call*)) {
  const checkop_kernel kernel{
      sizeof(checkop_kernel), "test", "lm_head", "backward", CHECKOP_CPU, 0, 0, nullptr, launch};
  return judged(weight_gradients(), {"test", "lm_head", "backward", "", "", &kernel}).judgment;
}

TEST(NoRows, WeightGradientsMustBeWrittenAndZero) {
  EXPECT_EQ(judgment_of(fill_outputs<0>).verdict, Verdict::pass);
  EXPECT_EQ(judgment_of(return_early).kind, "unwritten");
  EXPECT_EQ(judgment_of(fill_outputs<-140>).kind, "accuracy");
}

TEST(NoRows, MemoryAndStatusCount) {
  EXPECT_EQ(judgment_of(write_one_row).kind, "guard");
  EXPECT_EQ(judgment_of(refuse).kind, "candidate");
}

TEST(NoRows, WithoutTheMemoryCheckNothingIsLeft) {
  Case c = gold_case("logp", "forward", DType::f32, {{"batch", 0}, {"seq", 3}, {"vocab", 7}});
  RunResult run;
  run.status = RunStatus::ok;
  run.outputs.resize(1);
  const RunChecks memory, none{false, false, false};
  EXPECT_EQ(judge(c, run, {Comparison{}}, {Demands{}}, memory, true).verdict, Verdict::pass);
  EXPECT_EQ(judge(c, run, {Comparison{}}, {Demands{}}, none, true).verdict, Verdict::skipped);
  c.dims["batch"] = 1;  // a case with rows is vacuous if nothing was compared
  EXPECT_EQ(judge(c, run, {Comparison{}}, {Demands{}}, memory, true).verdict, Verdict::vacuous);
}

TEST(NoRows, EmptyTensorsTravelToTheWorkerAndBack) {
  const Case c = weight_gradients();
  Worker worker({{native_plugin("lm_head")}, "cpu"});
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = make_outputs(c);
  const RunResult result = worker.run("native", c, inputs, outputs, RunChecks{}, std::chrono::seconds(60));
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  EXPECT_EQ(outputs[0].count(), 0);
  for (int64_t i = 0; i < outputs[1].count(); ++i) EXPECT_EQ(outputs[1].at(i), 0.0);
}

TEST(NoRows, AReportOfThemAloneIsNotVacuous) {
  Report report;
  report.records.resize(1);
  report.records[0].c = weight_gradients();
  report.records[0].judgment = {Verdict::pass, "", ""};
  report.records[0].comparisons.resize(3);
  report.records[0].comparisons[1].count = 35;
  report.records[0].comparisons[1].gold_is_zero = true;
  mark_vacuous(report);
  EXPECT_EQ(report.records[0].judgment.verdict, Verdict::pass);
  report.records[0].c.dims["batch"] = 1;
  mark_vacuous(report);
  EXPECT_EQ(report.records[0].judgment.verdict, Verdict::vacuous);
}

}  // namespace
}  // namespace checkop::no_rows_test
