// SPDX-License-Identifier: Apache-2.0
// Correct results that constant tolerances reject: they must pass.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>

#include "case/inputs.hpp"
#include "judge/verdict.hpp"
#include "support/judge_helper.hpp"
#include "support/own_data_helper.hpp"
#include "support/process.hpp"
#include "support/rows_helper.hpp"
#include "tensor_core.hpp"

namespace checkop::right_answers_test {
namespace {

/// Log-probabilities for a vocabulary of 151936, from -16 downward, none of them a bf16 number.
double logp_at(int64_t i) { return -16 - 0.0537 * static_cast<double>(i); }

std::string stored(const std::string& name, const std::function<double(int64_t)>& value) {
  return write_tensors(name, list(tensor("logp", DType::bf16, {100}, value)));
}

// Half an ulp of bf16 at -16 is 0.06: more than an absolute tolerance of 5e-2.
TEST(RightAnswers, LogpRoundedToBf16) {
  const std::string gold = write_tensors(
      "gold", list(tensor("logp", DType::f64, {100}, logp_at),
                   tensor("magnitude/logp", DType::f64, {100}, [](int64_t i) { return std::abs(logp_at(i)); })));
  const std::string right = stored("right", logp_at);
  // The next bf16 number toward zero where rounding went away from zero: below -16 they are at least 0.125 apart.
  const std::string truncated = stored("truncated", [](int64_t i) { return logp_at(i) + 0.0624; });
  const auto compare = [&](const std::string& got, const std::string& contract) {
    return run_program(
        fmt::format("compare {} {} --class logprob --terms 151936 --contract contracts/{}.json", got, gold, contract));
  };
  EXPECT_EQ(compare(right, "default").code, 0) << compare(right, "default").text;
  EXPECT_EQ(compare(right, "rl_kernel").code, 1) << compare(right, "rl_kernel").text;
  EXPECT_EQ(compare(truncated, "default").code, 1) << compare(truncated, "default").text;
}

// fp32 sums where the largest logit is far from the target's: the error of the log-sum-exp is relative to its size.
TEST(RightAnswers, Fp32LinearLogpFarFromZero) {
  Case c;
  c.op = find_operator("linear_logp");
  c.pass = find_pass(*c.op, "forward");
  c.dtype = DType::f32;
  c.dims = {{"batch", 1}, {"seq", 16}, {"hidden", 2048}, {"vocab", 1021}};
  c.attrs = {-100, 1, 0};
  std::vector<Tensor> inputs = make_inputs(c, 1);
  Tensor& weight = inputs[1];
  for (int64_t i = 0; i < weight.count(); ++i) weight.set(i, 64 * weight.at(i));
  const NativeAnswer native = run_native(c, inputs);
  ASSERT_EQ(native.result.status, RunStatus::ok) << native.result.message;
  double least = 0;
  for (int64_t i = 0; i < native.outputs[0].count(); ++i) least = std::min(least, native.outputs[0].at(i));
  EXPECT_LT(least, -160);
  const Comparison comparison = judge_outputs(c, inputs, native.outputs, default_contract(), {}, 1)[0];
  EXPECT_TRUE(comparison.passed());
  const Contract constants = Contract::load(CHECKOP_SOURCE_DIR "/contracts/rl_kernel.json");
  EXPECT_FALSE(judge_outputs(c, inputs, native.outputs, constants, {}, 1)[0].passed());
}

/// The log-probability of the target and the entropy, from logits that tensor cores leave. After each step the
/// accumulator loses `lost_bits` more.
std::array<double, 2> of_tensor_cores(const Tensor& hidden, const Tensor& weight, int64_t row, int64_t target,
                                      int lost_bits) {
  const int64_t terms = hidden.shape.back(), vocab = weight.shape[0];
  const auto* const h = reinterpret_cast<const uint16_t*>(hidden.bytes.data()) + row * terms;
  const auto* const w = reinterpret_cast<const uint16_t*>(weight.bytes.data());
  std::vector<double> z;
  for (int64_t v = 0; v < vocab; ++v) {
    float sum = 0;
    for (int64_t k = 0; k < terms; k += kTensorCoreBlock) {
      sum = tensor_core_block(hidden.dtype, h + k, w + v * terms + k, sum);
      sum = std::bit_cast<float>(std::bit_cast<uint32_t>(sum) >> lost_bits << lost_bits);
    }
    z.push_back(sum);
  }
  double exps = 0, weighted = 0;
  for (const double each : z) exps += std::exp(each), weighted += each * std::exp(each);
  const double lse = std::log(exps);
  return {z[static_cast<size_t>(target)] - lse, lse - weighted / exps};
}

// Tensor cores truncate after each step, so logits of a long sum are too small: here by 2e-5 of their size.
TEST(RightAnswers, LogitsOfTensorCores) {
  for (const std::string op : {"linear_logp", "linear_entropy"}) {
    Case c;
    c.op = find_operator(op);
    c.pass = find_pass(*c.op, "forward");
    c.dtype = DType::bf16;
    c.dims = {{"batch", 1}, {"seq", 24}, {"hidden", 16384}, {"vocab", 96}};
    c.attrs = op == "linear_logp" ? std::vector<double>{-100, 1, 0} : std::vector<double>{1, 0};
    c.ignored_every = 0;
    const std::vector<Tensor> inputs = make_inputs(c, 1);
    const auto passes = [&](int lost_bits) {
      std::vector<Tensor> outputs = rounded_gold(c, inputs);
      for (int64_t row = 0; row < outputs[0].count(); ++row) {
        const bool selects = op == "linear_logp";
        const int64_t target = selects ? static_cast<int64_t>(inputs[2].at(row)) : 0;
        outputs[0].set(row, of_tensor_cores(inputs[0], inputs[1], row, target, lost_bits)[selects ? 0 : 1]);
      }
      return judge_outputs(c, inputs, outputs, default_contract(), {}, 1)[0].passed();
    };
    EXPECT_TRUE(passes(0)) << op;
    EXPECT_FALSE(passes(4)) << op;
  }
}

// Subnormal elements err by half of the smallest one, whatever their size, and equal ones all to the same side.
TEST(RightAnswers, Fp16GradientsBelowTheNormalNumbers) {
  Case c;
  c.op = find_operator("logp");
  c.pass = find_pass(*c.op, "backward");
  c.dtype = DType::f16;
  c.dims = {{"batch", 1}, {"seq", 64}, {"vocab", 1021}};
  c.attrs = {-100, 1, 0, 0, 1, 0};
  std::vector<Tensor> inputs = make_inputs(c, 1);
  Tensor& upstream = input(c, inputs, "grad_logp");
  for (int64_t i = 0; i < upstream.count(); ++i) upstream.set(i, 1e-5 * static_cast<double>(i));
  EXPECT_TRUE(judge_outputs(c, inputs, rounded_gold(c, inputs), default_contract(), {}, 1)[0].passed());
}

// The identity check for rows without gold must allow for that too.
TEST(RightAnswers, Fp16ProductsBelowTheNormalNumbers) {
  Case c;
  c.op = find_operator("matmul");
  c.pass = find_pass(*c.op, "forward");
  c.dtype = DType::f16;
  c.dims = {{"batch", 1}, {"seq", 500}, {"k_dim", 1}, {"n_dim", 1}};
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (int64_t i = 0; i < inputs[0].count(); ++i) inputs[0].set(i, 1e-4 * inputs[0].at(i));
  const std::vector<RowSet> first{{false, {0}}};
  const Comparison right = judge_outputs(c, inputs, rounded_gold(c, inputs), default_contract(), {}, 1, first)[0];
  ASSERT_EQ(right.identities.back().identity, "freivalds");
  EXPECT_TRUE(right.passed()) << right.identities.back().achieved;
  std::vector<Tensor> wrong = rounded_gold(c, inputs);
  wrong[0].set(499, wrong[0].at(499) + 0x1p-16);
  EXPECT_FALSE(judge_outputs(c, inputs, wrong, default_contract(), {}, 1, first)[0].passed());
  // A product of zeros is exactly 0.
  inputs[0].set(499, 0), wrong[0].set(499, 0x1p-24);
  EXPECT_FALSE(judge_outputs(c, inputs, wrong, default_contract(), {}, 1, first)[0].passed());
}

}  // namespace
}  // namespace checkop::right_answers_test
