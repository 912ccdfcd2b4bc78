// SPDX-License-Identifier: Apache-2.0
// Sums carried from call to call: which inputs go together, dtypes, the gold, and the bits of cut batches.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "case/axes.hpp"
#include "case/inputs.hpp"
#include "case/sweep.hpp"
#include "judge/bound.hpp"
#include "judge/verdict.hpp"
#include "run/invariance/contexts.hpp"
#include "session/saved_case.hpp"
#include "support/judge_helper.hpp"
#include "support/rows_helper.hpp"
#include "support/run_helper.hpp"
#include "worker/worker.hpp"

namespace checkop::carry_test {
namespace {

using Optionals = std::set<std::string, std::less<>>;
const Optionals kWithoutBias{"dlm_head_weight_carry"}, kWithBias{"bias", "dlm_head_weight_carry", "dbias_carry"};

Case carry_case(DType dtype, const Optionals& optionals, int64_t rows = 70, std::string_view op = "linear_logp") {
  const int64_t vocab = 23;
  Dims dims{{"batch", 1}, {"seq", rows}, {"hidden", 40}, {"vocab", vocab}};
  if (op.starts_with("tp_")) dims["world_size"] = 3;
  return gold_case(op, "backward", dtype, dims, optionals);
}

TEST(Carry, AllGradientsOfWeightsAreCarriedOrNone) {
  const auto error_of = [](const Optionals& optionals) {
    try {
      validate(carry_case(DType::bf16, optionals));
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  for (const Optionals& good : {Optionals{}, Optionals{"bias"}, kWithoutBias, kWithBias}) EXPECT_EQ(error_of(good), "");
  const std::string hint = "; give dlm_head_weight_carry, or bias+dlm_head_weight_carry+dbias_carry";
  for (const Optionals& bad : {Optionals{"dbias_carry"}, Optionals{"bias", "dbias_carry"},
                               Optionals{"dbias_carry", "dlm_head_weight_carry"}}) {
    EXPECT_EQ(error_of(bad), "--with: dbias_carry needs bias and dlm_head_weight_carry" + hint);
  }
  EXPECT_EQ(
      error_of({"bias", "dlm_head_weight_carry"}),
      "--with: bias and dlm_head_weight_carry need dbias_carry: all gradients of weights are carried or none" + hint);
}

TEST(Carry, ForwardPassesHaveNone) {
  Sweep sweep;
  sweep.op = find_operator("linear_logp");
  sweep.passes = parse_passes("", *sweep.op, {"all"});
  sweep.dtypes = {DType::f32};
  sweep.optionals = parse_optionals("", *sweep.op, {sweep.op},
                                    {"none", "dlm_head_weight_carry", "bias+dlm_head_weight_carry+dbias_carry"});
  std::vector<Case> cases;
  expand(sweep, cases);
  std::vector<std::string> names;
  for (const Case& c : cases) names.push_back(std::string(c.pass->name) + " " + case_name(c));
  const std::string stem = "linear_logp-fp32-2x16x4096x257";
  EXPECT_EQ(names, (std::vector<std::string>{"forward " + stem, "forward " + stem + "+bias", "backward " + stem,
                                             "backward " + stem + "+dlm_head_weight_carry",
                                             "backward " + stem + "+bias+dbias_carry+dlm_head_weight_carry"}));
}

TEST(Carry, MakesOutputsFp32WhateverTheDtype) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const std::vector<Tensor> plain = make_outputs(carry_case(dtype, {"bias"})),
                              carried = make_outputs(carry_case(dtype, kWithBias));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(plain[i].dtype, dtype) << plain[i].name;
      EXPECT_EQ(carried[i].dtype, i == 0 ? dtype : DType::f32) << plain[i].name;
    }
  }
  EXPECT_EQ(tensor_bytes(carry_case(DType::bf16, kWithoutBias)) - tensor_bytes(carry_case(DType::bf16, {})),
            23 * 40 * (4 + 4 - 2));
}

TEST(Carry, SavedCaseIsReadBackAsItWas) {
  const Case c = carry_case(DType::bf16, kWithBias);
  const SavedCase saved =
      load_case(save_case(testing::TempDir() + "carried", c, "mine", "", gold_inputs(c), make_outputs(c), 1));
  EXPECT_EQ(case_name(saved.c), case_name(c));
  EXPECT_EQ(saved.outputs[1].dtype, DType::f32);
}

// A carry is exact: it adds to the value, but only adds error through its additions.
TEST(Carry, GoldIsTheCarryAndTheGradient) {
  const Case with = carry_case(DType::bf16, kWithBias), without = carry_case(DType::bf16, {"bias"});
  const std::vector<Tensor> inputs = make_inputs(with, 1);
  const auto carried = collect_gold(with, inputs, 1), plain = collect_gold(without, make_inputs(without, 1), 1);
  EXPECT_EQ(carried[0].value, plain[0].value);
  for (const auto& [output, name] : {std::pair{size_t{1}, "dlm_head_weight_carry"}, {size_t{2}, "dbias_carry"}}) {
    const GoldOutput &a = carried[output], &b = plain[output];
    const Tensor& carry = inputs[input_index(*with.pass, name)];
    EXPECT_EQ(carry.dtype, DType::f32);
    ASSERT_EQ(static_cast<size_t>(carry.count()), a.value.size());
    for (size_t i = 0; i < a.value.size(); ++i) {
      const double c = carry.at(static_cast<int64_t>(i));
      EXPECT_NE(c, 0);
      EXPECT_EQ(a.value[i], b.value[i] + c);
      EXPECT_NEAR(a.magnitude[i] - std::abs(a.value[i]), b.magnitude[i] - std::abs(b.value[i]), 1e-12);
      EXPECT_DOUBLE_EQ(a.rounding[i], 6 * std::sqrt(70.0) * std::abs(c));
      EXPECT_EQ(b.rounding[i], 0);
    }
  }
}

/// Rows [begin, end) of the inputs of one batch.
std::vector<Tensor> rows_of(const Case& c, const Case& slice, const std::vector<Tensor>& inputs, int64_t begin) {
  std::vector<Tensor> part;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorSpec& spec = c.pass->inputs[i];
    if (inputs[i].name.empty()) {
      part.emplace_back();
      continue;
    }
    Tensor& to = part.emplace_back(inputs[i].name, inputs[i].dtype, shape_of(slice, spec));
    const size_t row_bytes = is_per_row(*c.op, spec) ? inputs[i].bytes.size() / static_cast<size_t>(row_count(c)) : 0;
    std::memcpy(to.bytes.data(), inputs[i].bytes.data() + static_cast<size_t>(begin) * row_bytes, to.bytes.size());
  }
  return part;
}

/// The native candidate's weight gradients after `c` has been cut before each of `cuts`.
std::vector<Tensor> native_in_pieces(const Case& c, std::vector<int64_t> cuts) {
  std::vector<Tensor> inputs = make_inputs(c, 1);
  cuts.push_back(row_count(c));
  NativeAnswer answer;
  int64_t begin = 0;
  for (const int64_t end : cuts) {
    const Case slice = slice_rows(c, begin, end);
    answer = run_native(slice, rows_of(c, slice, inputs, begin));
    EXPECT_EQ(answer.result.status, RunStatus::ok) << answer.result.message;
    for (size_t i = 1; i < 3; ++i) {
      if (answer.outputs[i].name.empty()) continue;
      const size_t carry = input_index(*c.pass, c.pass->outputs[i].tensor.carry);
      std::memcpy(inputs[carry].bytes.data(), answer.outputs[i].bytes.data(), inputs[carry].bytes.size());
    }
    begin = end;
  }
  return std::move(answer.outputs);
}

bool same_weight_gradients(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (size_t i = 1; i < 3; ++i) {
    if (a[i].bytes.size() != b[i].bytes.size() ||
        !std::equal(a[i].bytes.data(), a[i].bytes.data() + a[i].bytes.size(), b[i].bytes.data()))
      return false;
  }
  return true;
}

TEST(Carry, NativeBitsDoNotDependOnTheCuts) {
  for (const std::string_view op : {"linear_logp", "tp_linear_logp"}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const Optionals& optionals : {kWithoutBias, kWithBias}) {
        const Case c = carry_case(dtype, optionals, 70, op);
        const std::vector<Tensor> whole = native_in_pieces(c, {});
        EXPECT_TRUE(same_weight_gradients(whole, native_in_pieces(c, {16, 32, 48, 64}))) << case_name(c);
        EXPECT_TRUE(same_weight_gradients(whole, native_in_pieces(c, {32}))) << case_name(c);
        EXPECT_TRUE(same_weight_gradients(whole, native_in_pieces(c, {48, 64}))) << case_name(c);
        // Other cuts do change bits: otherwise equal bits would prove nothing.
        EXPECT_FALSE(same_weight_gradients(whole, native_in_pieces(c, {13, 40}))) << case_name(c);
      }
    }
  }
}

TEST(Carry, NativeStartsFromTheCarryWithoutRows) {
  const Case c = carry_case(DType::bf16, kWithBias, 0);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const NativeAnswer answer = run_native(c, inputs);
  for (size_t i = 1; i < 3; ++i) {
    const Tensor& carry = inputs[input_index(*c.pass, c.pass->outputs[i].tensor.carry)];
    EXPECT_EQ(std::memcmp(answer.outputs[i].bytes.data(), carry.bytes.data(), carry.bytes.size()), 0);
  }
}

/// What the recipe dz_in_16_bit allows the elements of dlm_head_weight.
std::vector<double> spread_of(const Case& c, const std::vector<Tensor>& inputs) {
  const ActiveRecipes recipes({"dz_in_16_bit"}, c.dtype, 0x1p-24, {{1e-6, 6}, {1e-6, 6}, {1e-6, 6}});
  const int64_t columns = extent_of(c, "hidden");
  std::vector<double> spread(static_cast<size_t>(extent_of(c, "vocab") * columns));
  const auto take = [&](const GoldRows& rows) {
    if (rows.output == 1) std::copy_n(rows.spread, rows.n_rows * columns, spread.begin() + rows.first_row * columns);
  };
  run_gold(c, inputs, 1, take, {}, recipes);
  return spread;
}

// Terms may be rounded to 16 bits, but the carry may not: its allowed error is that of fp32 sums.
TEST(Carry, GrantedRoundingsAreThoseOfTheGradientsTermsAlone) {
  const Case c = carry_case(DType::bf16, kWithoutBias);
  const OutputSpec& output = c.pass->outputs[1];
  const Gates gates = default_contract().gates_for(c, output, {"sm90", "cuda-sm90"});
  ASSERT_EQ(gates.recipes.size(), 1u);
  EXPECT_EQ(gates.recipes[0].name, "dz_in_16_bit");
  EXPECT_TRUE(default_contract().gates_for(c, output, {"sm90", "cuda"}).recipes.empty());
  const PreparedGate gate(gates.all.front(), DType::f32, sum_terms(c, output));
  std::vector<Tensor> inputs = make_inputs(c, 1);
  const auto small = collect_gold(c, inputs, 1)[1];
  const std::vector<double> small_spread = spread_of(c, inputs);
  Tensor& carry = inputs[input_index(*c.pass, "dlm_head_weight_carry")];
  for (int64_t i = 0; i < carry.count(); ++i) carry.set(i, 1024 * carry.at(i));
  const auto large = collect_gold(c, inputs, 1)[1];
  const std::vector<double> large_spread = spread_of(c, inputs);
  EXPECT_GT(*std::min_element(small_spread.begin(), small_spread.end()), 0);
  EXPECT_EQ(large_spread, small_spread);
  for (size_t i = 0; i < small.value.size(); ++i) {
    const double size = std::abs(carry.at(static_cast<int64_t>(i)));
    const double more = gate.allowed(large.value[i], large.magnitude[i], large.rounding[i]) -
                        gate.allowed(small.value[i], small.magnitude[i], small.rounding[i]);
    EXPECT_LE(more, std::exp2(-15) * size);  // a rounding to bf16 errs by up to 2^-8 of it
  }
}

TEST(Carry, NativeIsWithinTheContract) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Case c = carry_case(dtype, kWithBias);
    const std::vector<Tensor> inputs = make_inputs(c, 1);
    std::vector<Tensor> outputs = run_native(c, inputs).outputs;
    for (const Comparison& each : judge_outputs(c, inputs, outputs, default_contract(), {}, 1))
      EXPECT_TRUE(each.passed()) << case_name(c);
    // Rounded to 12 bits, more than 16-bit floats have.
    for (int64_t i = 0; i < outputs[1].count(); ++i) {
      const int shift = 11 - std::ilogb(outputs[1].at(i));
      outputs[1].set(i, std::ldexp(std::nearbyint(std::ldexp(outputs[1].at(i), shift)), -shift));
    }
    EXPECT_FALSE(judge_outputs(c, inputs, outputs, default_contract(), {}, 1)[1].passed()) << case_name(c);
  }
}

// --- the axis `chunks`

DeviceInfo cpu() {
  DeviceInfo device;
  device.kind = "cpu";
  return device;
}

std::vector<int64_t> piece_rows(const Case& c, bool all) {
  AxisPlan plan;
  plan.all = all;
  std::vector<int64_t> rows;
  for (const Context& context : plan_contexts(c, cpu(), plan)) {
    if (context.piece_rows == 0) continue;
    EXPECT_EQ(context.axis, Axis::chunks);
    rows.push_back(context.piece_rows);
  }
  return rows;
}

TEST(Carry, BatchesAreCutAtMultiplesOf16Rows) {
  EXPECT_EQ(piece_rows(carry_case(DType::bf16, kWithBias, 300), true), (std::vector<int64_t>{112, 16, 32, 128, 256}));
  EXPECT_EQ(piece_rows(carry_case(DType::bf16, kWithBias, 300), false), (std::vector<int64_t>{160}));
  EXPECT_TRUE(piece_rows(carry_case(DType::bf16, kWithBias, 16), true).empty());
  EXPECT_TRUE(piece_rows(carry_case(DType::bf16, {"bias"}, 300), true).empty());
}

TEST(Carry, PiecesTileTheBatchAndCompareCarriedSumsAlone) {
  const Case c = carry_case(DType::bf16, kWithBias, 70);
  Context context;
  for (int64_t r = 0; r < 70; ++r) context.rows.push_back(r);
  context.sums = true, context.piece_rows = 32;
  const std::vector<Context> pieces = pieces_of(context);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[2].rows, (std::vector<int64_t>{64, 65, 66, 67, 68, 69}));
  EXPECT_EQ(compared_elements(c, c.pass->outputs[0].tensor, context), 0);
  EXPECT_EQ(compared_elements(c, c.pass->outputs[1].tensor, context), 23 * 40);
  EXPECT_EQ(compared_elements(c, c.pass->outputs[2].tensor, context), 23);
  double apart = 0;
  for (const Context& piece : pieces) apart += cost_of(c, cpu(), piece);
  EXPECT_DOUBLE_EQ(cost_of(c, cpu(), context), apart);
}

RunResult run_cut(const std::string& plugin, const std::string& candidate, const Case& c, bool all) {
  Worker worker({{plugin}, "cpu"});
  const auto inputs = make_inputs(c, 1);
  auto outputs = make_outputs(c);
  RunChecks checks;
  checks.plan.all = all;
  return worker.run(candidate, c, inputs, outputs, checks, std::chrono::seconds(60));
}

Judgment judgment_of(const Case& c, const RunResult& run) {
  std::vector<Demands> demands;
  for (const OutputSpec& output : c.pass->outputs) demands.push_back(default_contract().demands_for(c, output));
  return judge(c, run, {}, demands, RunChecks{}, /*accuracy=*/false);
}

TEST(Carry, SumsThatDependOnTheCutsAreCaught) {
  for (const bool all : {false, true}) {
    for (const Optionals& optionals : {kWithoutBias, kWithBias}) {
      const Case c = carry_case(DType::bf16, optionals);
      const RunResult faulty = run_cut(test_plugin("carry_faults"), "carry_added_last", c, all);
      ASSERT_EQ(faulty.status, RunStatus::ok) << faulty.message;
      const Judgment judgment = judgment_of(c, faulty);
      EXPECT_EQ(judgment.verdict, Verdict::fail);
      EXPECT_EQ(judgment.kind, "invariance");
      EXPECT_EQ(judgment.reason.find("bits depend on where the batch is split into launches (chunks: "), 0u)
          << judgment.reason;
      EXPECT_NE(judgment.reason.find("first dlm_head_weight["), std::string::npos) << judgment.reason;
    }
  }
}

TEST(Carry, NativePassesTheAxis) {
  for (const std::string_view op : {"linear_logp", "tp_linear_logp"}) {
    for (const bool all : {false, true}) {
      const Case c = carry_case(DType::f16, kWithBias, 70, op);
      const RunResult right = run_cut(native_plugin(op), "native", c, all);
      ASSERT_EQ(right.status, RunStatus::ok) << right.message;
      EXPECT_EQ(judgment_of(c, right).verdict, Verdict::pass) << judgment_of(c, right).reason;
      int64_t compared = 0;
      for (size_t k = 0; k < right.contexts.size(); ++k) {
        if (right.contexts[k].axis == Axis::chunks) compared += right.outputs[1].contexts[k].bits.compared;
      }
      EXPECT_EQ(compared, 23 * 40 * (all ? 2 : 1)) << op;
    }
  }
}

}  // namespace
}  // namespace checkop::carry_test
