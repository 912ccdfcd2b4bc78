// SPDX-License-Identifier: Apache-2.0
// Strides, origins and bytes of each arrangement.
#include "run/layout.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/gold_helper.hpp"

namespace checkop::layout_test {
namespace {

Case product() {
  return gold_case("matmul", "backward", DType::f32, {{"batch", 2}, {"seq", 3}, {"k_dim", 5}, {"n_dim", 4}});
}

Placement place(const Case& c, size_t input, Arrangement arrangement) {
  return placement_of(c, c.pass->inputs[input], {0, 0, arrangement});
}

TEST(Placement, HasTheStridesOfItsArrangement) {
  const Case c = product();
  EXPECT_EQ(place(c, 0, Arrangement::contiguous).strides, (Shape{15, 5, 1}));
  EXPECT_EQ(place(c, 0, Arrangement::columns_apart).strides, (Shape{30, 10, 2}));
  EXPECT_EQ(place(c, 0, Arrangement::transposed).strides, (Shape{15, 1, 3}));
  EXPECT_EQ(place(c, 1, Arrangement::transposed).strides, (Shape{1, 5}));
  EXPECT_EQ(place(c, 0, Arrangement::slice).strides, (Shape{48, 8, 1}));
  EXPECT_EQ(place(c, 0, Arrangement::slice).first, 9);
  EXPECT_EQ(place(c, 0, Arrangement::slice).elements, 96);
  EXPECT_EQ(place(c, 0, Arrangement::expanded_rows).strides, (Shape{0, 5, 1}));
  EXPECT_EQ(place(c, 0, Arrangement::expanded_rows).elements, 15);
  EXPECT_EQ(place(c, 1, Arrangement::expanded_rows), place(c, 1, Arrangement::contiguous));
  EXPECT_EQ(place(c, 2, Arrangement::expanded_upstream).strides, (Shape{0, 0, 0}));
  EXPECT_EQ(place(c, 0, Arrangement::expanded_upstream), place(c, 0, Arrangement::contiguous));
  EXPECT_EQ(place(c, 0, Arrangement::shifted_even).first, 1);
  EXPECT_EQ(place(c, 1, Arrangement::shifted_even).first, 0);
  EXPECT_EQ(place(c, 1, Arrangement::shifted_odd).first, 1);
}

TEST(Placement, OfOutputsIsContiguous) {
  const Case c = product();
  for (const Arrangement arrangement : kArrangements)
    for (const OutputSpec& output : c.pass->outputs)
      EXPECT_EQ(placement_of(c, output.tensor, {0, 0, arrangement}), placement_of(c, output.tensor, {}));
}

TEST(Placement, ChangesOnlyTheIntegersOfOtherIntegers) {
  const Case c = gold_case("logp", "backward", DType::bf16, {{"batch", 2}, {"seq", 3}, {"vocab", 4}});
  EXPECT_EQ(place(c, 0, Arrangement::other_integers), place(c, 0, Arrangement::contiguous));
  EXPECT_EQ(place(c, 1, Arrangement::other_integers).dtype, DType::i32);
  EXPECT_FALSE(changes_inputs(product(), Arrangement::other_integers));
  EXPECT_TRUE(changes_inputs(c, Arrangement::other_integers));
}

/// Follows the strides of an arranged tensor.
std::vector<float> read(const Placement& at, const std::vector<std::byte>& memory) {
  std::vector<float> values;
  for (int64_t b = 0; b < at.shape[0]; ++b) {
    for (int64_t s = 0; s < at.shape[1]; ++s) {
      for (int64_t k = 0; k < at.shape[2]; ++k) {
        const int64_t element = at.first + b * at.strides[0] + s * at.strides[1] + k * at.strides[2];
        float value;
        std::memcpy(&value, memory.data() + static_cast<size_t>(element) * sizeof(value), sizeof(value));
        values.push_back(value);
      }
    }
  }
  return values;
}

TEST(Arrange, PutsEveryElementWhereItsStridesSay) {
  const Case c = product();
  for (const Arrangement arrangement : kArrangements) {
    const Placement placement = place(c, 2, arrangement);
    std::vector<float> values(24);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    auto* const bytes = reinterpret_cast<std::byte*>(values.data());
    equalise(placement, bytes);
    const std::vector<std::byte> memory = arrange(placement, DType::f32, bytes);
    EXPECT_EQ(memory.size(), static_cast<size_t>(placement.elements) * sizeof(float));
    EXPECT_EQ(read(placement, memory), values) << describe(arrangement);
    int64_t gaps = 0;
    for (int64_t i = 0; i < placement.elements; ++i) {
      float value;
      std::memcpy(&value, memory.data() + static_cast<size_t>(i) * sizeof(value), sizeof(value));
      gaps += std::isnan(value) ? 1 : 0;
    }
    EXPECT_EQ(gaps, is_expanded(arrangement) ? 0 : placement.elements - 24) << describe(arrangement);
  }
}

TEST(Equalise, RepeatsTheFirstIndex) {
  const Case c = product();
  std::vector<float> values(24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  equalise(place(c, 2, Arrangement::expanded_rows), reinterpret_cast<std::byte*>(values.data()));
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(values[12 + i], static_cast<float>(i));
  equalise(place(c, 2, Arrangement::expanded_upstream), reinterpret_cast<std::byte*>(values.data()));
  EXPECT_EQ(values, std::vector<float>(24, 0.0F));
}

TEST(Arrange, KeepsWhatIsNoIdWhatItIs) {
  const Case c = gold_case("logp", "forward", DType::f32, {{"batch", 1}, {"seq", 4}, {"vocab", 4}});
  const std::vector<int64_t> ids{3, -100, int64_t{1} << 40, std::numeric_limits<int64_t>::min()};
  const auto memory =
      arrange(place(c, 1, Arrangement::other_integers), DType::i64, reinterpret_cast<const std::byte*>(ids.data()));
  std::vector<int32_t> narrow(4);
  ASSERT_EQ(memory.size(), 16U);
  std::memcpy(narrow.data(), memory.data(), memory.size());
  using Limits = std::numeric_limits<int32_t>;
  EXPECT_EQ(narrow, (std::vector<int32_t>{3, -100, Limits::max(), Limits::min()}));
}

}  // namespace
}  // namespace checkop::layout_test
