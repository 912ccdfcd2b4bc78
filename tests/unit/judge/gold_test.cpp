// SPDX-License-Identifier: Apache-2.0
// Streaming the gold into comparisons.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "judge/gold.hpp"
#include "support/contract_helper.hpp"
#include "support/judge_helper.hpp"

namespace checkop::gold_test {
namespace {

const Dims kDims{{"batch", 2}, {"seq", 3}, {"hidden", 16}, {"vocab", 21}};

TEST(Gold, RoundedGoldPassesItsOwnComparison) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const Case c = gold_case("linear_logp", "backward", dtype, kDims, {"bias"});
    const auto inputs = gold_inputs(c);
    const auto outputs = rounded_gold(c, inputs);
    for (const Comparison& comparison : judge_outputs(c, inputs, outputs, default_contract(), {}, 2)) {
      EXPECT_TRUE(comparison.passed()) << info(dtype).name;
      EXPECT_EQ(comparison.max_ulp, 0u);
    }
  }
}

TEST(Gold, AnAbsentOutputIsNotCompared) {
  const Case c = gold_case("linear_logp", "backward", DType::f32, kDims);
  const auto inputs = gold_inputs(c);
  const auto comparisons = judge_outputs(c, inputs, rounded_gold(c, inputs), default_contract(), {}, 2);
  ASSERT_EQ(comparisons.size(), 3u);
  EXPECT_GT(comparisons[1].count, 0);
  EXPECT_EQ(comparisons[2].expected, 0);
}

TEST(Gold, LongestSumSetsTheChain) {
  const Case c =
      gold_case("linear_logp", "backward", DType::f32, {{"batch", 5}, {"seq", 7}, {"hidden", 16}, {"vocab", 21}});
  EXPECT_EQ(sum_terms(c, c.pass->outputs[0]), 21);  // hidden, vocab
  EXPECT_EQ(sum_terms(c, c.pass->outputs[1]), 35);  // batch*seq is longer
  const Case m = gold_case("matmul", "forward", DType::f32, {{"batch", 2}, {"seq", 3}, {"k_dim", 64}, {"n_dim", 4}});
  EXPECT_EQ(sum_terms(m, m.pass->outputs[0]), 64);
}

TEST(Gold, IdsOutsideTheVocabularyAreAnInputError) {
  for (const char* op : {"logp", "linear_logp"}) {
    const Case c = gold_case(op, "forward", DType::f32, kDims);
    auto inputs = gold_inputs(c);
    for (const double id : {21.0, -1.0, -99.0}) {
      Tensor& ids = inputs[op == std::string("logp") ? 1 : 2];
      ids.set(4, id);
      try {
        run_gold(c, inputs, 1, [](const GoldRows&) {});
        FAIL() << op << " accepted " << id;
      } catch (const InputError& e) {
        EXPECT_NE(std::string(e.what()).find("element 4 is"), std::string::npos) << e.what();
      }
    }
  }
}

TEST(Gold, RowsOfMinusInfinityButOneAreCertain) {
  const Case c = gold_case("logp", "backward", DType::f32, {{"batch", 1}, {"seq", 1}, {"vocab", 4}});
  auto inputs = gold_inputs(c);
  for (int64_t v = 0; v < 4; ++v) inputs[0].set(v, v == 2 ? 5 : -std::numeric_limits<double>::infinity());
  inputs[1].set(0, 2);
  inputs[2].set(0, 1);
  const GoldOutput dlogits = collect_gold(c, inputs, 1)[0];
  for (size_t v = 0; v < 4; ++v) {
    EXPECT_EQ(dlogits.value[v], 0);
    EXPECT_TRUE(std::isfinite(dlogits.magnitude[v]) && std::isfinite(dlogits.rounding[v]));
  }
}

TEST(Gold, TimesAreMeasured) {
  const Case c = gold_case("logp", "forward", DType::f32, kDims);
  const auto inputs = gold_inputs(c);
  GoldTimes times;
  judge_outputs(c, inputs, rounded_gold(c, inputs), default_contract(), {}, 1, {}, &times);
  EXPECT_GT(times.wall_ms, 0);
  EXPECT_LE(times.compare_ms, times.wall_ms);
}

// --- cost of a case --------------------------------------------------------------------------------------------------

Cost cost(const Case& c) { return cost_of(c, make_inputs(c, 1)); }

TEST(Cost, ProductsCountTwoOperationsATerm) {
  const Dims dims{{"batch", 2}, {"seq", 3}, {"k_dim", 5}, {"n_dim", 7}};
  EXPECT_EQ(cost(gold_case("matmul", "forward", DType::f32, dims)).flops, 2.0 * 6 * 5 * 7);
  EXPECT_EQ(cost(gold_case("matmul", "backward", DType::f32, dims)).flops, 4.0 * 6 * 5 * 7);
  EXPECT_EQ(cost(gold_case("det_gemm", "forward", DType::f32, dims)).flops, 2.0 * 6 * 5 * 7);
  const double product = 2.0 * 6 * 16 * 21;  // batch seq hidden vocab
  EXPECT_EQ(cost(gold_case("lm_head", "backward", DType::f32, kDims)).flops, 2 * product);
  EXPECT_EQ(cost(gold_case("linear_logp", "forward", DType::f32, kDims)).flops, product);
  EXPECT_EQ(cost(gold_case("linear_logp", "backward", DType::f32, kDims)).flops, 3 * product);  // logits again
}

TEST(Cost, CausalAttentionCountsThePairsThatAreKept) {
  const Dims dims{{"batch", 2}, {"q_heads", 6}, {"kv_heads", 2}, {"q_seq", 3}, {"kv_seq", 4}, {"head_dim", 8}};
  Case c = gold_case("attention", "forward", DType::f32, dims);
  EXPECT_EQ(cost(c).flops, 4.0 * 2 * 6 * 8 * (2 + 3 + 4));
  c.attrs[0] = 0;
  EXPECT_EQ(cost(c).flops, 4.0 * 2 * 6 * 8 * 3 * 4);
  c.pass = find_pass(*c.op, "backward");
  EXPECT_EQ(cost(c).flops, 10.0 * 2 * 6 * 8 * 3 * 4);
  const Dims cached{{"batch", 2},   {"q_heads", 6},   {"kv_heads", 2}, {"q_seq", 3},
                    {"new_seq", 3}, {"cache_seq", 1}, {"head_dim", 8}};
  EXPECT_EQ(cost(gold_case("kv_cache_attention", "forward", DType::f32, cached)).flops, 4.0 * 2 * 6 * 8 * (2 + 3 + 4));
}

TEST(Cost, EveryTensorMovesOnceAndPointwiseWorkIsNotCounted) {
  const Case c = gold_case("logp", "backward", DType::bf16, {{"batch", 2}, {"seq", 3}, {"vocab", 21}});
  EXPECT_EQ(cost(c).flops, 0);
  EXPECT_EQ(cost(c).bytes, 6 * (2 * 21 + 8 + 4 + 2 * 21));  // logits, id, grad_logp, dlogits
}

TEST(Cost, EmbeddingReadsTheRowsThatIdsSelectOnce) {
  const Case c = gold_case("embedding", "forward", DType::f32, {{"batch", 1}, {"seq", 4}, {"vocab", 9}, {"hidden", 5}});
  auto inputs = make_inputs(c, 1);
  for (int64_t i = 0; i < 4; ++i) inputs[0].set(i, i < 3 ? 7 : 2);
  EXPECT_EQ(cost_of(c, inputs).bytes, 4 * 8 + 2 * 5 * 4 + 4 * 5 * 4);  // ids, two rows of the table, y
}

TEST(Cost, LogitsOfMaskedTokensAreNotRead) {
  const Dims dims{{"batch", 2}, {"seq", 2}, {"vocab", 9}, {"group_bounds", 2}};
  for (const std::string_view op : {"ratio_kl", "grpo_loss"}) {
    const Case c = gold_case(op, "forward", DType::f32, dims);
    auto inputs = make_inputs(c, 1);
    const auto mask = [&](std::string_view name, std::initializer_list<double> values) {
      for (Tensor& tensor : inputs) {
        int64_t i = 0;
        if (tensor.name == name) std::for_each(values.begin(), values.end(), [&](double v) { tensor.set(i++, v); });
      }
    };
    mask("attention_mask", {1, 1, 1, 1});
    mask("completion_mask", {1, 1, 1, 1});
    const double all = cost_of(c, inputs).bytes;
    mask("attention_mask", {1, 2, 0, 1});
    EXPECT_EQ(all - cost_of(c, inputs).bytes, 2 * 9 * 4) << op;  // policy and reference of one token
    if (op == "ratio_kl") continue;
    mask("completion_mask", {0, 1, 0, 1});
    EXPECT_EQ(all - cost_of(c, inputs).bytes, 2 * 2 * 9 * 4) << op;
  }
}

TEST(Cost, RowsThatAreLeftOutAreNeitherReadNorMultiplied) {
  const Dims dims{{"batch", 1}, {"seq", 4}, {"hidden", 16}, {"vocab", 21}};
  for (const std::string_view op : {"logp", "linear_logp"}) {
    const Case c = gold_case(op, "forward", DType::f32, dims);
    auto inputs = make_inputs(c, 1);
    const int ids = op == "logp" ? 1 : 2;
    for (int64_t i = 0; i < 4; ++i) inputs[static_cast<size_t>(ids)].set(i, static_cast<double>(i));
    const Cost all = cost_of(c, inputs);
    inputs[static_cast<size_t>(ids)].set(2, -100);
    const Cost left = cost_of(c, inputs);
    EXPECT_EQ(all.bytes - left.bytes, inputs[0].bytes.size() / 4) << op;  // a row of logits, of hidden
    EXPECT_EQ(left.flops, all.flops * 3 / 4) << op;
  }
}

TEST(Cost, OfNoRowsIsANumber) {
  const Case c = gold_case("logp", "forward", DType::f32, {{"batch", 0}, {"seq", 4}, {"vocab", 21}});
  EXPECT_EQ(cost(c).bytes, 0);
}

TEST(Cost, RowsThatAreNotPackedAreNotRead) {
  const Dims dims{{"batch", 1}, {"seq", 4}, {"hidden", 16}};
  for (const std::string_view pass : {"forward", "backward"}) {
    const Case c = gold_case("pack", pass, DType::f32, dims);
    auto inputs = make_inputs(c, 1);
    Tensor &mask = inputs[pass == "forward" ? 1 : 0], &rows = inputs[pass == "forward" ? 0 : 1];
    for (int64_t i = 0; i < 4; ++i) mask.set(i, 1);
    const double all = cost_of(c, inputs).bytes;
    mask.set(0, 0);
    EXPECT_EQ(all - cost_of(c, inputs).bytes, rows.bytes.size() / 4) << pass;
  }
}

}  // namespace
}  // namespace checkop::gold_test
