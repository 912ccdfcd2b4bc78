// SPDX-License-Identifier: Apache-2.0
// fp8_block_gemm: where scales belong, and the bound against sums as FP8 tensor cores compute them.
#include <gtest/gtest.h>

#include <cmath>

#include "support/gold_helper.hpp"
#include "support/judge_helper.hpp"
#include "tensor_core.hpp"

namespace checkop::fp8_block_gemm_test {
namespace {

Case case_of(int64_t rows, int64_t k_dim, int64_t n_dim) {
  return gold_case("fp8_block_gemm", "forward", DType::f32,
                   {{"batch", 1}, {"seq", rows}, {"k_dim", k_dim}, {"n_dim", n_dim}});
}

TEST(Fp8BlockGemm, EveryCodeHasTheScaleOfItsBlock) {
  const int64_t rows = 2, k_dim = 300, n_dim = 200, blocks = 3;
  const Case c = case_of(rows, k_dim, n_dim);
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (const int64_t k : {0, 127, 128, 255, 256, 299}) {
    for (int64_t i = 0; i < inputs[0].count(); ++i) inputs[0].set(i, i % k_dim == k ? 1.5 : 0.0);
    for (int64_t i = 0; i < inputs[2].count(); ++i) inputs[2].set(i, 2.0);
    const std::vector<GoldOutput> gold = collect_gold(c, inputs, 1);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t n = 0; n < n_dim; ++n) {
        const double scale = inputs[1].at(row * blocks + k / 128) * inputs[3].at(n / 128 * blocks + k / 128);
        ASSERT_NEAR(gold[0].value[static_cast<size_t>(row * n_dim + n)], 3 * scale, 1e-15 * scale) << k << " " << n;
      }
    }
  }
}

/// d as the tensor cores of sm_90 compute it.
std::vector<Tensor> of_tensor_cores(const Case& c, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> outputs = make_outputs(c);
  std::vector<const Tensor*> in;
  for (const Tensor& tensor : inputs) in.push_back(&tensor);
  const std::vector<RowSet> all(1);
  const int64_t n_dim = c.dims.at("n_dim");
  c.pass->model({in, all, {kTensorCoreCodes}, 1, [&](int, int64_t row, const float* values) {
                   for (int64_t n = 0; n < n_dim; ++n) outputs[0].set(row * n_dim + n, static_cast<double>(values[n]));
                 }});
  return outputs;
}

double of_bound(const Comparison& comparison) {
  for (const GateResult& gate : comparison.gates)
    if (gate.metric == Metric::bound_ratio) return gate.achieved;
  return std::nan("");
}

TEST(Fp8BlockGemm, SumsOfTensorCoresPassIfTheyArePromoted) {
  for (const int64_t k_dim : {96, 128, 1000, 4096}) {
    for (const uint64_t seed : {1, 2, 3}) {
      Case c = case_of(16, k_dim, 12);
      c.seed = seed;
      const std::vector<Tensor> inputs = make_inputs(c, 1);
      const Comparison right = judge_outputs(c, inputs, of_tensor_cores(c, inputs), default_contract(), {}, 1)[0];
      EXPECT_TRUE(right.passed()) << k_dim << " " << of_bound(right);
    }
  }
}

// Beside 2^16 a product of 7.5 is below the last bit, so that 127 of them are lost.
TEST(Fp8BlockGemm, TheBoundIsNotFarFromWhatSmallProductsBesideALargeOneLose) {
  const Case c = case_of(2, 128, 3);
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (int64_t i = 0; i < inputs[0].count(); ++i) inputs[0].set(i, i % 128 == 0 ? 256 : 7.5);
  for (int64_t i = 0; i < inputs[2].count(); ++i) inputs[2].set(i, i % 128 == 0 ? 256 : 1);
  const Comparison right = judge_outputs(c, inputs, of_tensor_cores(c, inputs), default_contract(), {}, 1)[0];
  EXPECT_TRUE(right.passed());
  EXPECT_GT(of_bound(right), 0.4);
}

TEST(Fp8BlockGemm, SumsThatStayInTensorCoresFail) {
  const int64_t k_dim = 8192, n_dim = 8;
  const Case c = case_of(8, k_dim, n_dim);
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (const size_t scales : {1, 3})
    for (int64_t i = 0; i < inputs[scales].count(); ++i) inputs[scales].set(i, 1);
  std::vector<Tensor> outputs = make_outputs(c);
  const auto codes = [&](size_t input, int64_t row) {
    return reinterpret_cast<const uint8_t*>(inputs[input].bytes.data()) + row * k_dim;
  };
  for (int64_t i = 0; i < outputs[0].count(); ++i) {
    float sum = 0;
    for (int64_t k = 0; k < k_dim; k += kTensorCoreCodes)
      sum = tensor_core_code_block(codes(0, i / n_dim) + k, codes(2, i % n_dim) + k, sum);
    outputs[0].set(i, static_cast<double>(sum));
  }
  EXPECT_FALSE(judge_outputs(c, inputs, outputs, default_contract(), {}, 1)[0].passed());
  EXPECT_TRUE(judge_outputs(c, inputs, of_tensor_cores(c, inputs), default_contract(), {}, 1)[0].passed());
}

}  // namespace
}  // namespace checkop::fp8_block_gemm_test
