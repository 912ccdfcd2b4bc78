// SPDX-License-Identifier: Apache-2.0
// Edge cases of grpo_loss, in the gold and in the native candidate.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "device/device.hpp"
#include "support/rows_helper.hpp"

namespace checkop::grpo_loss_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kBatch = 6, kSeq = 3, kVocab = 21, kRows = kBatch * kSeq;
enum Attr : size_t { kSamples, kClip, kBeta, kEps };

Case grpo_case(std::string_view pass, double samples = 3, double beta = 0, bool boundaries = false) {
  Case c = gold_case("grpo_loss", pass, DType::f32,
                     {{"batch", kBatch}, {"seq", kSeq}, {"vocab", kVocab}, {"group_bounds", 3}});
  if (boundaries) c.optionals = {"group_boundaries"};
  c.attrs[kSamples] = samples, c.attrs[kBeta] = beta;
  return c;
}

void set_rewards(const Case& c, std::vector<Tensor>& inputs, const std::vector<double>& rewards) {
  for (size_t i = 0; i < rewards.size(); ++i) input(c, inputs, "rewards").set(static_cast<int64_t>(i), rewards[i]);
}

bool all_zero(const std::vector<double>& values) {
  for (const double x : values) {
    if (x != 0) return false;
  }
  return true;
}

// In fp32 the mean of seven equal numbers may differ from that number, and eps magnifies the difference a million
// times.
TEST(GrpoLoss, AGroupOfEqualRewardsCountsForExactlyNothing) {
  for (const char* pass : {"forward", "backward"}) {
    Case c = grpo_case(pass, 7);
    c.dims["batch"] = 7;
    auto inputs = make_inputs(c, 1);
    for (int i = 1; i < 20; ++i) {
      set_rewards(c, inputs, std::vector<double>(7, i * 0.1));
      const auto values = gold_and_native(c, inputs);
      EXPECT_TRUE(all_zero(values.front())) << pass << " gold, reward " << i * 0.1;
      EXPECT_TRUE(all_zero(values[values.size() / 2])) << pass << " native, reward " << i * 0.1;
    }
  }
}

TEST(GrpoLoss, LargeRewardsKeepTheirSpread) {
  const Case c = grpo_case("forward", 2);
  auto small = active_policy_inputs(c), large = active_policy_inputs(c);
  set_rewards(c, small, {0, 1, 1, 0, 1, 0});
  set_rewards(c, large, {1e6, 1e6 + 1, 1e6 + 1, 1e6, 1e6 + 1, 1e6});
  const auto expected = gold_and_native(c, small), got = gold_and_native(c, large);
  EXPECT_EQ(got[0], expected[0]);
  EXPECT_EQ(got[3], expected[3]);
  EXPECT_NE(expected[0][0], 0.0);
}

TEST(GrpoLoss, WithoutActiveTokensEverythingIsZero) {
  for (const char* mask : {"attention_mask", "completion_mask"}) {
    for (const char* pass : {"forward", "backward"}) {
      const Case c = grpo_case(pass, 3, 0.04);
      auto inputs = active_policy_inputs(c);
      for (int64_t row = 0; row < kRows; ++row) input(c, inputs, mask).set(row, 0);
      for (const auto& values : gold_and_native(c, inputs)) EXPECT_TRUE(all_zero(values)) << mask << " " << pass;
    }
  }
}

TEST(GrpoLoss, TokensThatAreNotActiveMayHoldAnything) {
  for (const char* mask : {"attention_mask", "completion_mask"}) {
    for (const char* pass : {"forward", "backward"}) {
      const Case c = grpo_case(pass, 3, 0.04);
      auto clean = active_policy_inputs(c), spoilt = active_policy_inputs(c);
      for (auto* inputs : {&clean, &spoilt}) input(c, *inputs, mask).set(4, 0);
      for (const char* name : {"policy_logits", "ref_logits", "old_logps"}) set_row(input(c, spoilt, name), 4, kNan);
      input(c, spoilt, "action_ids").set(4, -100);
      EXPECT_EQ(gold_and_native(c, spoilt), gold_and_native(c, clean)) << mask << " " << pass;
    }
  }
}

TEST(GrpoLoss, ActiveIdsOutsideTheVocabularyAreRefused) {
  const Case c = grpo_case("forward");
  auto inputs = active_policy_inputs(c);
  input(c, inputs, "action_ids").set(7, kVocab);
  EXPECT_THROW(collect_gold(c, inputs, 1), InputError);
  EXPECT_EQ(run_native(c, inputs).result.status, RunStatus::failed);
}

TEST(GrpoLoss, BoundariesThatDoNotCutTheBatchAreRefused) {
  const Case c = grpo_case("forward", 2, 0, true);
  for (const auto& bounds : std::vector<std::vector<double>>{{1, 3, 6}, {0, 3, 5}, {0, 0, 6}, {0, 7, 6}, {0, 6, 6}}) {
    auto inputs = active_policy_inputs(c);
    for (size_t i = 0; i < bounds.size(); ++i) {
      input(c, inputs, "group_boundaries").set(static_cast<int64_t>(i), bounds[i]);
    }
    EXPECT_THROW(collect_gold(c, inputs, 1), InputError) << bounds[0] << " " << bounds[1] << " " << bounds[2];
    EXPECT_EQ(run_native(c, inputs).result.status, RunStatus::failed);
  }
}

TEST(GrpoLoss, BoundariesOfEqualGroupsAreSamplesPerPrompt) {
  const Case with = grpo_case("forward", 2, 0, true), without = grpo_case("forward", 3);
  auto inputs = active_policy_inputs(with);
  for (int64_t i = 0; i < 3; ++i) input(with, inputs, "group_boundaries").set(i, static_cast<double>(3 * i));
  auto others = active_policy_inputs(without);
  for (int64_t i = 0; i < 6; ++i)  // rewards depend on the groups
    input(without, others, "rewards").set(i, input(with, inputs, "rewards").at(i));
  EXPECT_EQ(gold_and_native(with, inputs), gold_and_native(without, others));
}

TEST(GrpoLoss, SizesThatDoNotGoTogetherAreRefused) {
  for (const double samples : {0.0, 1.0, 1.5, 4.0, 12.0}) {
    EXPECT_THROW(validate(grpo_case("forward", samples)), InputError) << samples;
  }
  EXPECT_NO_THROW(validate(grpo_case("forward", 6)));
  EXPECT_NO_THROW(validate(grpo_case("forward", 5, 0, true)));
  Case many = grpo_case("forward", 2, 0, true);
  many.dims["group_bounds"] = kBatch + 2;
  EXPECT_THROW(validate(many), InputError);
}

/// Sets old_logps so that the ratio of `row` is exp(log_ratio).
void set_ratio(const Case& c, std::vector<Tensor>& inputs, int64_t row, double log_ratio) {
  Case ratio = gold_case("ratio_kl", "forward", DType::f32, {{"batch", kBatch}, {"seq", kSeq}, {"vocab", kVocab}});
  std::vector<Tensor> own = make_inputs(ratio, 1);
  for (const char* name : {"policy_logits", "ref_logits", "action_ids", "attention_mask", "old_logps"}) {
    Tensor &from = input(c, inputs, name), &to = input(ratio, own, name);
    std::copy_n(from.bytes.data(), from.bytes.size(), to.bytes.data());
  }
  Tensor& old = input(c, inputs, "old_logps");
  old.set(row, old.at(row) + std::log(collect_gold(ratio, own, 1)[0].value[static_cast<size_t>(row)]) - log_ratio);
}

// Rewards 0 and 1: the first completion of each pair has A = -1, the second +1.
TEST(GrpoLoss, ClippedTokensHaveNoGradient) {
  const Case c = grpo_case("backward", 2);
  for (const double log_ratio : {-5.0, -0.3, 0.3, 5.0}) {
    auto inputs = active_policy_inputs(c);
    set_rewards(c, inputs, {0, 1, 0, 1, 0, 1});
    for (const int64_t row : {1, 4}) set_ratio(c, inputs, row, log_ratio);
    const auto values = gold_and_native(c, inputs);
    for (const auto& gradient : values) {
      const double first = gradient[1 * kVocab], second = gradient[4 * kVocab];
      EXPECT_EQ(first == 0, log_ratio < 0) << log_ratio;
      EXPECT_EQ(second == 0, log_ratio > 0) << log_ratio;
    }
  }
}

TEST(GrpoLoss, AtTheClipEdgeEitherBranchIsInTheBound) {
  const Case c = grpo_case("backward", 2);
  auto inputs = active_policy_inputs(c), taken = active_policy_inputs(c), other = active_policy_inputs(c);
  for (auto* each : {&inputs, &taken, &other}) set_rewards(c, *each, {0, 1, 0, 1, 0, 1});
  set_ratio(c, inputs, 4, std::log(1.2));
  set_ratio(c, taken, 4, std::log(1.19));
  set_ratio(c, other, 4, std::log(1.21));
  const GoldOutput edge = collect_gold(c, inputs, 1)[0], below = collect_gold(c, taken, 1)[0];
  for (size_t at = 4 * kVocab; at < 5 * kVocab; ++at) {
    EXPECT_GE(edge.rounding[at] * 0x1p-24, std::abs(below.value[at])) << at;
    EXPECT_LT(below.rounding[at] * 0x1p-24, std::abs(below.value[at]) * 1e-3) << at;
  }
  const GoldOutput above = collect_gold(c, other, 1)[0];
  for (size_t at = 4 * kVocab; at < 5 * kVocab; ++at) EXPECT_EQ(above.value[at], 0.0);
}

TEST(GrpoLoss, GradientIsThatOfRatioKl) {
  const Case c = grpo_case("backward", 2, 0.04);
  auto inputs = active_policy_inputs(c);
  set_rewards(c, inputs, {0, 1, 0, 1, 0, 1});
  Case ratio = gold_case("ratio_kl", "backward", DType::f32, {{"batch", kBatch}, {"seq", kSeq}, {"vocab", kVocab}});
  std::vector<Tensor> own = make_inputs(ratio, 1);
  for (const char* name : {"policy_logits", "ref_logits", "action_ids", "attention_mask", "old_logps"}) {
    Tensor &from = input(c, inputs, name), &to = input(ratio, own, name);
    std::copy_n(from.bytes.data(), from.bytes.size(), to.bytes.data());
  }
  for (int64_t row = 0; row < kRows; ++row) {
    input(ratio, own, "grad_ratio").set(row, row / kSeq % 2 == 0 ? 1 : -1);  // -A
    input(ratio, own, "grad_kl").set(row, 0.04);                             // rounded to fp32
  }
  const double scale = input(c, inputs, "grad_loss").at(0) / kRows;
  const GoldOutput got = collect_gold(c, inputs, 1)[0], expected = collect_gold(ratio, own, 1)[0];
  for (size_t i = 0; i < got.value.size(); ++i) EXPECT_NEAR(got.value[i], scale * expected.value[i], 1e-8);
}

}  // namespace
}  // namespace checkop::grpo_loss_test
