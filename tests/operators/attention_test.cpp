// SPDX-License-Identifier: Apache-2.0
// attention: masks, groups, scales, and masked values that must not leak, in the gold and in the native candidate.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "device/device.hpp"
#include "device/plugin.hpp"
#include "run/runner.hpp"
#include "support/built.hpp"
#include "support/gold_helper.hpp"

namespace checkop::attention_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Dims dims(int64_t q_seq, int64_t kv_seq, int64_t q_heads = 2, int64_t kv_heads = 1) {
  return {{"batch", 2},     {"q_heads", q_heads}, {"kv_heads", kv_heads},
          {"q_seq", q_seq}, {"kv_seq", kv_seq},   {"head_dim", 4}};
}

Case attention(std::string_view pass, const Dims& sizes, bool causal = true, bool masked = false,
               DType dtype = DType::f64) {
  Case c = gold_case("attention", pass, dtype, sizes);
  c.attrs = {causal ? 1.0 : 0.0, -1.0};
  if (masked) c.optionals.insert("key_padding_mask");
  return c;
}

size_t at(int64_t i) { return static_cast<size_t>(i); }

TEST(Attention, OneKeyGivesItsValue) {
  const Case c = attention("forward", dims(1, 1));
  const std::vector<Tensor> inputs = gold_inputs(c);
  const GoldOutput o = collect_gold(c, inputs, 1).at(0);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(o.value[at(b * 8 + i)], inputs[2].at(b * 4 + i % 4));
  }
}

// Scores of 0 weigh all keys equally, and 0 is a valid scale.
TEST(Attention, AScaleOfZeroIsHonoured) {
  Case c = attention("forward", dims(2, 3), /*causal=*/false);
  c.attrs[1] = 0;
  const std::vector<Tensor> inputs = gold_inputs(c);
  const GoldOutput o = collect_gold(c, inputs, 1).at(0);
  const double mean = (inputs[2].at(0) + inputs[2].at(4) + inputs[2].at(8)) / 3;
  EXPECT_NEAR(o.value[0], mean, 1e-15);
  c = with_pass(c, "backward");
  const std::vector<GoldOutput> gradients = collect_gold(c, gold_inputs(c), 1);
  for (const double dq : gradients[0].value) EXPECT_EQ(dq, 0);
}

TEST(Attention, TheDefaultScaleIsOneOverTheRootOfTheHeadSize) {
  Case c = attention("forward", dims(3, 3));
  const std::vector<Tensor> inputs = gold_inputs(c);
  const GoldOutput by_default = collect_gold(c, inputs, 1).at(0);
  c.attrs[1] = 0.5;
  EXPECT_EQ(by_default.value, collect_gold(c, inputs, 1).at(0).value);
}

TEST(Attention, QueryHeadsOfAGroupReadTheSameKeys) {
  const Case grouped = attention("forward", dims(3, 5, 4, 2)), plain = attention("forward", dims(3, 5, 4, 4));
  const std::vector<Tensor> few = gold_inputs(grouped);
  std::vector<Tensor> all = gold_inputs(plain);
  for (const size_t t : {size_t{1}, size_t{2}}) {
    for (int64_t i = 0; i < all[t].count(); ++i) {
      const int64_t b = i / 80, head = i / 20 % 4;
      all[t].set(i, few[t].at(b * 40 + head / 2 * 20 + i % 20));
    }
  }
  EXPECT_EQ(collect_gold(grouped, few, 1).at(0).value, collect_gold(plain, all, 1).at(0).value);
}

// With more queries than keys the first queries see none.
TEST(Attention, AQueryWithoutKeysIsZeroAndHasZeroGradients) {
  const Dims sizes = dims(5, 3, 1, 1);
  const Case c = attention("forward", sizes), back = attention("backward", sizes);
  const GoldOutput o = collect_gold(c, gold_inputs(c), 1).at(0);
  const GoldOutput dq = collect_gold(back, gold_inputs(back), 1).at(0);
  for (const GoldOutput* output : {&o, &dq}) {
    for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(output->value[at(i)], 0) << output->name;
    EXPECT_NE(output->value[at(16)], 0) << output->name;
  }
}

TEST(Attention, AnEntryThatIsAllMaskedIsZero) {
  for (const std::string_view pass : {"forward", "backward"}) {
    const Case c = attention(pass, dims(3, 4), /*causal=*/false, /*masked=*/true);
    std::vector<Tensor> inputs = gold_inputs(c);
    for (int64_t j = 0; j < 4; ++j) inputs[3].set(4 + j, 0);
    for (const GoldOutput& output : collect_gold(c, inputs, 1)) {
      const int64_t entry = std::ssize(output.value) / c.dims.at("batch");
      for (int64_t i = entry; i < 2 * entry; ++i) EXPECT_EQ(output.value[at(i)], 0) << output.name;
    }
  }
}

// Any nonzero value keeps a key.
TEST(Attention, TwoInTheMaskKeepsLikeOne) {
  const Case c = attention("forward", dims(3, 4), true, true);
  std::vector<Tensor> inputs = gold_inputs(c);
  for (int64_t j = 0; j < 8; ++j) inputs[3].set(j, j % 3 == 1 ? 0 : 1);
  const std::vector<double> ones = collect_gold(c, inputs, 1).at(0).value;
  for (int64_t j = 0; j < 8; ++j) inputs[3].set(j, j % 3 == 1 ? 0 : 2);
  EXPECT_EQ(ones, collect_gold(c, inputs, 1).at(0).value);
}

/// Runs the native candidate and returns its outputs.
std::vector<Tensor> native(const Case& c, const std::vector<Tensor>& inputs) {
  const std::vector<Candidate> candidates = load_plugin(native_plugin("attention"));
  std::vector<Tensor> outputs = make_outputs(c);
  const auto device = open_cpu_device();
  for (const Candidate& candidate : candidates) {
    if (candidate.pass != c.pass->name) continue;
    const RunResult run = run_candidate(*device, candidate, c, inputs, outputs, RunChecks{});
    EXPECT_EQ(run.status, RunStatus::ok) << run.message;
  }
  return outputs;
}

// NaN or infinity in padding or in future keys changes no bit of a query that does not see them.
TEST(Attention, WhatIsMaskedNeverLeaks) {
  for (const std::string_view pass : {"forward", "backward"}) {
    const Case c = attention(pass, dims(3, 4), /*causal=*/true, /*masked=*/true, DType::f32);
    std::vector<Tensor> inputs = gold_inputs(c);
    for (int64_t j = 0; j < 8; ++j) inputs[3].set(j, j == 1 || j == 6 ? 0 : 1);
    const std::vector<GoldOutput> clean = collect_gold(c, inputs, 1);
    const std::vector<Tensor> clean_native = native(c, inputs);
    for (const size_t t : {size_t{1}, size_t{2}}) {
      for (int64_t d = 0; d < 4; ++d) {
        inputs[t].set(1 * 4 + d, kNan);
        inputs[t].set(6 * 4 + d, d % 2 == 0 ? kNan : HUGE_VAL);
      }
    }
    const std::vector<GoldOutput> dirty = collect_gold(c, inputs, 1);
    const std::vector<Tensor> dirty_native = native(c, inputs);
    for (size_t i = 0; i < clean.size(); ++i) {
      EXPECT_EQ(clean[i].value, dirty[i].value) << clean[i].name;
      for (int64_t e = 0; e < clean_native[i].count(); ++e) {
        EXPECT_EQ(clean_native[i].at(e), dirty_native[i].at(e)) << clean[i].name << e;
      }
    }
  }
}

TEST(Attention, AKeyInTheFutureNeverLeaks) {
  const Case c = attention("forward", dims(3, 3, 1, 1), /*causal=*/true, /*masked=*/false, DType::f32);
  std::vector<Tensor> inputs = gold_inputs(c);
  for (int64_t d = 0; d < 4; ++d) inputs[1].set(8 + d, kNan), inputs[2].set(8 + d, kNan);
  const GoldOutput o = collect_gold(c, inputs, 1).at(0);
  const std::vector<Tensor> got = native(c, inputs);
  for (int64_t i = 0; i < 12; ++i) {
    EXPECT_EQ(std::isnan(o.value[at(i)]), i >= 8) << i;
    EXPECT_EQ(std::isnan(got[0].at(i)), i >= 8) << i;
  }
}

TEST(Attention, SizesThatDoNotGoTogetherAreRefused) {
  EXPECT_THROW(validate(attention("forward", dims(3, 3, 3, 2))), InputError);
  Case c = attention("forward", dims(3, 3, 4, 2));
  EXPECT_NO_THROW(validate(c));
  c.attrs = {0.5, -1};
  EXPECT_THROW(validate(c), InputError);
  c.attrs = {1, kNan};
  EXPECT_THROW(validate(c), InputError);
}

// The scores' error grows with their sums: so the output's magnitude grows although its value does not.
TEST(Attention, MagnitudeFollowsTheScores) {
  Case c = attention("forward", dims(3, 5));
  std::vector<Tensor> inputs = gold_inputs(c);
  const GoldOutput small = collect_gold(c, inputs, 1).at(0);
  for (int64_t i = 0; i < inputs[0].count(); ++i) inputs[0].set(i, 16 * inputs[0].at(i));
  const GoldOutput large = collect_gold(c, inputs, 1).at(0);
  double small_sum = 0, large_sum = 0;
  for (size_t i = 0; i < small.value.size(); ++i) {
    EXPECT_GE(small.magnitude[i], std::abs(small.value[i]));
    small_sum += small.magnitude[i], large_sum += large.magnitude[i];
  }
  EXPECT_GT(large_sum, 4 * small_sum);
}

}  // namespace
}  // namespace checkop::attention_test
