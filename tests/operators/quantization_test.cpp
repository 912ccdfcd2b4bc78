// SPDX-License-Identifier: Apache-2.0
// Quantisation: what its data hold, NaN, the sign of zero, and data for kernels that divide roughly.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/gold_helper.hpp"
#include "support/judge_helper.hpp"

namespace checkop::quantization_test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Case small_case(std::string_view op, DType dtype, int64_t rows, int64_t hidden) {
  if (op == "quant_fp8_block_2d") return gold_case(op, "forward", dtype, {{"n_dim", rows}, {"k_dim", hidden}});
  return gold_case(op, "forward", dtype, {{"batch", 1}, {"seq", rows}, {"hidden", hidden}});
}

void set_attr(Case& c, std::string_view name, double value) {
  for (size_t i = 0; i < c.op->attrs.size(); ++i)
    if (c.op->attrs[i].name == name) c.attrs[i] = value;
}

/// The gold of x alone, with an amax of 6 where there is one.
std::vector<GoldOutput> gold_of(const Case& c, const std::vector<double>& x) {
  std::vector<Tensor> inputs;
  for (const TensorSpec& spec : c.pass->inputs)
    inputs.push_back(gold_input(c, spec, [&](int64_t i) { return spec.name == "x" ? x[static_cast<size_t>(i)] : 6; }));
  return collect_gold(c, inputs, 1);
}

TEST(Quantization, NaNIsNoAmaxAndItsCodeIsNaN) {
  for (const char* op : {"quant_fp8_block", "quant_mxfp8"}) {
    const std::vector<GoldOutput> with = gold_of(small_case(op, DType::f32, 1, 3), {448, kNaN, -1});
    EXPECT_EQ(with[0].value[0], 448) << op;
    EXPECT_TRUE(std::isnan(with[0].value[1])) << op;
    EXPECT_EQ(with[0].value[2], -1) << op;
    EXPECT_EQ(with[1].value[0], 1) << op;
  }
  Case all = small_case("quant_mxfp8", DType::f32, 1, 2);
  EXPECT_EQ(gold_of(all, {kNaN, kNaN})[1].value[0], 0x1p-127);
}

TEST(Quantization, AnInfiniteAmaxHasAFiniteScale) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<GoldOutput> mx = gold_of(small_case("quant_mxfp8", DType::f32, 1, 2), {-infinity, 3});
  EXPECT_EQ(mx[0].value, (std::vector<double>{-448, 0}));
  EXPECT_EQ(mx[1].value[0], 0x1p127);
  Case factor = small_case("quant_fp8_block", DType::f32, 1, 2);
  set_attr(factor, "factor_first", 1);
  const std::vector<GoldOutput> fp8 = gold_of(factor, {infinity, 3});
  EXPECT_EQ(fp8[0].value, (std::vector<double>{448, 3}));
  EXPECT_EQ(fp8[1].value[0], 1);
}

TEST(Quantization, ScalesOfPowersOfTwoAreThosePowers) {
  for (const int exponent : {-20, -3, 0, 5, 30}) {
    const double power = std::ldexp(1.0, exponent), above = std::nextafter(static_cast<float>(448 * power), 1e38F);
    Case fp8 = small_case("quant_fp8_block", DType::f32, 1, 1);
    set_attr(fp8, "pow2", 1);
    set_attr(fp8, "eps", 1e-20);
    EXPECT_EQ(gold_of(fp8, {448 * power})[1].value[0], power);
    EXPECT_EQ(gold_of(fp8, {above})[1].value[0], 2 * power);
    Case ocp = small_case("quant_mxfp8", DType::f32, 1, 1);
    set_attr(ocp, "round_up", 0);
    EXPECT_EQ(gold_of(ocp, {256 * power})[1].value[0], power);
    EXPECT_EQ(gold_of(ocp, {-511.9 * power})[1].value[0], power);
    EXPECT_EQ(gold_of(ocp, {-511.9 * power})[0].value[0], -448) << "saturates";
    EXPECT_EQ(gold_of(ocp, {512 * power})[1].value[0], 2 * power);
  }
}

TEST(Quantization, ABlockOfZerosHasAFiniteScaleAndItsSigns) {
  for (const char* op : {"quant_fp8_block", "quant_mxfp8", "quant_nvfp4"}) {
    const Case c = small_case(op, DType::bf16, 1, 2);
    const std::vector<GoldOutput> zeros = gold_of(c, {0, -0.0});
    EXPECT_TRUE(std::isfinite(zeros[1].value[0])) << op;
    if (c.pass->outputs[0].tensor.dtype == DType::e2m1x2) {
      EXPECT_EQ(zeros[0].value[0], 0x80) << op;
    } else {
      EXPECT_EQ(zeros[0].value, (std::vector<double>{0, 0})) << op;
      EXPECT_TRUE(std::signbit(zeros[0].value[1])) << op;
    }
  }
}

// Mutants are compared as numbers, so this fault is not among them.
TEST(Quantization, ACodeOfZeroWithTheOtherSignFails) {
  Case c = small_case("quant_fp8_block", DType::bf16, 2, 128);
  std::vector<Tensor> inputs = make_inputs(c, 1), outputs = make_outputs(c);
  for (int64_t i = 0; i < 128; ++i) inputs[0].set(i, i == 0 ? 448 : -0.0);
  const std::vector<GoldOutput> gold = collect_gold(c, inputs, 1);
  for (size_t o = 0; o < outputs.size(); ++o)
    info(outputs[o].dtype).encode(gold[o].value.data(), outputs[o].bytes.data(), gold[o].value.size());
  EXPECT_TRUE(judge_outputs(c, inputs, outputs, default_contract(), {}, 1)[0].passed());
  outputs[0].set(5, 0.0);
  EXPECT_FALSE(judge_outputs(c, inputs, outputs, default_contract(), {}, 1)[0].passed());
}

TEST(Quantization, TwoCodesAreAByteTheFirstOneInItsLowerHalf) {
  const std::vector<GoldOutput> gold = gold_of(small_case("quant_nvfp4", DType::bf16, 1, 3), {6, -1, 0.5});
  EXPECT_EQ(gold[1].value[0], 448);
  EXPECT_EQ(gold[0].value, (std::vector<double>{0xa7, 0x01}));
}

TEST(Quantization, TransposedOutputsAreThoseOfXTransposed) {
  for (const char* op : {"quant_fp8_block", "quant_fp8_block_2d"}) {
    constexpr int64_t kRows = 131, kColumns = 130;
    Case c = small_case(op, DType::f32, kRows, kColumns);
    c.optionals = {"codes_t"};
    std::vector<double> x(kRows * kColumns), of_columns(x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i * i % 1009) - 500;
    for (size_t r = 0; r < kRows; ++r)
      for (size_t k = 0; k < kColumns; ++k) of_columns[k * kRows + r] = x[r * kColumns + k];
    const std::vector<GoldOutput> gold = gold_of(c, x),
                                  other = gold_of(small_case(op, DType::f32, kColumns, kRows), of_columns);
    EXPECT_EQ(gold[2].value, other[0].value) << op;
    EXPECT_EQ(gold[3].value, other[1].value) << op;
    EXPECT_NE(gold[0].value, gold[2].value) << op;
  }
}

// The number of codes that differ between quotients times 1 - 2^-21 and times 1 + 2^-21: only these show that a kernel
// uses a rough reciprocal.
int64_t codes_that_depend_on_two_roundings(std::string_view op, DType dtype, double near) {
  Case c = small_case(op, dtype, op == "quant_fp8_block_2d" ? 150 : 40, 300);
  set_attr(c, "near", near);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const std::vector<GoldOutput> gold = collect_gold(c, inputs, 1);
  const bool is_e2m1 = op == "quant_nvfp4";
  const int64_t block = is_e2m1 ? 16 : 128, of_row = (300 + block - 1) / block;
  const int64_t rows_of_block = op == "quant_fp8_block_2d" ? 128 : 1;
  int64_t depend = 0;
  for (int64_t i = 0; i < inputs[0].count(); ++i) {
    const double scale = gold[1].value[static_cast<size_t>(i / 300 / rows_of_block * of_row + i % 300 / block)];
    const double quotient = inputs[0].at(i) / scale * (is_e2m1 ? 2688 / inputs[1].at(0) : 1);
    const auto code = [&](double factor) {
      double value = quotient * factor;
      if (is_e2m1) return decode_e2m1(encode_e2m1(value));
      std::byte byte{};
      info(DType::e4m3).encode(&value, &byte, 1);
      info(DType::e4m3).decode(&byte, &value, 1);
      return value;
    };
    depend += std::isfinite(quotient) && code(1 - 0x1p-21) != code(1 + 0x1p-21) ? 1 : 0;
  }
  return depend;
}

TEST(Quantization, NearKeepsQuotientsAwayFromTheMiddleOfCodes) {
  for (const char* op : {"quant_fp8_block", "quant_fp8_block_2d", "quant_nvfp4"}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      EXPECT_GT(codes_that_depend_on_two_roundings(op, dtype, 0), 100) << op;
      EXPECT_EQ(codes_that_depend_on_two_roundings(op, dtype, 1), 0) << op << " " << info(dtype).name;
    }
  }
}

}  // namespace
}  // namespace checkop::quantization_test
