// SPDX-License-Identifier: Apache-2.0
// The axes pages, phase and message: their contexts; attention over pages whose sums depend on the pages, on the batch
// or on the number of queries, and all_reduce whose sums depend on the message, which no other check sees.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "case/axes.hpp"
#include "judge/verdict.hpp"
#include "run/invariance/contexts.hpp"
#include "support/contract_helper.hpp"
#include "support/rows_helper.hpp"
#include "support/run_helper.hpp"
#include "worker/worker.hpp"

namespace checkop::rearrangements_test {
namespace {

using Names = std::set<std::string>;

Case paged(int64_t tokens = 60) {
  return gold_case("paged_attention", "forward", DType::f32,
                   {{"tokens_q", tokens},
                    {"q_heads", 2},
                    {"kv_heads", 1},
                    {"head_dim", 16},
                    {"pages", 90},
                    {"page_size", 4},
                    {"seqs", 9},
                    {"max_pages", 16}},
                   {"lse"});
}

RunChecks checks_on(const AxisSet& axes, bool all = true) {
  RunChecks checks;
  checks.plan.all = all, checks.plan.axes = axes;
  return checks;
}

Case message(double order = 0) {
  Case c = gold_case("all_reduce", "forward", DType::f32, {{"leaves", 8}, {"numel", 1031}, {"world_size", 4}});
  c.attrs.front() = order;
  return c;
}

RunResult run(const std::string& candidate, const Case& c, const RunChecks& checks) {
  Worker worker({{test_plugin(c.op->name == "all_reduce" ? "message_faults" : "paged_faults")}, "cpu"});
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = make_outputs(c);
  return worker.run(candidate, c, inputs, outputs, checks, std::chrono::seconds(60));
}

/// What changed bits, and what compared some, of the axes of rearrangements.
struct Found {
  Names broken, compared;
};
Found found_in(const RunResult& result) {
  Found found;
  for (size_t k = 0; k < result.contexts.size(); ++k) {
    if (!is_of_rearrangements(result.contexts[k].axis)) continue;
    for (const OutputRun& output : result.outputs) {
      if (output.contexts[k].bits.compared > 0) found.compared.insert(result.contexts[k].what);
      if (output.contexts[k].bits.different > 0) found.broken.insert(result.contexts[k].what);
    }
  }
  return found;
}

const Names kPages{"pages in a random order", "pages in reverse", "other contents where no key lies"};
const Names kPhases{"one query at a time", "the last query of every sequence",
                    "the last query of the longest sequence alone", "chunks of 17 queries"};

Names both() {
  Names all = kPages;
  all.insert(kPhases.begin(), kPhases.end());
  return all;
}

TEST(Rearrangements, HaveContextsWhereTheyChangeSomething) {
  EXPECT_EQ(found_in(run("fixed_split", paged(), checks_on(AxisSet::all()))).compared, both());
  const Names longest = found_in(run("fixed_split", paged(2400), checks_on({Axis::phase}))).compared;
  EXPECT_TRUE(longest.contains("chunks of 128 queries") && longest.contains("chunks of 512 queries"));
  Case uncausal = paged();
  uncausal.attrs[0] = 0;  // what a query sees depends on those behind it
  EXPECT_EQ(found_in(run("fixed_split", uncausal, checks_on(AxisSet::all()))).compared, kPages);
}

TEST(Rearrangements, EveryRunHasTheFirstOfEachAxis) {
  Names found;
  for (const Context& context : contexts_of(paged(), open_cpu_device()->info(), RunChecks{}))
    if (context.rearrangement != nullptr) found.insert(context.what);
  EXPECT_EQ(found, (Names{"pages in a random order", "one query at a time"}));
}

TEST(Rearrangements, SumsThatDependOnWhatTheyMustNotAreCaught) {
  struct Fault {
    const char* candidate;
    Names broken;
    const char* axis;
  };
  const Fault faults[] = {
      {"fixed_split", {}, ""},
      {"splits_by_batch",
       {"one query at a time", "the last query of every sequence", "the last query of the longest sequence alone"},
       "phase"},
      {"splits_by_queries",
       {"one query at a time", "the last query of every sequence", "the last query of the longest sequence alone"},
       "phase"},
      {"adds_by_address", {"pages in a random order", "pages in reverse"}, "pages"}};
  for (const Fault& fault : faults) {
    const Case c = paged();
    const RunResult result = run(fault.candidate, c, checks_on(AxisSet::all()));
    ASSERT_EQ(result.status, RunStatus::ok) << result.message;
    EXPECT_TRUE(result.guard_violations.empty() && result.modified_inputs.empty()) << fault.candidate;
    const std::string axis = fault.axis;
    if (axis.empty()) {
      EXPECT_EQ(found_in(result).broken, fault.broken) << fault.candidate;
      continue;
    }
    for (const std::string& what : fault.broken)
      EXPECT_TRUE(found_in(result).broken.contains(what)) << fault.candidate << ": " << what;
    const std::vector<Demands> demands(c.pass->outputs.size());
    const auto judged = [&](const RunChecks& checks) {
      return judge(c, run(fault.candidate, c, checks), {}, demands, checks, /*accuracy=*/false);
    };
    for (const bool all : {false, true}) {
      const Judgment judgment = judged(checks_on(AxisSet::all(), all));
      EXPECT_EQ(judgment.kind, "invariance") << fault.candidate;
      EXPECT_NE(judgment.reason.find("(" + axis + ": "), std::string::npos) << judgment.reason;
    }
    AxisSet others;
    for (const Axis each : all_axes())
      if (to_string(each) != axis) others.insert(each);
    EXPECT_EQ(judged(checks_on(others)).verdict, Verdict::pass) << fault.candidate << " without " << axis;
  }
}

const Names kMessages{"4099 elements before it and 61441 behind it",
                      "1048576 elements behind it",
                      "17 elements before it",
                      "the first third alone",
                      "the second half alone",
                      "the last element alone",
                      "elements moved by one",
                      "elements in reverse"};

TEST(Rearrangements, MessagesAreLongerShorterAndMoved) {
  EXPECT_EQ(found_in(run("in_order", message(), checks_on(AxisSet::all()))).compared, kMessages);
  Case one = message();
  one.dims["numel"] = 1;
  EXPECT_EQ(
      found_in(run("in_order", one, checks_on(AxisSet::all()))).compared,
      (Names{"4099 elements before it and 61441 behind it", "1048576 elements behind it", "17 elements before it"}));
  Case none = message();
  none.dims["numel"] = 0;
  EXPECT_EQ(found_in(run("in_order", none, checks_on(AxisSet::all()))).compared, Names{});
}

TEST(Rearrangements, EveryRunLengthensTheMessage) {
  Names found;
  for (const Context& context : contexts_of(message(), open_cpu_device()->info(), RunChecks{}))
    if (context.rearrangement != nullptr) found.insert(context.what);
  EXPECT_EQ(found, Names{"4099 elements before it and 61441 behind it"});
}

TEST(Rearrangements, SumsThatDependOnTheMessageAreCaughtByItsAxisAlone) {
  struct Fault {
    const char* candidate;
    Names broken;
  };
  const Fault faults[] = {
      {"in_order", {}},
      {"order_by_length", {"4099 elements before it and 61441 behind it", "1048576 elements behind it"}},
      {"order_by_chunk", kMessages}};
  for (const Fault& fault : faults) {
    const Case c = message(-1);
    EXPECT_EQ(found_in(run(fault.candidate, c, checks_on(AxisSet::all()))).broken, fault.broken) << fault.candidate;
    if (fault.broken.empty()) continue;
    const std::vector<Demands> demands(c.pass->outputs.size());
    const auto judged = [&](const RunChecks& checks) {
      return judge(c, run(fault.candidate, c, checks), {}, demands, checks, /*accuracy=*/false);
    };
    for (const bool all : {false, true}) {
      const Judgment judgment = judged(checks_on(AxisSet::all(), all));
      EXPECT_EQ(judgment.kind, "invariance") << fault.candidate;
      EXPECT_NE(judgment.reason.find("(message: "), std::string::npos) << judgment.reason;
    }
    AxisSet others;
    for (const Axis each : all_axes())
      if (each != Axis::message) others.insert(each);
    EXPECT_EQ(judged(checks_on(others)).verdict, Verdict::pass) << fault.candidate;
  }
}

/// The accuracy of the case itself is right, too: its order is the one that is asked for.
TEST(Rearrangements, OrderByLengthHasTheRightBitsInItsOwnCase) {
  const Contract contract = Contract::load(CHECKOP_SOURCE_DIR "/contracts/default.json");
  const Case c = message(0);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const auto held = [&](const char* candidate) {
    std::vector<Tensor> outputs = make_outputs(c);
    Worker worker({{test_plugin("message_faults")}, "cpu"});
    const RunResult result = worker.run(candidate, c, inputs, outputs, RunChecks{}, std::chrono::seconds(60));
    EXPECT_EQ(result.status, RunStatus::ok) << result.message;
    return judge_outputs(c, inputs, outputs, contract, {}, 1).front().gates.front().holds;
  };
  EXPECT_TRUE(held("in_order"));
  EXPECT_TRUE(held("order_by_length"));
  EXPECT_FALSE(held("order_by_chunk"));
}

/// all_reduce, reduce_scatter and all_gather.
TEST(Rearrangements, NativeHoldsMessagesForEveryDtypeAndOrder) {
  int64_t passes = 0;
  for (const Operator* op : operators()) {
    if (op->parallel_dim != "leaves") continue;
    Worker worker({{native_plugin(op->name)}, "cpu"});
    for (const Pass& pass : op->passes) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        for (const double order : {-1, 0, 1}) {
          Case c = gold_case(op->name, pass.name, dtype, message().dims);
          c.attrs.front() = order;
          const std::vector<Tensor> inputs = make_inputs(c, 1);
          std::vector<Tensor> outputs = make_outputs(c);
          const RunResult result =
              worker.run("native", c, inputs, outputs, checks_on(AxisSet::all()), std::chrono::seconds(60));
          EXPECT_EQ(found_in(result).compared, kMessages) << case_name(c) << " " << result.message;
          EXPECT_EQ(found_in(result).broken, Names{}) << case_name(c);
        }
      }
      ++passes;
    }
  }
  EXPECT_EQ(passes, 6);
}

TEST(Rearrangements, NativeAndTheContractHoldThemForEveryDtype) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Case c = paged();
    c.dtype = dtype;
    const std::vector<Tensor> inputs = make_inputs(c, 1);
    std::vector<Tensor> outputs = make_outputs(c);
    Worker worker({{native_plugin("paged_attention")}, "cpu"});
    const RunResult result =
        worker.run("native", c, inputs, outputs, checks_on(AxisSet::all()), std::chrono::seconds(60));
    EXPECT_EQ(found_in(result).compared, both());
    EXPECT_EQ(found_in(result).broken, Names{});
  }
  const Contract contract = Contract::load(CHECKOP_SOURCE_DIR "/contracts/default.json");
  for (const OutputSpec& output : paged().pass->outputs)
    EXPECT_TRUE(contract.demands_for(paged(), output).batch_invariance) << output.tensor.name;
}

}  // namespace
}  // namespace checkop::rearrangements_test
