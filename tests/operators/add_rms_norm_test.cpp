// SPDX-License-Identifier: Apache-2.0
// Special about add_rms_norm: which sum is stored, which is normalised, and what a rounding of it means.
#include <gtest/gtest.h>

#include <cmath>

#include "support/gold_helper.hpp"

namespace checkop::add_rms_norm_test {
namespace {

Case case_of(DType dtype, double eps, double round_sum, double offset) {
  Case c = gold_case("add_rms_norm", "forward", dtype, {{"batch", 1}, {"seq", 1}, {"hidden", 1}});
  c.attrs = {eps, round_sum, offset};
  return c;
}

/// Rows of one element x + residual = 1 + 2^-8 + 2^-12, which bf16 rounds up to 1 + 2^-7, times a weight of 1.
std::vector<GoldOutput> gold_of(DType dtype, double round_sum) {
  const Case c = case_of(dtype, 0.5, round_sum, 0);
  const double values[] = {1, 0x1p-8 + 0x1p-12, 1};
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < 3; ++i) inputs.push_back(gold_input(c, c.pass->inputs[i], [&](int64_t) { return values[i]; }));
  return collect_gold(c, inputs, 1);
}

double normalised(double s) { return s / std::sqrt(s * s + 0.5); }

TEST(AddRmsNorm, TheStoredSumIsRoundedToNearest) {
  for (const double round_sum : {0, 1}) {
    EXPECT_EQ(gold_of(DType::bf16, round_sum)[1].value[0], 1 + 0x1p-7);
    EXPECT_EQ(gold_of(DType::f32, round_sum)[1].value[0], 1 + 0x1p-8 + 0x1p-12);
  }
}

TEST(AddRmsNorm, RoundSumNormalisesTheStoredSum) {
  EXPECT_DOUBLE_EQ(gold_of(DType::bf16, 1)[0].value[0], normalised(1 + 0x1p-7));
  EXPECT_DOUBLE_EQ(gold_of(DType::bf16, 0)[0].value[0], normalised(1 + 0x1p-8 + 0x1p-12));
}

TEST(AddRmsNorm, ASumOfFp32AllowsForItsRounding) {
  EXPECT_GT(gold_of(DType::bf16, 0)[0].rounding[0], gold_of(DType::bf16, 1)[0].rounding[0]);
  EXPECT_EQ(gold_of(DType::bf16, 1)[1].rounding[0], 0);
}

TEST(AddRmsNorm, AttributesOutOfRangeAreRefused) {
  EXPECT_NO_THROW(validate(case_of(DType::bf16, 1e-6, 1, 1)));
  EXPECT_THROW(validate(case_of(DType::bf16, 0, 1, 0)), InputError);
  EXPECT_THROW(validate(case_of(DType::bf16, 1e-6, 0.5, 0)), InputError);
  EXPECT_THROW(validate(case_of(DType::bf16, 1e-6, 1, INFINITY)), InputError);
}

}  // namespace
}  // namespace checkop::add_rms_norm_test
