// SPDX-License-Identifier: Apache-2.0
// Identities that hold for rows without gold, and the errors found there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "case/inputs.hpp"
#include "case/sampling.hpp"
#include "judge/residuals.hpp"
#include "judge/verdict.hpp"
#include "support/judge_helper.hpp"

namespace checkop::residuals_test {
namespace {

/// A case with correct outputs; the gold covers only the first and the last row.
struct Question {
  Case c;
  std::vector<Tensor> inputs, outputs;
  std::vector<RowSet> rows;

  explicit Question(const Case& asked) : c(asked), inputs(make_inputs(c, 1)), outputs(rounded_gold(c, inputs)) {
    rows = sample_rows(c, inputs, 2);
  }
  std::vector<Comparison> compare() const { return judge_outputs(c, inputs, outputs, default_contract(), {}, 2, rows); }
  Judgment judged() const {
    RunResult run;
    run.status = RunStatus::ok;
    run.outputs.resize(outputs.size());
    return judge(c, run, compare(), std::vector<Demands>(outputs.size()), {false, false, true}, true);
  }
};

Case sized(std::string_view op, std::string_view pass, DType dtype) {
  return fitted(gold_case(
      op, pass, dtype,
      {{"batch", 2}, {"seq", 8}, {"vocab", 40}, {"k_dim", 24}, {"n_dim", 40}, {"hidden", 24}, {"group_bounds", 2}}));
}

const IdentityResult& identity_of(const Comparison& comparison, std::string_view name) {
  for (const IdentityResult& result : comparison.identities) {
    if (result.identity == name) return result;
  }
  throw std::logic_error("no identity " + std::string(name));
}

TEST(Residuals, RightOutputsMeetEveryIdentityInEveryDtype) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [op, pass, name] :
         std::vector<std::array<const char*, 3>>{{"logp", "backward", "row_sum"},
                                                 {"ratio_kl", "backward", "masked_zero"},
                                                 {"grpo_loss", "backward", "masked_zero"},
                                                 {"matmul", "forward", "freivalds"},
                                                 {"det_gemm", "backward", "freivalds"},
                                                 {"lm_head", "forward", "freivalds"},
                                                 {"lm_head", "backward", "freivalds"}}) {
      for (const uint64_t seed : {1, 2, 3, 4, 5}) {
        Case c = sized(op, pass, dtype);
        c.seed = seed;
        if (c.op->name == "lm_head") c.optionals = {"bias"};
        const Comparison comparison = Question(c).compare()[0];
        EXPECT_TRUE(comparison.passed()) << op << " " << info(dtype).name;
        EXPECT_EQ(comparison.count, 2 * comparison.expected / 2);
        EXPECT_GT(identity_of(comparison, name).rows, 0) << op;
        EXPECT_LT(identity_of(comparison, name).achieved, 1) << op;
        EXPECT_EQ(identity_of(comparison, "finite").rows, comparison.total_rows);
      }
    }
  }
}

TEST(Residuals, AGoldOfAllRowsNeedsNoneUnlessTheContractAsks) {
  Question q(sized("silu", "forward", DType::f32));  // the contract asks for no identities
  q.rows.clear();
  EXPECT_TRUE(q.compare()[0].identities.empty());
  Question asked(sized("matmul", "forward", DType::f32));
  asked.rows.clear();
  ASSERT_EQ(asked.compare()[0].identities.size(), 1U);
  EXPECT_EQ(asked.compare()[0].identities[0].identity, "freivalds");
}

TEST(Residuals, ARowThatTheGoldLeftOutMayNotBeNaN) {
  Question q(sized("entropy", "forward", DType::f32));
  q.outputs[0].set(7, std::numeric_limits<double>::quiet_NaN());
  const Judgment judgment = q.judged();
  EXPECT_EQ(judgment.verdict, Verdict::fail);
  EXPECT_EQ(judgment.reason, "entropy row 7: finite is 1, infx the bound 0.00e+00; 1 of 16 rows out of bound");
}

TEST(Residuals, ARowThatTheGoldLeftOutMayBeInfiniteWhereTheGoldMayBeAndNotNaN) {
  Question q(sized("logp", "forward", DType::f32));
  q.outputs[0].set(6, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(q.judged().verdict, Verdict::pass);
  q.outputs[0].set(6, std::numeric_limits<double>::quiet_NaN());
  const Judgment judgment = q.judged();
  EXPECT_EQ(judgment.verdict, Verdict::fail);
  EXPECT_EQ(judgment.reason, "logp row 6: not_nan is 1, infx the bound 0.00e+00; 1 of 16 rows out of bound");
}

TEST(Residuals, AMissingSoftmaxTermBreaksTheRowSum) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Question q(sized("logp", "backward", dtype));
    Tensor& dlogits = q.outputs[0];
    for (int64_t v = 0; v < 40; ++v) {
      if (dlogits.at(5 * 40 + v) * q.inputs[2].at(5) < 0) dlogits.set(5 * 40 + v, 0);  // all but the target's column
    }
    const Judgment judgment = q.judged();
    EXPECT_EQ(judgment.kind, "identity") << info(dtype).name;
    EXPECT_EQ(judgment.reason.substr(0, 22), "dlogits row 5: row_sum") << judgment.reason;
  }
}

TEST(Residuals, RowSumsHoldUnderRoundedLogProbabilities) {
  // Equal logits: all of log(1/61) are rounded to the same side, in bf16 by 0.014.
  constexpr int64_t kRows = 4, kVocab = 61;
  const Case c = gold_case("logp", "backward", DType::bf16, {{"batch", 1}, {"seq", kRows}, {"vocab", kVocab}});
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (int64_t i = 0; i < inputs[0].count(); ++i) inputs[0].set(i, 0);
  const ActiveRecipes recipes({"logp_in_16_bit"}, c.dtype, 0x1p-24, {{0, 6}});
  std::vector<Tensor> right = make_outputs(c);
  const auto store = [&](const GoldRows& rows) {
    for (int64_t i = 0; i < rows.columns; ++i) right[0].set(rows.first_row * kVocab + i, rows.value[i]);
  };
  run_gold(c, inputs, 1, store, {}, recipes);
  const Gates gates = default_contract().gates_for(c, c.pass->outputs[0], {});
  const auto sums_hold = [&](const ActiveRecipes& granted, double target) {
    std::vector<Tensor> outputs = make_outputs(c);
    for (int64_t i = 0; i < outputs[0].count(); ++i) outputs[0].set(i, right[0].at(i));
    const int64_t id = 2 * kVocab + static_cast<int64_t>(inputs[1].at(2));
    outputs[0].set(id, target * right[0].at(id));
    std::vector<Comparison> comparisons(1);
    check_identities(c, inputs, outputs, {gates}, {kVocab}, {{false, {0}}}, 1, granted, comparisons);
    return identity_of(comparisons[0], "row_sum").out_of_bound == 0;
  };
  EXPECT_TRUE(sums_hold(recipes, 1));
  EXPECT_FALSE(sums_hold({}, 1));
  EXPECT_FALSE(sums_hold(recipes, 0.9));
  EXPECT_FALSE(sums_hold(recipes, std::numeric_limits<double>::quiet_NaN()));
}

/// What gold and identities emit under these recipes, in order.
std::vector<double> emitted(const Question& q, const ActiveRecipes& recipes) {
  std::vector<double> all;
  run_gold(
      q.c, q.inputs, 1,
      [&](const GoldRows& block) {
        for (const double* array : {block.value, block.magnitude, block.rounding})
          if (array != nullptr) all.insert(all.end(), array, array + block.n_rows * block.columns);
      },
      {}, recipes);
  std::vector<const Tensor*> in, out;
  for (const Tensor& tensor : q.inputs) in.push_back(tensor.name.empty() ? nullptr : &tensor);
  for (const Tensor& tensor : q.outputs) out.push_back(tensor.name.empty() ? nullptr : &tensor);
  IdentityArgs args{in, out,    q.c.attrs, 1, [](std::string_view, uint64_t i) { return i % 3 == 0 ? 1.0 : -1.0; },
                    {}, recipes};
  args.sink = [&](const Residual& r) { all.insert(all.end(), {r.value, r.magnitude, r.rounding, r.stored}); };
  if (q.c.pass->identities != nullptr) q.c.pass->identities(args);
  return all;
}

// The search for recipes leaves such a recipe out.
TEST(Residuals, ARecipeChangesNothingWithoutWhatItNeeds) {
  int n_recipes = 0;
  for (const Operator* op : operators()) {
    for (const Pass& pass : op->passes) {
      for (const Recipe& recipe : pass.recipes) {
        if (recipe.needs.empty()) continue;
        ++n_recipes;
        const Question q(fitted(gold_case(op->name, pass.name, DType::bf16, test_dims(*op, 4))));
        const std::vector<ActiveRecipes::Numbers> numbers(pass.outputs.size(), {1, 6});
        const std::vector<double> without = emitted(q, {{}, DType::bf16, 0x1p-24, numbers});
        const std::vector<double> with = emitted(q, {{recipe.name}, DType::bf16, 0x1p-24, numbers});
        EXPECT_TRUE(std::ranges::equal(without, with, is_same)) << op->name << " " << pass.name << " " << recipe.name;
      }
    }
  }
  EXPECT_GE(n_recipes, 10);
}

TEST(Residuals, AMaskedRowMayHoldNothingElseThanZero) {
  for (const double value : {1e-44, std::numeric_limits<double>::quiet_NaN()}) {
    Question q(sized("ratio_kl", "backward", DType::f32));
    const Tensor& mask = q.inputs[input_index(*q.c.pass, "attention_mask")];
    int64_t row = 1;
    while (mask.at(row) != 0) ++row;
    ASSERT_LT(row, 15);
    q.outputs[0].set(row * 40 + 3, value);
    EXPECT_EQ(identity_of(q.compare()[0], "masked_zero").out_of_bound, 1);
    EXPECT_EQ(q.judged().kind, "identity");
  }
}

TEST(Residuals, SwappedTilesAndOneWrongElementOfAProductAreFound) {
  for (const char* pass : {"forward", "backward"}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Case matmul = sized("matmul", pass, dtype);
      for (size_t output = 0; output < matmul.pass->outputs.size(); ++output) {
        Question q(matmul);
        Tensor& c = q.outputs[output];
        const int64_t n = c.shape.back();
        for (int64_t j = 0; j < 8; ++j) {
          const double a = c.at(3 * n + j), b = c.at(3 * n + 8 + j);
          c.set(3 * n + j, b), c.set(3 * n + 8 + j, a);
        }
        EXPECT_EQ(identity_of(q.compare()[output], "freivalds").worst_row, 3) << pass << info(dtype).name;
        EXPECT_EQ(q.judged().kind, "identity") << pass << info(dtype).name;
        Question one(matmul);
        one.outputs[output].set(4 * n + 2, one.outputs[output].at(4 * n + 2) + 3);
        EXPECT_EQ(one.judged().kind, "identity") << pass << info(dtype).name;
      }
    }
  }
}

TEST(Residuals, ABiasLeftOutIsFound) {
  Case c = sized("lm_head", "forward", DType::bf16);
  c.optionals = {"bias"};
  Question q(c);
  for (int64_t v = 0; v < 40; ++v) q.outputs[0].set(9 * 40 + v, q.outputs[0].at(9 * 40 + v) - q.inputs[2].at(v));
  EXPECT_EQ(identity_of(q.compare()[0], "freivalds").worst_row, 9);
  EXPECT_EQ(q.judged().kind, "identity");
}

}  // namespace
}  // namespace checkop::residuals_test
