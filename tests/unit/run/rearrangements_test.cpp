// SPDX-License-Identifier: Apache-2.0
// The axes of rearrangements: their contexts, and computations whose sums depend on pages, on the number of queries, on
// other sequences or rows or on the micro-batch, which no other check sees.
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
  const char* const plugin = c.op->name == "all_reduce"        ? "message_faults"
                             : c.op->name == "paged_attention" ? "paged_faults"
                                                               : "packed_faults";
  Worker worker({{test_plugin(plugin)}, "cpu"});
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = make_outputs(c);
  return worker.run(candidate, c, inputs, outputs, checks, std::chrono::seconds(60));
}

/// The axes of rearrangements that found other bits, and those that compared any.
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

Case packed(bool with_key_bounds = false) {
  return gold_case(
      "varlen_attention", "forward", DType::f32,
      {{"tokens_q", 90}, {"tokens_k", 90}, {"q_heads", 2}, {"kv_heads", 1}, {"head_dim", 16}, {"seqs", 9}},
      with_key_bounds ? std::set<std::string, std::less<>>{"cu_seqlens_k"} : std::set<std::string, std::less<>>{});
}
Case grouped() {
  return gold_case("group_norm", "forward", DType::f32, {{"batch", 90}, {"group_bounds", 9}}, {"group_boundaries"});
}
Case of_experts() {
  return gold_case("masked_grouped_gemm", "forward", DType::f32,
                   {{"experts", 6}, {"capacity", 24}, {"k_dim", 64}, {"n_dim", 8}});
}
Case batched(bool with_denom = true) {
  return gold_case("policy_loss", "backward", DType::f32, {{"batch", 6}, {"seq", 33}},
                   with_denom ? std::set<std::string, std::less<>>{"denom"} : std::set<std::string, std::less<>>{});
}

const Names kPages{"pages in a random order", "pages in reverse", "other contents where no key lies"};
const Names kPhases{"one query at a time", "the last query of every sequence",
                    "the last query of the longest sequence alone", "chunks of 17 queries"};

const Names kDocuments{"the sequences in reverse", "without every second sequence",
                       "other tokens in every second sequence", "every second sequence twice as long"};
const Names kGroups{"the groups in reverse", "without every second group", "every second group in reverse",
                    "every second group twice as long"};
const Names kExperts{"experts with more room", "experts with half of their rows"};
const Names kBatches{"the first half of the batch, with the same denom",
                     "the second half of the batch, with the same denom",
                     "the last entry of the batch alone, with the same denom"};

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
  EXPECT_EQ(found_in(run("splits_in_sequence", packed(), checks_on(AxisSet::all()))).compared, kDocuments);
  EXPECT_EQ(found_in(run("sums_by_groups", grouped(), checks_on(AxisSet::all()))).compared, kGroups);
  EXPECT_EQ(found_in(run("splits_by_room", of_experts(), checks_on(AxisSet::all()))).compared, kExperts);
  EXPECT_EQ(found_in(run("averages_twice", batched(), checks_on(AxisSet::all()))).compared, kBatches);
}

TEST(Rearrangements, EveryRunHasTheFirstOfEachAxis) {
  Names found;
  for (const Context& context : contexts_of(paged(), open_cpu_device()->info(), RunChecks{}))
    if (context.rearrangement != nullptr) found.insert(context.what);
  EXPECT_EQ(found, (Names{"pages in a random order", "one query at a time"}));
}

/// A right computation whose bits depend on what they must not depend on.
struct Fault {
  const char* candidate;
  Case of;
  Names broken;      ///< at least
  const char* axis;  ///< the only one that shows it
};

std::vector<Fault> faults() {
  const Names few{"one query at a time", "the last query of every sequence",
                  "the last query of the longest sequence alone"};
  return {{"splits_by_batch", paged(), few, "phase"},
          {"splits_by_queries", paged(), few, "phase"},
          {"adds_by_address", paged(), {"pages in a random order", "pages in reverse"}, "pages"},
          {"splits_by_longest", packed(), {"every second sequence twice as long"}, "documents"},
          {"splits_across_pack",
           packed(),
           {"the sequences in reverse", "without every second sequence", "every second sequence twice as long"},
           "documents"},
          {"sums_by_groups", grouped(), {"without every second group"}, "documents"},
          {"splits_by_room", of_experts(), {"experts with more room"}, "documents"},
          {"splits_by_count", of_experts(), {"experts with half of their rows"}, "documents"},
          {"averages_twice", batched(), kBatches, "micro_batch"}};
}

TEST(Rearrangements, SumsThatDependOnWhatTheyMustNotAreCaught) {
  for (const Fault& fault : faults()) {
    const Case& c = fault.of;
    const RunResult result = run(fault.candidate, c, checks_on(AxisSet::all()));
    ASSERT_EQ(result.status, RunStatus::ok) << result.message;
    EXPECT_TRUE(result.guard_violations.empty() && result.modified_inputs.empty()) << fault.candidate;
    const Names broken = found_in(result).broken;
    for (const std::string& what : fault.broken) EXPECT_TRUE(broken.contains(what)) << fault.candidate << ": " << what;
    const std::vector<Demands> demands(c.pass->outputs.size());
    const auto judged = [&](const RunChecks& checks) {
      return judge(c, run(fault.candidate, c, checks), {}, demands, checks, /*accuracy=*/false);
    };
    for (const bool all : {false, true}) {
      if (!all && std::string_view(fault.axis) == "documents") continue;  // its first context may keep the parts
      const Judgment judgment = judged(checks_on(AxisSet::all(), all));
      EXPECT_EQ(judgment.kind, "invariance") << fault.candidate;
      EXPECT_NE(judgment.reason.find(std::string("(") + fault.axis + ": "), std::string::npos) << judgment.reason;
    }
    AxisSet others;
    for (const Axis each : all_axes())
      if (to_string(each) != fault.axis) others.insert(each);
    EXPECT_EQ(judged(checks_on(others)).verdict, Verdict::pass) << fault.candidate << " without " << fault.axis;
  }
}

const Names kMessages{"1031 elements before it and 15361 behind it",
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
      (Names{"1031 elements before it and 15361 behind it", "1048576 elements behind it", "17 elements before it"}));
  Case none = message();
  none.dims["numel"] = 0;
  EXPECT_EQ(found_in(run("in_order", none, checks_on(AxisSet::all()))).compared, Names{});
}

TEST(Rearrangements, EveryRunLengthensTheMessage) {
  Names found;
  for (const Context& context : contexts_of(message(), open_cpu_device()->info(), RunChecks{}))
    if (context.rearrangement != nullptr) found.insert(context.what);
  EXPECT_EQ(found, Names{"1031 elements before it and 15361 behind it"});
}

TEST(Rearrangements, SumsThatDependOnTheMessageAreCaughtByItsAxisAlone) {
  struct Fault {
    const char* candidate;
    Names broken;
  };
  const Fault faults[] = {
      {"in_order", {}},
      {"order_by_length", {"1031 elements before it and 15361 behind it", "1048576 elements behind it"}},
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
      const auto expect_holds = [&](DType dtype, double order) {
        Case c = gold_case(op->name, pass.name, dtype, message().dims);
        c.attrs.front() = order;
        const std::vector<Tensor> inputs = make_inputs(c, 1);
        std::vector<Tensor> outputs = make_outputs(c);
        const RunResult result =
            worker.run("native", c, inputs, outputs, checks_on({Axis::message}), std::chrono::seconds(60));
        EXPECT_EQ(found_in(result).compared, kMessages) << case_name(c) << " " << result.message;
        EXPECT_EQ(found_in(result).broken, Names{}) << case_name(c);
      };
      for (const double order : {-1, 0, 1}) expect_holds(DType::f32, order);
      expect_holds(DType::bf16, 0);
      expect_holds(DType::f16, 1);
      ++passes;
    }
  }
  EXPECT_EQ(passes, 6);
}

TEST(Rearrangements, SumsInFixedPartsAreNot) {
  EXPECT_EQ(found_in(run("fixed_split", paged(), checks_on(AxisSet::all()))).broken, Names{});
  EXPECT_EQ(found_in(run("splits_in_sequence", packed(), checks_on(AxisSet::all()))).broken, Names{});
}

// Without a denom the divisor of the mean depends on the batch.
TEST(Rearrangements, MicroBatchesNeedADenom) {
  EXPECT_EQ(found_in(run("averages_twice", batched(/*with_denom=*/false), checks_on(AxisSet::all()))).compared,
            Names{});
}

/// Contexts of all rearrangements that the native candidate of the case's operator ran, and those with other bits.
Found of_native(const Case& c) {
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = make_outputs(c);
  Worker worker({{native_plugin(std::string(c.op->name))}, "cpu"});
  return found_in(worker.run("native", c, inputs, outputs, checks_on(AxisSet::all()), std::chrono::seconds(60)));
}

TEST(Rearrangements, NativeAndTheContractHoldThemForEveryDtype) {
  struct Right {
    Case c;
    Names contexts;
  };
  const auto of_pass = [](Case c, const char* pass) {
    c.pass = find_pass(*c.op, pass);
    return c;
  };
  const Case fused = gold_case("linear_policy_loss", "forward", DType::f32,
                               {{"batch", 6}, {"seq", 9}, {"hidden", 33}, {"vocab", 65}}, {"denom"});
  std::vector<Right> all{{paged(), both()},
                         {packed(), kDocuments},
                         {packed(/*with_key_bounds=*/true), kDocuments},
                         {of_pass(packed(), "backward"), kDocuments},
                         {of_pass(packed(/*with_key_bounds=*/true), "backward"), kDocuments},
                         {grouped(), kGroups},
                         {batched(), kBatches},
                         {fused, kBatches},
                         {of_pass(fused, "backward"), kBatches}};
  for (Right& each : all) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      if (dtype != DType::f32 && (each.c.op->name == "group_norm" || each.c.op->name == "policy_loss")) continue;
      each.c.dtype = dtype;
      const Found found = of_native(each.c);
      EXPECT_EQ(found.compared, each.contexts) << each.c.op->name << '/' << each.c.pass->name;
      EXPECT_EQ(found.broken, Names{}) << each.c.op->name << '/' << each.c.pass->name;
    }
    const Contract contract = Contract::load(CHECKOP_SOURCE_DIR "/contracts/default.json");
    for (const OutputSpec& output : each.c.pass->outputs)
      EXPECT_EQ(contract.demands_for(each.c, output).batch_invariance, is_rearranged(*each.c.op, output.tensor))
          << each.c.op->name << ": " << output.tensor.name;
  }
}

}  // namespace
}  // namespace checkop::rearrangements_test
