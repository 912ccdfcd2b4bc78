// SPDX-License-Identifier: Apache-2.0
// fp8_block_gemm: where scales belong, and the bound against sums as FP8 tensor cores compute them.
#include <gtest/gtest.h>

#include <cmath>

#include "support/gold_helper.hpp"
#include "support/judge_helper.hpp"

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

/// The sum of products as an instruction adds them: every addend, `total` among them, is truncated to a multiple of
/// 2^-13 of the largest one's power of two.
double add_32(double total, const std::vector<double>& products) {
  double largest = std::abs(total);
  for (const double product : products) largest = std::max(largest, std::abs(product));
  if (largest == 0) return 0;
  const double step = std::exp2(std::floor(std::log2(largest)) - 13);
  double sum = std::trunc(total / step);
  for (const double product : products) sum += std::trunc(product / step);
  return sum * step;
}

/// d as a tensor core computes it: sums of 128 columns go to fp32, or with `promotes` false only the last one.
std::vector<Tensor> of_tensor_cores(const Case& c, const std::vector<Tensor>& inputs, bool promotes) {
  std::vector<Tensor> outputs = make_outputs(c);
  const int64_t k_dim = c.dims.at("k_dim"), n_dim = c.dims.at("n_dim"), blocks = (k_dim + 127) / 128;
  for (int64_t i = 0; i < outputs[0].count(); ++i) {
    const int64_t row = i / n_dim, n = i % n_dim;
    float promoted = 0;
    double total = 0;
    for (int64_t k = 0; k < k_dim; k += 32) {
      const double scale = inputs[1].at(row * blocks + k / 128) * inputs[3].at(n / 128 * blocks + k / 128);
      std::vector<double> products;
      for (int64_t j = k; j < std::min(k + 32, k_dim); ++j)
        products.push_back(inputs[0].at(row * k_dim + j) * inputs[2].at(n * k_dim + j) * (promotes ? 1 : scale));
      total = add_32(total, products);
      if (promotes && (k % 128 == 96 || k + 32 >= k_dim)) {
        promoted += static_cast<float>(scale) * static_cast<float>(total);
        total = 0;
      }
    }
    outputs[0].set(i, promotes ? promoted : total);
  }
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
      const Comparison right = judge_outputs(c, inputs, of_tensor_cores(c, inputs, true), default_contract(), {}, 1)[0];
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
  const Comparison right = judge_outputs(c, inputs, of_tensor_cores(c, inputs, true), default_contract(), {}, 1)[0];
  EXPECT_TRUE(right.passed());
  EXPECT_GT(of_bound(right), 0.4);
}

TEST(Fp8BlockGemm, SumsThatStayInTensorCoresFail) {
  const Case c = case_of(8, 8192, 8);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  EXPECT_FALSE(judge_outputs(c, inputs, of_tensor_cores(c, inputs, false), default_contract(), {}, 1)[0].passed());
}

}  // namespace
}  // namespace checkop::fp8_block_gemm_test
