// SPDX-License-Identifier: Apache-2.0
// Identities that hold for rows without gold, and the errors found there.
#include <gtest/gtest.h>

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
  Question q(sized("logp", "forward", DType::f32));
  q.outputs[0].set(7, std::numeric_limits<double>::quiet_NaN());
  const Judgment judgment = q.judged();
  EXPECT_EQ(judgment.verdict, Verdict::fail);
  EXPECT_EQ(judgment.reason, "logp row 7: finite is 1, infx the bound 0.00e+00; 1 of 16 rows out of bound");
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
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Case c = sized("logp", "backward", dtype);
    const std::vector<Tensor> inputs = make_inputs(c, 1);
    const ActiveRecipes recipes({"logp_in_16_bit"}, dtype, 0x1p-24, {{0, 6}});
    Values gold(1, std::vector<double>(16 * 40));
    run_gold(
        c, inputs, 1,
        [&](const GoldRows& rows) {
          std::copy_n(rows.value, rows.n_rows * rows.columns, gold[0].begin() + rows.first_row * rows.columns);
        },
        {}, recipes);
    const auto sums_hold = [&](int64_t row, double factor) {
      std::vector<Tensor> outputs = make_outputs(c);
      for (int64_t i = 0; i < outputs[0].count(); ++i)
        outputs[0].set(i, gold[0][static_cast<size_t>(i)] *
                              (i / 40 == row && gold[0][static_cast<size_t>(i)] * inputs[2].at(row) < 0 ? factor : 1));
      Gates gates = default_contract().gates_for(c, c.pass->outputs[0], {});
      std::vector<Comparison> comparisons(1);
      std::vector<RowSet> rows = sample_rows(c, inputs, 2);
      check_identities(c, inputs, outputs, {gates}, {40}, rows, 1, recipes, comparisons);
      return identity_of(comparisons[0], "row_sum").out_of_bound == 0;
    };
    EXPECT_TRUE(sums_hold(5, 1)) << info(dtype).name;
    EXPECT_FALSE(sums_hold(5, 0.9)) << info(dtype).name;
    EXPECT_FALSE(sums_hold(5, std::numeric_limits<double>::quiet_NaN())) << info(dtype).name;
  }
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
