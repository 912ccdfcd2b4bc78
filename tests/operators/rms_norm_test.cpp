// SPDX-License-Identifier: Apache-2.0
// Special about rms_norm: the mask affects only dweight; rows of zeros; eps.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "support/gold_helper.hpp"

namespace checkop::rms_norm_test {
namespace {

const Dims kDims{{"batch", 2}, {"seq", 5}, {"hidden", 70}};

struct Masked {
  Masked() : with(gold_case("rms_norm", "backward", DType::f64, kDims, {"mask"})), inputs(gold_inputs(with)) {}

  Tensor& input(std::string_view name) { return inputs[input_index(*with.pass, name)]; }
  GoldOutput gold(std::string_view name) const { return collect_gold(with, inputs, 1)[output_index(*with.pass, name)]; }

  Case with;
  std::vector<Tensor> inputs;
};

TEST(RmsNorm, AMaskChangesNoDx) {
  Masked masked;
  const std::vector<double> before = masked.gold("dx").value;
  Tensor& mask = masked.input("mask");
  for (int64_t row = 0; row < mask.count(); ++row) mask.set(row, 0);
  EXPECT_TRUE(masked.gold("dx").value == before);
}

TEST(RmsNorm, DweightIsTheGradientOfTheKeptRows) {
  Masked masked;
  Tensor &mask = masked.input("mask"), &grad = masked.input("grad_y");
  ASSERT_EQ(mask.at(0), 1);
  ASSERT_EQ(mask.at(1), 0);
  mask.set(0, 2);  // any nonzero value keeps a row
  const std::vector<double> got = masked.gold("dweight").value;
  for (int64_t row = 0; row < mask.count(); ++row)
    for (int64_t h = 0; h < 70; ++h)
      if (mask.at(row) == 0) grad.set(row * 70 + h, 0);
  const Case without = gold_case("rms_norm", "backward", DType::f64, kDims);
  masked.inputs.back() = Tensor();
  EXPECT_TRUE(collect_gold(without, masked.inputs, 1)[1].value == got);
}

TEST(RmsNorm, NanInAMaskedRowStaysOutOfDweight) {
  Masked masked;
  const std::vector<double> before = masked.gold("dweight").value;
  masked.input("x").set(70 + 3, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(masked.gold("dweight").value == before);
}

TEST(RmsNorm, ARowOfZerosIsScaledByTheRootOfEps) {
  const Case c = gold_case("rms_norm", "backward", DType::f64, {{"batch", 1}, {"seq", 1}, {"hidden", 4}});
  std::vector<Tensor> inputs = gold_inputs(c);
  for (int64_t h = 0; h < 4; ++h) inputs[0].set(h, 0);
  const std::vector<GoldOutput> gold = collect_gold(c, inputs, 1);
  for (int64_t h = 0; h < 4; ++h) {
    const auto i = static_cast<size_t>(h);
    EXPECT_DOUBLE_EQ(gold[0].value[i], inputs[1].at(h) * inputs[2].at(h) / std::sqrt(1e-6));
    EXPECT_EQ(gold[1].value[i], 0);
  }
}

TEST(RmsNorm, EpsMustBePositive) {
  Case c = gold_case("rms_norm", "forward", DType::f32, kDims);
  for (const double eps : {0.0, -1e-6, std::numeric_limits<double>::infinity(), std::nan("")}) {
    c.attrs = {eps};
    EXPECT_THROW(validate(c), InputError) << eps;
  }
}

}  // namespace
}  // namespace checkop::rms_norm_test
