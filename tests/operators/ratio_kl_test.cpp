// SPDX-License-Identifier: Apache-2.0
// Edge cases of ratio_kl, in the gold and in the native candidate.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "device/device.hpp"
#include "support/rows_helper.hpp"

namespace checkop::ratio_kl_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
const Dims kDims{{"batch", 2}, {"seq", 3}, {"vocab", 21}};
constexpr int64_t kMaskedRow = 2, kActiveRow = 4;

Case ratio_case(std::string_view pass) { return gold_case("ratio_kl", pass, DType::f32, kDims); }

/// Row 2 is masked and holds `logit` and `id`; the others are active.
std::vector<Tensor> masked_inputs(const Case& c, double logit, double id) {
  std::vector<Tensor> inputs = active_policy_inputs(c);
  input(c, inputs, "attention_mask").set(kMaskedRow, 0);
  for (const char* name : {"policy_logits", "ref_logits", "old_logps"}) {
    set_row(input(c, inputs, name), kMaskedRow, logit);
  }
  input(c, inputs, "action_ids").set(kMaskedRow, id);
  return inputs;
}

bool is_finite(const Tensor& tensor) {
  for (int64_t i = 0; i < tensor.count(); ++i) {
    if (!std::isfinite(tensor.at(i))) return false;
  }
  return true;
}

TEST(RatioKl, MaskedTokensAreOneAndZeroWhateverTheyHold) {
  const Case c = ratio_case("forward");
  for (const double logit : {kNan, kInf, -kInf, 1e30}) {
    for (const double id : {-100.0, 21.0, 1e15}) {
      const auto inputs = masked_inputs(c, logit, id);
      const auto gold = collect_gold(c, inputs, 1);
      EXPECT_EQ(gold[0].value[kMaskedRow], 1.0);
      EXPECT_EQ(gold[1].value[kMaskedRow], 0.0);
      const NativeAnswer native = run_native(c, inputs);
      ASSERT_EQ(native.result.status, RunStatus::ok) << native.result.message;
      EXPECT_EQ(native.outputs[0].at(kMaskedRow), 1.0);
      EXPECT_EQ(native.outputs[1].at(kMaskedRow), 0.0);
      EXPECT_TRUE(is_finite(native.outputs[0]) && is_finite(native.outputs[1]));
    }
  }
}

TEST(RatioKl, MaskedTokensHaveZeroGradientAndSpoilNoOther) {
  const Case c = ratio_case("backward");
  const auto inputs = masked_inputs(c, kNan, -100);
  const GoldOutput gold = collect_gold(c, inputs, 1)[0];
  const NativeAnswer native = run_native(c, inputs);
  ASSERT_EQ(native.result.status, RunStatus::ok) << native.result.message;
  EXPECT_TRUE(is_finite(native.outputs[0]));
  for (int64_t v = 0; v < 21; ++v) {
    EXPECT_EQ(gold.value[static_cast<size_t>(kMaskedRow * 21 + v)], 0.0);
    EXPECT_EQ(native.outputs[0].at(kMaskedRow * 21 + v), 0.0);
    EXPECT_NE(gold.value[static_cast<size_t>(kActiveRow * 21 + v)], 0.0);
  }
}

TEST(RatioKl, NanInAnActiveTokenStaysInItsRow) {
  const Case c = ratio_case("forward");
  auto inputs = masked_inputs(c, 0, 0);
  input(c, inputs, "policy_logits").set(kActiveRow * 21 + 7, kNan);
  const auto gold = collect_gold(c, inputs, 1);
  const NativeAnswer native = run_native(c, inputs);
  for (int64_t row = 0; row < 6; ++row) {
    EXPECT_EQ(std::isnan(gold[0].value[static_cast<size_t>(row)]), row == kActiveRow);
    EXPECT_EQ(std::isnan(native.outputs[0].at(row)), row == kActiveRow);
  }
}

TEST(RatioKl, ActiveIdsOutsideTheVocabularyAreRefused) {
  for (const char* pass : {"forward", "backward"}) {
    const Case c = ratio_case(pass);
    for (const double id : {-1.0, -100.0, 21.0}) {
      auto inputs = masked_inputs(c, 0, 0);
      input(c, inputs, "action_ids").set(kActiveRow, id);
      EXPECT_THROW(collect_gold(c, inputs, 1), InputError);
      const NativeAnswer native = run_native(c, inputs);
      EXPECT_EQ(native.result.status, RunStatus::failed);
      EXPECT_NE(native.result.message.find("action_ids[4]"), std::string::npos) << native.result.message;
    }
  }
}

// Two logits suffice: the reference's first logit alone sets d.
TEST(RatioKl, KlKeepsItsDigitsNearZeroAndIsNeverNegative) {
  const Case c = gold_case("ratio_kl", "forward", DType::f32, {{"batch", 1}, {"seq", 1}, {"vocab", 2}});
  for (double step = 1; step > 1e-3; step /= 2) {
    for (const double sign : {-1.0, 1.0}) {
      auto inputs = make_inputs(c, 1);
      input(c, inputs, "action_ids").set(0, 0);
      input(c, inputs, "attention_mask").set(0, 1);
      for (const char* name : {"policy_logits", "ref_logits"}) set_row(input(c, inputs, name), 0, 0);
      input(c, inputs, "ref_logits").set(0, sign * step);
      const double d = sign * step - std::log((std::exp(sign * step) + 1) / 2);
      double expected = 0, term = d;
      for (int n = 2; n < 30; ++n) expected += term *= d / n;
      const double gold = collect_gold(c, inputs, 1)[1].value[0], native = run_native(c, inputs).outputs[1].at(0);
      EXPECT_NEAR(gold, expected, 1e-12 * expected + 1e-18) << d;
      EXPECT_NEAR(native, expected, 1e-6 * std::abs(d)) << d;
      EXPECT_GE(native, 0.0);
    }
  }
}

TEST(RatioKl, EqualPoliciesHaveNoKlAndNoKlGradient) {
  const Case c = ratio_case("backward");
  auto inputs = active_policy_inputs(c);
  for (int64_t i = 0; i < input(c, inputs, "policy_logits").count(); ++i) {
    input(c, inputs, "ref_logits").set(i, input(c, inputs, "policy_logits").at(i));
  }
  for (int64_t row = 0; row < 6; ++row) input(c, inputs, "grad_ratio").set(row, 0);
  const GoldOutput dpolicy = collect_gold(c, inputs, 1)[0];
  for (const double value : dpolicy.value) EXPECT_EQ(value, 0.0);
}

TEST(RatioKl, GeneratedOldLogpsAreThoseOfThePolicyALittleAgo) {
  const Case c = gold_case("ratio_kl", "forward", DType::f32, {{"batch", 100}, {"seq", 100}, {"vocab", 3}});
  const auto inputs = make_inputs(c, 2);
  int outliers = 0;
  const GoldOutput ratios = collect_gold(c, inputs, 2)[0];
  for (const double ratio : ratios.value) {
    const double drift = std::abs(std::log(ratio));
    EXPECT_TRUE(drift < 0.12 || (drift > 4.88 && drift < 5.12)) << drift;
    outliers += drift > 1;
  }
  EXPECT_GT(outliers, 0);
  EXPECT_LT(outliers, 30);
}

}  // namespace
}  // namespace checkop::ratio_kl_test
