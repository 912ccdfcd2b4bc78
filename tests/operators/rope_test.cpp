// SPDX-License-Identifier: Apache-2.0
// rope: properties of the gold, refusals, and the allowed error of an fp32 angle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "base/error.hpp"
#include "support/gold_helper.hpp"

namespace checkop::rope_test {
namespace {

const Dims kDims{{"batch", 2}, {"heads", 3}, {"seq", 5}, {"head_dim", 8}};

GoldOutput rotated(const std::vector<Tensor>& inputs, std::string_view pass = "forward", double theta = 1e6) {
  Case c = gold_case("rope", pass, DType::f64, kDims);
  c.attrs[0] = theta;
  return collect_gold(c, inputs, 1).at(0);
}

TEST(Rope, PositionZeroChangesNothing) {
  std::vector<Tensor> inputs = gold_inputs(gold_case("rope", "forward", DType::f64, kDims));
  for (int64_t s = 0; s < 5; ++s) inputs[1].set(s, 0);
  const GoldOutput y = rotated(inputs);
  for (size_t i = 0; i < y.value.size(); ++i) EXPECT_EQ(y.value[i], inputs[0].at(static_cast<int64_t>(i)));
}

TEST(Rope, BackwardUndoesForward) {
  const std::vector<Tensor> inputs = gold_inputs(gold_case("rope", "forward", DType::f64, kDims));
  std::vector<Tensor> back = gold_inputs(gold_case("rope", "backward", DType::f64, kDims));
  const GoldOutput y = rotated(inputs);
  for (size_t i = 0; i < y.value.size(); ++i) back[1].set(static_cast<int64_t>(i), y.value[i]);
  const GoldOutput x = rotated(back, "backward");
  for (size_t i = 0; i < x.value.size(); ++i) EXPECT_NEAR(x.value[i], inputs[0].at(static_cast<int64_t>(i)), 1e-14);
}

// The first pair rotates by the position for any theta; the second by the position over theta^(1/4).
TEST(Rope, PairsAreHalvesAndFrequenciesFall) {
  std::vector<Tensor> inputs = gold_inputs(gold_case("rope", "forward", DType::f64, kDims));
  for (int64_t i = 0; i < inputs[0].count(); ++i) inputs[0].set(i, i % 8 < 4 ? 1 : 0);
  for (int64_t s = 0; s < 5; ++s) inputs[1].set(s, 3);
  const GoldOutput y = rotated(inputs, "forward", 10000);
  EXPECT_NEAR(y.value[0], std::cos(3.0), 1e-15);
  EXPECT_NEAR(y.value[4], std::sin(3.0), 1e-15);
  EXPECT_NEAR(y.value[1], std::cos(0.3), 1e-15);
  EXPECT_NEAR(y.value[5], std::sin(0.3), 1e-15);
}

TEST(Rope, NegativePositionsAreRefused) {
  std::vector<Tensor> inputs = gold_inputs(gold_case("rope", "forward", DType::f64, kDims));
  inputs[1].set(2, -1);
  try {
    rotated(inputs);
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("'positions': element 2 is -1"), std::string::npos) << error.what();
  }
}

TEST(Rope, OddHeadSizesAndBadBasesAreRefused) {
  Dims odd = kDims;
  odd["head_dim"] = 7;
  EXPECT_THROW(validate(gold_case("rope", "forward", DType::f32, odd)), InputError);
  Case c = gold_case("rope", "backward", DType::f32, kDims);
  EXPECT_NO_THROW(validate(c));
  for (const double theta : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    c.attrs[0] = theta;
    EXPECT_THROW(validate(c), InputError) << theta;
  }
}

/// The index of an attribute.
size_t attr(std::string_view name) {
  const std::span<const AttrSpec> attrs = find_operator("rope")->attrs;
  return static_cast<size_t>(
      std::find_if(attrs.begin(), attrs.end(), [&](const AttrSpec& each) { return each.name == name; }) -
      attrs.begin());
}

TEST(Rope, AttributesOutOfRangeAreRefused) {
  const Case usual = gold_case("rope", "forward", DType::f32, kDims);
  const std::pair<const char*, double> wrong[] = {{"rotary_dim", 3},
                                                  {"rotary_dim", 10},
                                                  {"rotary_dim", 0},
                                                  {"interleaved", 2},
                                                  {"scaling", 4},
                                                  {"scaling", 0.5},
                                                  {"factor", 0},
                                                  {"original_length", -1},
                                                  {"high_freq_factor", 1},
                                                  {"attention_factor", 0},
                                                  {"section_h", 5},
                                                  {"section_w", -1},
                                                  {"sections_interleaved", 2}};
  for (const auto& [name, value] : wrong) {
    Case c = usual;
    c.attrs[attr(name)] = value;
    EXPECT_THROW(validate(c), InputError) << name << " " << value;
  }
}

TEST(Rope, ColumnsBehindRotaryDimAreCopied) {
  Case c = gold_case("rope", "forward", DType::f64, kDims);
  c.attrs[attr("rotary_dim")] = 4, c.attrs[attr("attention_factor")] = 3;
  const std::vector<Tensor> inputs = gold_inputs(c);
  const GoldOutput y = collect_gold(c, inputs, 1).at(0);
  for (size_t i = 0; i < y.value.size(); ++i) {
    if (i % 8 < 4) continue;
    EXPECT_EQ(y.value[i], inputs[0].at(static_cast<int64_t>(i)));
    EXPECT_EQ(y.rounding[i], 0);
  }
}

// Frequencies 1 and 1/100 of 4 columns: in 4096 positions 652 and 6.5 turns.
TEST(Rope, Llama3ScalesLowFrequenciesAlone) {
  Case c = gold_case("rope", "forward", DType::f64, {{"batch", 1}, {"heads", 1}, {"seq", 1}, {"head_dim", 4}});
  c.attrs[attr("theta")] = 10000, c.attrs[attr("scaling")] = 2, c.attrs[attr("factor")] = 8;
  c.attrs[attr("original_length")] = 4096;
  std::vector<Tensor> inputs = gold_inputs(c);
  inputs[0].set(0, 1), inputs[0].set(1, 1), inputs[0].set(2, 0), inputs[0].set(3, 0), inputs[1].set(0, 3);
  const auto angle_of_second = [&](double low, double high) {
    c.attrs[attr("low_freq_factor")] = low, c.attrs[attr("high_freq_factor")] = high;
    const GoldOutput y = collect_gold(c, inputs, 1).at(0);
    EXPECT_NEAR(y.value[0], std::cos(3.0), 1e-15);
    return std::asin(y.value[3]);
  };
  EXPECT_NEAR(angle_of_second(1, 4), 0.03, 1e-15);
  EXPECT_NEAR(angle_of_second(7, 8), 0.03 / 8, 1e-15);
  const double kept = (40.96 / (2 * M_PI) - 6) / 2;
  EXPECT_NEAR(angle_of_second(6, 8), 0.03 * (kept + (1 - kept) / 8), 1e-15);
}

// The error of a rotation with fp32 angles stays within the rounding that the gold allows, and gets so large that a
// bound without the angle's error would fail it.
TEST(Rope, RoundingCoversAnAngleInFp32) {
  std::vector<Tensor> inputs = gold_inputs(gold_case("rope", "forward", DType::f64, kDims));
  for (int64_t s = 0; s < 5; ++s) inputs[1].set(s, static_cast<double>(130000 + 257 * s));
  const GoldOutput y = rotated(inputs);
  const double u = 0x1p-24;
  double largest = 0;
  for (int64_t row = 0; row < 30; ++row) {
    for (int64_t i = 0; i < 4; ++i) {
      const float frequency = 1.0f / std::pow(1e6f, static_cast<float>(i) / 4.0f);
      const float angle = static_cast<float>(inputs[1].at(row % 5)) * frequency;
      const double low = inputs[0].at(row * 8 + i), high = inputs[0].at(row * 8 + i + 4);
      const double got = low * std::cos(static_cast<double>(angle)) - high * std::sin(static_cast<double>(angle));
      const auto at = static_cast<size_t>(row * 8 + i);
      const double error = std::abs(got - y.value[at]);
      EXPECT_TRUE(error <= u * y.rounding[at]) << error << " " << u * y.rounding[at];
      largest = std::max(largest, error);
    }
  }
  EXPECT_GT(largest, 1000 * u);
}

}  // namespace
}  // namespace checkop::rope_test
