// SPDX-License-Identifier: Apache-2.0
// Cases: sizes, names, validation, slices.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "base/error.hpp"
#include "case/case.hpp"
#include "support/gold_helper.hpp"

namespace checkop::case_test {
namespace {

Case small() {
  return gold_case("linear_logp", "backward", DType::bf16, {{"batch", 2}, {"seq", 3}, {"hidden", 8}, {"vocab", 11}});
}

std::string error_of(const Case& c) {
  try {
    validate(c);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Case, NamesCarryOperatorDtypeAndSizes) {
  Case c = small();
  EXPECT_EQ(case_name(c), "linear_logp-bf16-2x3x8x11");
  c.optionals = {"bias"};
  c.input_mode = InputMode::peaked;
  EXPECT_EQ(case_name(c), "linear_logp-bf16-2x3x8x11+bias~peaked");
  c.seed = 7;
  EXPECT_EQ(case_name(c), "linear_logp-bf16-2x3x8x11+bias~peaked#7");
}

TEST(Case, FlagsNameEverythingThatDiffersFromTheDefault) {
  Case c = small();
  c.optionals = {"bias"};
  c.input_mode = InputMode::constant;
  c.grad_mode = GradMode::ones;
  c.seed = 7;
  EXPECT_EQ(case_flags(c),
            "--op linear_logp --pass backward --dtype bf16 --batch 2 --seq 3 --hidden 8 --vocab 11 --with bias "
            "--input-mode constant --constant-value 0.25 --token-value 0 --grad-mode ones --seed 7 --grad-seed 123");
}

TEST(Case, OptionalTensorsArePresentWhenNamed) {
  Case c = small();
  EXPECT_FALSE(is_present(c, c.pass->inputs[3]));
  EXPECT_FALSE(is_present(c, c.pass->outputs[2].tensor));
  c.optionals = {"bias"};
  EXPECT_TRUE(is_present(c, c.pass->inputs[3]));
  EXPECT_TRUE(is_present(c, c.pass->outputs[2].tensor));
}

TEST(Case, ShapesFollowTheSpec) {
  const Case c = small();
  EXPECT_EQ(shape_of(c, c.pass->inputs[0]), (Shape{2, 3, 8}));
  EXPECT_EQ(dtype_of(c, c.pass->inputs[0]), DType::bf16);
  EXPECT_EQ(dtype_of(c, c.pass->inputs[2]), DType::i64);
  EXPECT_EQ(row_count(c), 6);
}

TEST(Case, TensorBytesCountInputsAndOutputsThatArePresent) {
  Case c = small();  // hidden 6x8, weight and its gradient 11x8, dhidden 6x8 in bf16; ids in int64, grad_logp in fp32
  const int64_t without = 2 * (6 * 8 + 11 * 8) * 2 + 6 * 8 + 6 * 4;
  EXPECT_EQ(tensor_bytes(c), without);
  c.optionals = {"bias"};
  EXPECT_EQ(tensor_bytes(c), without + 2 * 11 * 2);
}

TEST(Case, SizesBelowOneAreNamed) {
  Case c = small();
  c.dims["vocab"] = 0;
  EXPECT_EQ(error_of(c),
            "--vocab: expected an integer >= 1, got 0; give a size of at least 1; only batch and seq may be 0, for no "
            "rows");
  c.dims["vocab"] = -5;
  EXPECT_NE(error_of(c).find("got -5"), std::string::npos);
  c.dims.erase("vocab");
  EXPECT_THROW(validate(c), std::out_of_range);
}

TEST(Case, RowsMayBeNone) {
  Case c = small();
  for (const char* dim : {"batch", "seq"}) {
    c.dims[dim] = 0;
    EXPECT_EQ(error_of(c), "no error");
    EXPECT_EQ(row_count(c), 0);
    c.dims[dim] = -1;
    EXPECT_NE(error_of(c).find("expected an integer >= 0, got -1"), std::string::npos);
    c.dims[dim] = 2;
  }
  const Case rope = gold_case("rope", "forward", DType::f32, {{"batch", 1}, {"heads", 1}, {"seq", 0}, {"head_dim", 2}});
  EXPECT_NE(error_of(rope).find("--seq: expected an integer >= 1, got 0"), std::string::npos);
  const Case loss =
      gold_case("grpo_loss", "forward", DType::f32, {{"batch", 0}, {"seq", 2}, {"vocab", 5}, {"group_bounds", 2}});
  EXPECT_EQ(error_of(loss),
            "--batch: expected an integer >= 1, got 0; grpo_loss reduces over the whole batch, so the batch "
            "can't be empty");
}

TEST(Case, SizesBeyondMemoryAreNamedBeforeAnythingIsAllocated) {
  Case c = small();
  c.dims["vocab"] = int64_t{1} << 40;
  c.dims["hidden"] = int64_t{1} << 30;
  EXPECT_NE(error_of(c), "no error");
  c.dims["hidden"] = 4096;
  EXPECT_NE(error_of(c).find("lm_head_weight"), std::string::npos);
}

// ignored_every decides which tokens belong to no sequence, so a repeat line without it would have other data.
TEST(Case, FlagsHaveIgnoredEveryWhereSequencesArePacked) {
  Case c = gold_case("paged_attention", "forward", DType::f32,
                     {{"tokens_q", 4},
                      {"q_heads", 1},
                      {"kv_heads", 1},
                      {"head_dim", 2},
                      {"pages", 3},
                      {"page_size", 2},
                      {"seqs", 2},
                      {"max_pages", 2}});
  EXPECT_EQ(case_flags(c).find("--ignored-every"), std::string::npos) << "the usual one";
  c.ignored_every = 0;
  EXPECT_NE(case_flags(c).find("--ignored-every 0"), std::string::npos) << case_flags(c);
  EXPECT_NE(case_name(c).find("~ignored0"), std::string::npos) << case_name(c);
}

TEST(Case, WhatMasksKeepIsSaidWhereItIsNotTheUsual) {
  Case c = gold_case("pack", "forward", DType::f32, {{"batch", 4}, {"seq", 3}, {"hidden", 2}});
  for (const int64_t every : {0, 1}) {
    c.ignored_every = every;
    EXPECT_NE(case_flags(c).find(fmt::format("--ignored-every {}", every)), std::string::npos) << case_flags(c);
    EXPECT_NE(case_name(c).find(fmt::format("~ignored{}", every)), std::string::npos) << case_name(c);
  }
  c.ignored_every = 3;  // which changes nothing
  EXPECT_EQ(case_flags(c).find("--ignored-every"), std::string::npos) << case_flags(c);
}

TEST(Case, ValuesHaveTheSizeOfKeysUnlessVDimIsGiven) {
  Case c = gold_case("attention", "forward", DType::f32,
                     {{"batch", 1}, {"q_heads", 4}, {"kv_heads", 2}, {"q_seq", 3}, {"kv_seq", 5}, {"head_dim", 8}});
  const TensorSpec &v = c.pass->inputs[2], &o = c.pass->outputs[0].tensor;
  EXPECT_EQ(shape_of(c, v), (Shape{1, 2, 5, 8}));
  EXPECT_EQ(case_name(c), "attention-fp32-1x4x3x8x2x5");
  EXPECT_EQ(case_flags(c).find("--v-dim"), std::string::npos) << case_flags(c);
  c.dims["v_dim"] = 6;
  drop_usual_sizes(c);
  EXPECT_EQ(shape_of(c, v), (Shape{1, 2, 5, 6}));
  EXPECT_EQ(shape_of(c, o), (Shape{1, 4, 3, 6}));
  EXPECT_EQ(case_name(c), "attention-fp32-1x4x3x8x2x5x6");
  EXPECT_NE(case_flags(c).find("--v-dim 6"), std::string::npos) << case_flags(c);
  c.dims["v_dim"] = 0;
  EXPECT_NE(error_of(c).find("--v-dim: expected an integer >= 1, got 0"), std::string::npos);
  c.dims["v_dim"] = 8;
  drop_usual_sizes(c);
  EXPECT_EQ(case_name(c), "attention-fp32-1x4x3x8x2x5") << "one name for the same sizes";
}

TEST(Case, SliceKeepsEverythingButTheRows) {
  const Case slice = slice_rows(small(), 2, 5);
  EXPECT_EQ(slice.dims.at("batch"), 1);
  EXPECT_EQ(slice.dims.at("seq"), 3);
  EXPECT_EQ(slice.dims.at("vocab"), 11);
}

}  // namespace
}  // namespace checkop::case_test
