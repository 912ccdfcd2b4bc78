// SPDX-License-Identifier: Apache-2.0
// Contexts: which ones a case gets and their cost; candidates that each break one axis, caught by that axis.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "case/axes.hpp"
#include "case/inputs.hpp"
#include "judge/verdict.hpp"
#include "run/invariance/bisect.hpp"
#include "run/invariance/contexts.hpp"
#include "run/runner.hpp"
#include "support/device_helper.hpp"
#include "support/gold_helper.hpp"
#include "support/run_helper.hpp"
#include "worker/worker.hpp"

namespace checkop::invariance_test {
namespace {

constexpr AxisPlan kAll{true};
const auto kAxesOfProducts = static_cast<size_t>(
    std::ranges::count_if(all_axes(), [](Axis axis) { return axis != Axis::ranks && !is_of_rearrangements(axis); }));

Case product_case(int64_t batch, int64_t seq, int64_t k = 64, int64_t n = 8, DType dtype = DType::f32) {
  return gold_case("matmul", "forward", dtype, {{"batch", batch}, {"seq", seq}, {"k_dim", k}, {"n_dim", n}});
}

DeviceInfo cpu() {
  DeviceInfo device;
  device.kind = "cpu";
  return device;
}

std::set<Axis> axes_of(const std::vector<Context>& contexts) {
  std::set<Axis> axes;
  for (const Context& context : contexts) axes.insert(context.axis);
  return axes;
}

TEST(Contexts, EveryAxisHasSome) {
  std::set<Axis> all(all_axes().begin(), all_axes().end());
  all.erase(Axis::ranks);  // tested in ranks_test.cpp
  for (const Axis axis : all_axes())
    if (is_of_rearrangements(axis)) all.erase(axis);  // tested in rearrangements_test.cpp
  EXPECT_EQ(axes_of(plan_contexts(product_case(2, 20), cpu(), kAll)), all);
}

TEST(Contexts, DefaultRunHasFourOfRows) {
  const auto contexts = plan_contexts(product_case(2, 20), cpu(), {});
  EXPECT_EQ(contexts.size(), 4u);
  EXPECT_EQ(axes_of(contexts), (std::set<Axis>{Axis::neighbours, Axis::position, Axis::batch}));
}

TEST(Contexts, AxesThatWereNotAskedForAreLeftOut) {
  AxisPlan plan = kAll;
  plan.axes = {Axis::chunks, Axis::repetition};
  EXPECT_EQ(axes_of(plan_contexts(product_case(2, 20), cpu(), plan)), (std::set<Axis>{Axis::repetition, Axis::chunks}));
}

TEST(Contexts, RowsExistAndFillTheLaunch) {
  for (const int64_t rows : {1, 2, 3, 5, 16, 17, 40, 257, 300, 1000}) {
    for (const AxisPlan& plan : {AxisPlan{}, kAll}) {
      const Case c = product_case(1, rows);
      for (const Context& context : plan_contexts(c, cpu(), plan)) {
        EXPECT_EQ(row_count(context_case(c, context)), std::ssize(context.rows)) << rows << context.what;
        for (const int64_t row : context.rows) {
          const int64_t source = row < 0 ? ~row : row;
          ASSERT_TRUE(source >= 0 && source < rows) << rows << context.what;
        }
      }
    }
  }
}

TEST(Contexts, NoRowsAskForNothing) { EXPECT_TRUE(plan_contexts(product_case(0, 4), cpu(), kAll).empty()); }

TEST(Contexts, OperatorWithoutRowsHasAxesOfLaunchesAlone) {
  const Case c = gold_case("grpo_loss", "forward", DType::f32, {{"batch", 4}, {"seq", 4}, {"vocab", 31}});
  const auto contexts = plan_contexts(c, cpu(), kAll);
  EXPECT_FALSE(contexts.empty());
  for (const Context& context : contexts) EXPECT_FALSE(is_of_rows(context.axis)) << context.what;
}

// A change that affects only single rows must show in enough elements, although a launch of one row has few.
TEST(Contexts, SingleRowsAreTakenFromManyPlaces) {
  std::set<int64_t> places;
  for (const Context& context : plan_contexts(product_case(2, 500, 64, 8), cpu(), kAll)) {
    if (context.axis == Axis::batch && context.rows.size() == 1) places.insert(context.rows[0]);
  }
  EXPECT_GE(places.size(), 64u);
}

// find_proof() relies on this.
TEST(Contexts, EveryAxisOfRowsComparesEveryRowButTheFirst) {
  for (const int64_t rows : {7, 40, 300, 2000, 65536}) {
    std::map<Axis, std::set<int64_t>> compared;
    for (const Context& context : plan_contexts(product_case(1, rows, 256, 256), cpu(), kAll)) {
      if (!is_of_rows(context.axis)) continue;
      for (const int64_t row : context.rows) {
        if (row > 0) compared[context.axis].insert(row);
      }
    }
    EXPECT_EQ(compared.size(), 7u);
    for (const auto& [axis, seen] : compared) EXPECT_EQ(std::ssize(seen), rows - 1) << to_string(axis) << " " << rows;
  }
}

/// All launches of a plan, including twins and the runner's own two.
double total_cost(const Case& c, const std::vector<Context>& contexts) {
  double cost = 2;
  std::set<std::pair<int64_t, int64_t>> twins;
  for (const Context& context : contexts) {
    cost += context.launches * cost_of(c, cpu(), context);
    if (!context.has_twin() || !twins.insert(context.twin).second) continue;
    Context plain;
    plain.rows.resize(static_cast<size_t>(context.twin.second - context.twin.first));
    cost += cost_of(c, cpu(), plain);
  }
  return cost;
}

TEST(Contexts, LargeCaseCostsAtMostTwentyLaunchesAndKeepsEveryAxis) {
  for (const int64_t rows : {4096, 65536}) {
    const Case c = product_case(2, rows / 2, 4096, 4096, DType::bf16);
    const auto contexts = plan_contexts(c, cpu(), kAll);
    EXPECT_EQ(axes_of(contexts).size(), kAxesOfProducts) << rows;
    EXPECT_LE(total_cost(c, contexts), kMostLaunches) << rows;
  }
}

// Like decoding: a launch of one row reads all of the weights.
TEST(Contexts, CaseWhoseWeightsOutweighItsRowsKeepsEveryAxis) {
  DeviceInfo gpu;
  gpu.kind = "cuda", gpu.multiprocessors = 132;
  for (const DeviceInfo& device : {cpu(), gpu}) {
    const auto contexts = plan_contexts(product_case(1, 64, 14336, 16384, DType::bf16), device, kAll);
    EXPECT_EQ(axes_of(contexts).size(), kAxesOfProducts) << device.kind;
  }
}

TEST(Contexts, RepetitionKeepsItsNumberOfLaunches) {
  for (const int64_t rows : {40, 65536}) {
    AxisPlan plan = kAll;
    plan.axes = {Axis::repetition};
    int launches = 0;
    for (const Context& context : plan_contexts(product_case(1, rows, 1024, 1024), cpu(), plan)) {
      launches += context.launches;
    }
    EXPECT_EQ(launches, 20) << rows;
  }
}

TEST(Contexts, WaveEdgesFollowTheMultiprocessors) {
  const auto has = [](const DeviceInfo& device, int64_t rows) {
    const auto contexts = plan_contexts(product_case(1, 20000, 64, 1024), device, kAll);
    return std::any_of(contexts.begin(), contexts.end(), [&](const Context& context) {
      return context.axis == Axis::batch && std::ssize(context.rows) == rows;
    });
  };
  DeviceInfo gpu;
  gpu.kind = "cuda", gpu.multiprocessors = 132;
  // 1024 columns are 8 tiles: 132 SMs hold 16 rows of tiles at once, and 33 in two waves.
  for (const int64_t rows : {17 * 128, 33 * 128, 33 * 128 + 1}) {
    EXPECT_TRUE(has(gpu, rows)) << rows;
    EXPECT_FALSE(has(cpu(), rows)) << rows;
  }
}

// --- the axes at work

/// Runs a candidate of a test plugin in a fresh process on all axes.
RunResult run_all_axes(const std::string& candidate, const Case& c, const std::string& plugin = "axis_faults") {
  Worker worker({{test_plugin(plugin)}, "cpu"});
  const auto inputs = make_inputs(c, 1);
  auto outputs = make_outputs(c);
  RunChecks checks;
  checks.plan.all = true;
  return worker.run(candidate, c, inputs, outputs, checks, std::chrono::seconds(60));
}

std::set<std::string_view> broken_axes(const RunResult& result) {
  std::set<std::string_view> broken;
  for (size_t k = 0; k < result.contexts.size(); ++k) {
    for (const OutputRun& output : result.outputs) {
      if (output.contexts[k].bits.different > 0) broken.insert(to_string(result.contexts[k].axis));
    }
  }
  return broken;
}

struct AxisFault {
  const char* candidate;
  std::set<std::string_view> broken;
  const char* named;  ///< in the verdict
};

void PrintTo(const AxisFault& fault, std::ostream* out) { *out << fault.candidate; }

class BrokenAxis : public testing::TestWithParam<AxisFault> {};

TEST_P(BrokenAxis, IsCaughtAndNamed) {
  const Case c = product_case(2, 20);
  const RunResult result = run_all_axes(GetParam().candidate, c);
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  EXPECT_EQ(broken_axes(result), GetParam().broken);
  RunChecks checks;
  const Judgment judgment = judge(c, result, {}, {Demands()}, checks, /*accuracy=*/false);
  EXPECT_EQ(judgment.verdict, Verdict::fail);
  EXPECT_NE(judgment.reason.find(std::string("(") + GetParam().named + ": "), std::string::npos) << judgment.reason;
}

INSTANTIATE_TEST_SUITE_P(
    Nine, BrokenAxis,
    testing::Values(AxisFault{"batch_dependent_tile", {"batch", "chunks"}, "batch"},
                    AxisFault{"position_dependent_order", {"position", "grouping", "batch", "chunks"}, "position"},
                    AxisFault{
                        "neighbour_leak", {"neighbours", "position", "grouping", "batch", "chunks"}, "neighbours"},
                    AxisFault{"padding_leak", {"row_stride"}, "row_stride"},
                    AxisFault{"chunk_dependent_split", {"batch", "chunks", "padding"}, "batch"},
                    AxisFault{"alignment_dependent_path", {"alignment", "layout"}, "alignment"},
                    AxisFault{"stale_workspace", {"workspace"}, "workspace"},
                    AxisFault{"uninitialised_read", {"outputs"}, "outputs"},
                    AxisFault{"first_call_differs", {"first_call"}, "first_call"}),
    [](const auto& each) { return std::string(each.param.candidate); });

struct LayoutFault {
  const char* candidate;
  Case c;
  Arrangement arrangement;  ///< the only one that shows it
};

void PrintTo(const LayoutFault& fault, std::ostream* out) { *out << fault.candidate; }

std::vector<LayoutFault> layout_faults() {
  const Case product = product_case(2, 20);
  return {{"ignores_column_stride", product, Arrangement::columns_apart},
          {"ignores_storage_offset", product, Arrangement::shifted_odd},
          {"copies_expanded_rows", product, Arrangement::expanded_rows},
          {"copies_expanded_gradient",
           gold_case("silu", "backward", DType::f32, {{"batch", 2}, {"seq", 20}, {"hidden", 16}}),
           Arrangement::expanded_upstream},
          {"reads_ids_as_int64",
           gold_case("embedding", "forward", DType::f32, {{"batch", 2}, {"seq", 20}, {"vocab", 50}, {"hidden", 16}}),
           Arrangement::other_integers},
          {"reads_ids_as_int32",
           gold_case("moe_combine", "forward", DType::f32,
                     {{"batch", 2}, {"seq", 20}, {"topk", 2}, {"rows", 80}, {"hidden", 16}}),
           Arrangement::other_integers}};
}

class BrokenLayout : public testing::TestWithParam<LayoutFault> {};

// Every other axis, and the comparison with the gold, pass.
TEST_P(BrokenLayout, IsCaughtByItsArrangementAlone) {
  const auto& [candidate, c, arrangement] = GetParam();
  const RunResult result = run_all_axes(candidate, c, "layout_faults");
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  EXPECT_TRUE(result.guard_violations.empty() && result.modified_inputs.empty());
  std::set<std::string> broken;
  for (size_t k = 0; k < result.contexts.size(); ++k)
    if (result.outputs[0].contexts[k].bits.different > 0) broken.insert(result.contexts[k].what);
  EXPECT_EQ(broken, std::set<std::string>{std::string(describe(arrangement))});
  const Judgment judgment = judge(c, result, {}, {Demands()}, {}, /*accuracy=*/false);
  EXPECT_EQ(judgment.kind, "determinism");
  EXPECT_NE(judgment.reason.find("(layout: "), std::string::npos) << judgment.reason;
  Demands others;
  others.axes = AxisSet();
  for (const Axis axis : all_axes())
    if (axis != Axis::layout) others.axes.insert(axis);
  EXPECT_EQ(judge(c, result, {}, {others}, {}, /*accuracy=*/false).verdict, Verdict::pass);
}

INSTANTIATE_TEST_SUITE_P(Six, BrokenLayout, testing::ValuesIn(layout_faults()),
                         [](const auto& each) { return std::string(each.param.candidate); });

TEST(Layout, IsPlannedInCheapRunsWhereItIsWanted) {
  const auto planned = [](const Case& c, bool layouts) {
    AxisPlan plan;
    plan.layouts = layouts;
    std::vector<Context> contexts = plan_contexts(c, cpu(), plan);
    std::erase_if(contexts, [](const Context& context) { return context.axis != Axis::layout; });
    return contexts;
  };
  EXPECT_EQ(planned(product_case(2, 20), false).size(), 0U);
  EXPECT_EQ(planned(product_case(2, 20), true).size(), 6U);
  // A launch of its weights costs as much as the case: which arrangements it has depends on it.
  std::set<std::string> seen;
  for (const int64_t n : {2000, 2001, 2002, 2003, 2004, 2005, 2006, 2007}) {
    const std::vector<Context> some = planned(product_case(1, 16, 1024, n), true);
    EXPECT_GE(some.size(), 1U) << n;
    EXPECT_LE(some.size(), 2U) << n;
    for (const Context& context : some) seen.insert(context.what);
  }
  EXPECT_GE(seen.size(), 4U);
}

TEST(Layout, StridesThatAreFollowedPassAndRefusalsAreUnsupported) {
  const RunResult result = run_all_axes("follows_strides", product_case(2, 20), "layout_faults");
  EXPECT_EQ(broken_axes(result), std::set<std::string_view>());
  std::map<std::string, bool> supported;
  for (const ContextRun& context : result.contexts)
    if (context.axis == Axis::layout) supported[context.what] = context.supported;
  EXPECT_TRUE(supported.at(std::string(describe(Arrangement::columns_apart))));
  EXPECT_TRUE(supported.at(std::string(describe(Arrangement::shifted_odd))));
  EXPECT_FALSE(supported.at(std::string(describe(Arrangement::slice))));  // its sequences lie apart
  EXPECT_FALSE(supported.contains(std::string(describe(Arrangement::expanded_upstream))));
  EXPECT_FALSE(supported.contains(std::string(describe(Arrangement::other_integers))));
}

// The native candidate copies what does not lie contiguously; every arrangement of every input reaches it.
TEST(Layout, NativeCandidatesFollowEveryArrangement) {
  for (const auto& [op, pass, dims, n] :
       {std::tuple{"logp", "backward",
                   std::map<std::string, int64_t, std::less<>>{{"batch", 2}, {"seq", 150}, {"vocab", 33}}, 8U},
        {"ratio_kl", "forward", {{"batch", 3}, {"seq", 20}, {"vocab", 33}}, 7U},
        {"tp_logp", "backward", {{"batch", 2}, {"seq", 20}, {"vocab", 33}, {"world_size", 3}}, 8U}}) {
    const Case c = gold_case(op, pass, DType::bf16, dims);
    Worker worker({{native_plugin(op)}, "cpu"});
    const auto inputs = make_inputs(c, 1);
    auto outputs = make_outputs(c);
    RunChecks checks;
    checks.plan.all = true;
    checks.plan.axes = {Axis::layout};
    const RunResult result = worker.run("native", c, inputs, outputs, checks, std::chrono::seconds(60));
    ASSERT_EQ(result.status, RunStatus::ok) << result.message;
    EXPECT_EQ(result.contexts.size(), n) << op;
    for (size_t k = 0; k < result.contexts.size(); ++k) {
      EXPECT_TRUE(result.contexts[k].supported) << result.contexts[k].message;
      EXPECT_GT(result.outputs[0].contexts[k].bits.compared, 0) << result.contexts[k].what;
      EXPECT_EQ(result.outputs[0].contexts[k].bits.different, 0) << result.contexts[k].what;
    }
  }
}

// A race shows in any launch, whatever else the launch changes. Repetition is named, because it invalidates the other
// comparisons.
TEST(Race, IsCaughtByRepetitionAndNamed) {
  const Case c = product_case(2, 20);
  const RunResult result = run_all_axes("race", c);
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  EXPECT_TRUE(broken_axes(result).contains("repetition"));
  const Judgment judgment = judge(c, result, {}, {Demands()}, {}, /*accuracy=*/false);
  EXPECT_EQ(judgment.kind, "determinism");
  EXPECT_NE(judgment.reason.find("(repetition: 20 launches)"), std::string::npos) << judgment.reason;
}

// Row 0 of `position_dependent_order` moves to place 39 when rows are reversed, and changes its bits like row 8.
TEST(RowZero, IsToldAndNotCounted) {
  const Case c = product_case(2, 20, 64, 8);
  const RunResult result = run_all_axes("position_dependent_order", c);
  int64_t told = 0;
  for (size_t k = 0; k < result.contexts.size(); ++k) {
    const ContextBits& found = result.outputs[0].contexts[k];
    if (result.contexts[k].axis != Axis::position) continue;
    told += found.row_zero_different;
    EXPECT_EQ(found.bits.compared, 39 * 8) << result.contexts[k].what;
    EXPECT_TRUE(found.bits.different == 0 || found.bits.first_index >= 8) << result.contexts[k].what;
  }
  EXPECT_GT(told, 0);
}

/// A device that considers nothing small, so that no input stays on it.
class FullDevice : public DelegatingDevice {
 public:
  DeviceInfo info() const override {
    DeviceInfo info = DelegatingDevice::info();
    info.memory_bytes = 0;
    return info;
  }
};

/// The results of each context, with more rows than the axes focus on, weights, and masks of several dtypes.
std::vector<std::string> found_on(Device& device, const Candidate& candidate, const Case& c) {
  auto outputs = make_outputs(c);
  RunChecks checks;
  checks.plan.all = true;
  const RunResult result = run_candidate(device, candidate, c, make_inputs(c, 1), outputs, checks);
  EXPECT_EQ(result.status, RunStatus::ok) << result.message;
  EXPECT_TRUE(result.modified_inputs.empty());
  std::vector<std::string> found;
  for (size_t k = 0; k < result.contexts.size(); ++k) {
    for (const OutputRun& output : result.outputs) {
      const ContextBits& bits = output.contexts[k];
      found.push_back(fmt::format("{} {}: {} of {}, first {}, {} of row 0", to_string(result.contexts[k].axis),
                                  result.contexts[k].what, bits.bits.different, bits.bits.compared,
                                  bits.bits.first_index, bits.row_zero_different));
    }
  }
  return found;
}

TEST(InputsOfContexts, AreTheSameFromTheDeviceAndFromTheHost) {
  ASSERT_EQ(load_plugin(native_plugin("ratio_kl")).front().pass, "forward");
  const Case ratios = gold_case("ratio_kl", "forward", DType::bf16, {{"batch", 3}, {"seq", 100}, {"vocab", 33}});
  const Case product = product_case(2, 150);
  for (const auto& [candidate, c] : {std::pair{find_candidate("axis_faults", "position_dependent_order"), product},
                                     std::pair{find_candidate("axis_faults", "neighbour_leak"), product},
                                     std::pair{find_candidate("axis_faults", "padding_leak"), product},
                                     std::pair{load_plugin(native_plugin("ratio_kl")).front(), ratios}}) {
    FullDevice full;
    const std::vector<std::string> found = found_on(*open_cpu_device(), candidate, c);
    EXPECT_EQ(found, found_on(full, candidate, c)) << candidate.name;
    const auto differs = [](const std::string& line) { return line.find(": 0 of") == std::string::npos; };
    EXPECT_EQ(std::any_of(found.begin(), found.end(), differs), candidate.name != "native");
  }
}

TEST(SmallestRows, AreFoundByBisection) {
  const RunResult result = run_all_axes("batch_dependent_tile", product_case(2, 20));
  EXPECT_EQ(result.outputs[0].smallest_rows, 16);
}

TEST(SmallestRows, AreFoundWhereverTheyLie) {
  for (const int64_t n : {1, 2, 3, 40, 64, 65}) {
    EXPECT_EQ(smallest_that_differs(n, [](int64_t) { return false; }), 0) << n;
    for (int64_t first = 2; first <= n; ++first) {
      EXPECT_EQ(smallest_that_differs(n, [&](int64_t rows) { return rows >= first; }), first) << n;
    }
  }
}

TEST(Boundaries, AreKnownOnBothSides) {
  const auto variant = [](int64_t rows) { return rows < 27 ? "a" : rows < 100 ? "b" : rows < 101 ? "c" : "a"; };
  std::map<int64_t, std::string> variants{{1, "a"}, {40, "b"}, {100, "c"}, {4096, "a"}};
  int asked = 0;
  find_boundaries(variants, [&](int64_t rows) { return ++asked, variant(rows); });
  for (const int64_t rows : {26, 27, 99, 100, 101}) {
    ASSERT_TRUE(variants.contains(rows)) << rows;
    EXPECT_EQ(variants.at(rows), variant(rows));
  }
  EXPECT_LE(asked, 24);
}

TEST(Boundaries, GapsThatCannotBeAskedAboutStay) {
  std::map<int64_t, std::string> variants{{1, "a"}, {9, "b"}, {20, "b"}, {24, "a"}};
  const auto untouched = variants;
  int asked = 0;
  find_boundaries(variants, [&](int64_t) { return ++asked, std::nullopt; });
  EXPECT_EQ(variants, untouched);
  EXPECT_EQ(asked, 2);
}

// 27 is not among the numbers of rows that the axes try by default.
TEST(Boundaries, HaveAComparisonOnEachSide) {
  const RunResult result = run_all_axes("says_its_variant", product_case(2, 40));
  EXPECT_EQ(broken_axes(result), std::set<std::string_view>());
  std::map<int64_t, std::string> variants;
  for (size_t k = 0; k < result.contexts.size(); ++k) {
    const ContextRun& context = result.contexts[k];
    if (context.axis != Axis::batch) continue;
    variants[context.rows] = context.message;
    EXPECT_GT(result.outputs[0].contexts[k].bits.compared, 0) << context.what;
  }
  EXPECT_EQ(variants[26], "few");
  EXPECT_EQ(variants[27], "many");
}

TEST(AxesOfAGpu, SayOnTheCpuWhyTheyWereNotRun) {
  const RunResult result = run_all_axes("first_call_differs", product_case(2, 20));
  std::map<Axis, std::string> why;
  for (const ContextRun& context : result.contexts) {
    if (!context.supported) why[context.axis] = context.message;
  }
  EXPECT_NE(why[Axis::contention].find("contention can't be tested"), std::string::npos) << why[Axis::contention];
  EXPECT_NE(why[Axis::graph].find("has no graphs"), std::string::npos) << why[Axis::graph];
}

// A refusal is not a pass: the axis reports that nothing was compared.
TEST(RowStride, RefusalIsUnsupported) {
  const RunResult result = run_all_axes("first_call_differs", product_case(2, 20));
  int refused = 0;
  for (size_t k = 0; k < result.contexts.size(); ++k) {
    if (result.contexts[k].axis != Axis::row_stride) continue;
    EXPECT_FALSE(result.contexts[k].supported);
    EXPECT_EQ(result.outputs[0].contexts[k].bits.compared, 0);
    ++refused;
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace checkop::invariance_test
