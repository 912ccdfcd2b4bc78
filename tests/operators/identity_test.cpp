// SPDX-License-Identifier: Apache-2.0
// Identities that the gold must satisfy for any inputs: sums, shifts, operators expressed by one another, thread
// counts.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "support/gold_helper.hpp"

namespace checkop::identity_test {
namespace {

constexpr double kRelativeError = 1e-13;
const Dims kLogpDims{{"batch", 2}, {"seq", 5}, {"vocab", 131}};
// More tokens than one block of columns.
constexpr int64_t kHidden = 19, kVocab = 1031;
const Dims kLinearDims{{"batch", 2}, {"seq", 5}, {"hidden", kHidden}, {"vocab", kVocab}};

/// Replaces the values of `tensor` by the same number of values.
void fill(Tensor& tensor, const std::vector<double>& values) {
  ASSERT_EQ(static_cast<size_t>(tensor.count()), values.size());
  for (size_t i = 0; i < values.size(); ++i) tensor.set(static_cast<int64_t>(i), values[i]);
}

/// [rows, columns] -> [columns, rows]
std::vector<double> transposed(const std::vector<double>& matrix, size_t columns) {
  const size_t rows = matrix.size() / columns;
  std::vector<double> result(matrix.size());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) result[c * rows + r] = matrix[r * columns + c];
  }
  return result;
}

/// Compares both sides element by element; `scale` is the magnitude of the terms; NaN fails.
void expect_equal(const std::vector<double>& got, const std::vector<double>& expected, double scale) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(std::abs(got[i] - expected[i]) <= kRelativeError * scale)
        << "[" << i << "] is " << got[i] << ", expected " << expected[i];
  }
}

TEST(Identity, DlogitsOfARowSumToZero) {
  const Case c = gold_case("logp", "backward", DType::f64, kLogpDims);
  const GoldOutput dlogits = collect_gold(c, gold_inputs(c), 1).at(0);
  for (int64_t row = 0; row < dlogits.rows; ++row) {
    double sum = 0, size = 0;
    for (int64_t v = 0; v < dlogits.columns; ++v) {
      const double d = dlogits.value[static_cast<size_t>(row * dlogits.columns + v)];
      sum += d, size += std::abs(d);
    }
    EXPECT_GT(size, 0.0) << row;
    EXPECT_TRUE(std::abs(sum) <= kRelativeError * size) << "row " << row << ": " << sum;
  }
}

TEST(Identity, ProbabilitiesOfAllIdsSumToOne) {
  const Case c = gold_case("logp", "forward", DType::f64, kLogpDims);
  std::vector<Tensor> inputs = gold_inputs(c);
  Tensor& ids = inputs[input_index(*c.pass, "token_ids")];
  std::vector<double> sums(static_cast<size_t>(ids.count()));
  for (int64_t id = 0; id < c.dims.at("vocab"); ++id) {
    for (int64_t row = 0; row < ids.count(); ++row) ids.set(row, static_cast<double>(id));
    const GoldOutput logp = collect_gold(c, inputs, 1).at(0);
    for (size_t row = 0; row < sums.size(); ++row) sums[row] += std::exp(logp.value[row]);
  }
  expect_equal(sums, std::vector<double>(sums.size(), 1.0), 1.0);
}

TEST(Identity, LogpIsUnchangedByAShiftOfARow) {
  for (const std::string_view pass : {"forward", "backward"}) {
    const Case c = gold_case("logp", pass, DType::f64, kLogpDims);
    std::vector<Tensor> inputs = gold_inputs(c);
    const GoldOutput before = collect_gold(c, inputs, 1).at(0);
    std::vector<double> shifted = values_of(inputs[0]);
    for (double& z : shifted) z += 512;  // exact: the logits are multiples of 1/64
    fill(inputs[0], shifted);
    expect_equal(collect_gold(c, inputs, 1).at(0).value, before.value, 1.0);
  }
}

/// linear_logp and its components: matmul by the transposed weight, then logp.
struct LinearAndParts {
  explicit LinearAndParts(std::string_view pass)
      : linear(gold_case("linear_logp", pass, DType::f64, kLinearDims)),
        logp(gold_case("logp", pass, DType::f64, {{"batch", 2}, {"seq", 5}, {"vocab", kVocab}})),
        linear_inputs(gold_inputs(linear)),
        logp_inputs(gold_inputs(logp)) {
    // The largest logits come late, so that the sum over the first block of the vocabulary must be rescaled.
    Tensor& weight = linear_inputs[input_index(*linear.pass, "lm_head_weight")];
    for (int64_t i = (kVocab - 3) * kHidden; i < weight.count(); ++i) weight.set(i, 4 * weight.at(i));
    const Case product =
        gold_case("matmul", "forward", DType::f64, {{"batch", 2}, {"seq", 5}, {"k_dim", kHidden}, {"n_dim", kVocab}});
    std::vector<Tensor> factors = gold_inputs(product);
    fill(factors[0], values_of(linear_input("hidden")));
    fill(factors[1], transposed(values_of(linear_input("lm_head_weight")), kHidden));
    fill(logp_inputs[0], collect_gold(product, factors, 1).at(0).value);
    fill(logp_inputs[1], values_of(linear_input("target_ids")));
    if (pass == "backward") fill(logp_inputs[2], values_of(linear_input("grad_logp")));
  }

  const Tensor& linear_input(std::string_view name) const { return linear_inputs[input_index(*linear.pass, name)]; }

  Case linear, logp;
  std::vector<Tensor> linear_inputs, logp_inputs;
};

TEST(Identity, LinearLogpIsLogpOfTheProduct) {
  const LinearAndParts parts("forward");
  expect_equal(collect_gold(parts.linear, parts.linear_inputs, 1).at(0).value,
               collect_gold(parts.logp, parts.logp_inputs, 1).at(0).value, 100.0);
}

TEST(Identity, LinearLogpGradientsAreProductsWithDlogits) {
  const LinearAndParts parts("backward");
  const std::vector<GoldOutput> linear = collect_gold(parts.linear, parts.linear_inputs, 1);
  const std::vector<double> dlogits = collect_gold(parts.logp, parts.logp_inputs, 1).at(0).value;

  const Case by_weight =
      gold_case("matmul", "forward", DType::f64, {{"batch", 2}, {"seq", 5}, {"k_dim", kVocab}, {"n_dim", kHidden}});
  std::vector<Tensor> factors = gold_inputs(by_weight);
  fill(factors[0], dlogits);
  fill(factors[1], values_of(parts.linear_input("lm_head_weight")));
  expect_equal(linear[output_index(*parts.linear.pass, "dhidden")].value,
               collect_gold(by_weight, factors, 1).at(0).value, 100.0);

  const Case by_hidden =
      gold_case("matmul", "forward", DType::f64, {{"batch", 1}, {"seq", kVocab}, {"k_dim", 10}, {"n_dim", kHidden}});
  factors = gold_inputs(by_hidden);
  fill(factors[0], transposed(dlogits, kVocab));
  fill(factors[1], values_of(parts.linear_input("hidden")));
  expect_equal(linear[output_index(*parts.linear.pass, "dlm_head_weight")].value,
               collect_gold(by_hidden, factors, 1).at(0).value, 100.0);
}

TEST(Identity, ABiasOfZeroChangesNothing) {
  const Case without = gold_case("linear_logp", "forward", DType::f64, kLinearDims);
  const Case with = gold_case("linear_logp", "forward", DType::f64, kLinearDims, {"bias"});
  std::vector<Tensor> inputs = gold_inputs(with);
  Tensor& bias = inputs[input_index(*with.pass, "bias")];
  fill(bias, std::vector<double>(static_cast<size_t>(bias.count()), 0.0));
  expect_equal(collect_gold(with, inputs, 1).at(0).value, collect_gold(without, gold_inputs(without), 1).at(0).value,
               1.0);
}

// Bit-equal: the same blocks of the same product, and such small multiples of 2^-12 add exactly.
TEST(Identity, LmHeadIsMatmulByTheTransposedWeightPlusBias) {
  const Case c = gold_case("lm_head", "forward", DType::f64, kLinearDims, {"bias"});
  const std::vector<Tensor> inputs = gold_inputs(c);
  const Case product =
      gold_case("matmul", "forward", DType::f64, {{"batch", 2}, {"seq", 5}, {"k_dim", kHidden}, {"n_dim", kVocab}});
  std::vector<Tensor> factors = gold_inputs(product);
  fill(factors[0], values_of(inputs[0]));
  fill(factors[1], transposed(values_of(inputs[1]), kHidden));
  GoldOutput expected = collect_gold(product, factors, 1).at(0);
  for (size_t i = 0; i < expected.value.size(); ++i) {
    const double b = inputs[2].at(static_cast<int64_t>(i) % kVocab);
    expected.value[i] += b, expected.magnitude[i] += std::abs(b);
  }
  const GoldOutput logits = collect_gold(c, inputs, 1).at(0);
  EXPECT_TRUE(logits.value == expected.value);
  EXPECT_TRUE(logits.magnitude == expected.magnitude);
}

// The columns extend into a second block.
TEST(Identity, DbiasOfLmHeadIsTheSumOfUpstreamRows) {
  const Case c = gold_case("lm_head", "backward", DType::f64, kLinearDims, {"bias"});
  const std::vector<Tensor> inputs = gold_inputs(c);
  const GoldOutput dbias = collect_gold(c, inputs, 1).at(output_index(*c.pass, "dbias"));
  const std::vector<double> grad = values_of(inputs[input_index(*c.pass, "grad_logits")]);
  std::vector<double> sum(static_cast<size_t>(kVocab)), magnitude(sum.size());
  for (size_t i = 0; i < grad.size(); ++i)
    sum[i % sum.size()] += grad[i], magnitude[i % sum.size()] += grad[i] * grad[i];
  for (size_t v = 0; v < sum.size(); ++v) magnitude[v] = std::abs(sum[v]) + std::sqrt(magnitude[v]);
  EXPECT_TRUE(dbias.value == sum);
  EXPECT_TRUE(dbias.magnitude == magnitude);
}

/// Sums of products of x[m, k] and y[k, n] term by term, and |sum| plus the root of the sum of squared products.
struct SimpleProduct {
  SimpleProduct(const std::vector<double>& x, const std::vector<double>& y, size_t m, size_t k, size_t n)
      : value(m * n), magnitude(m * n) {
    for (size_t i = 0; i < m; ++i) {
      for (size_t l = 0; l < k; ++l) {
        for (size_t j = 0; j < n; ++j) {
          value[i * n + j] += x[i * k + l] * y[l * n + j];
          magnitude[i * n + j] += x[i * k + l] * x[i * k + l] * y[l * n + j] * y[l * n + j];
        }
      }
    }
    for (size_t i = 0; i < m * n; ++i) magnitude[i] = std::abs(value[i]) + std::sqrt(magnitude[i]);
  }
  std::vector<double> value, magnitude;
};

// Sums of such small multiples of 2^-24 are exact in any order, so these are equalities. Extents span several blocks.
TEST(Identity, MatmulAcrossBlocksIsTheSimpleSum) {
  const Case forward =
      gold_case("matmul", "forward", DType::f64, {{"batch", 1}, {"seq", 521}, {"k_dim", 5}, {"n_dim", 2053}});
  std::vector<Tensor> inputs = gold_inputs(forward);
  const GoldOutput c = collect_gold(forward, inputs, 2).at(0);
  const SimpleProduct expected(values_of(inputs[0]), values_of(inputs[1]), 521, 5, 2053);
  EXPECT_TRUE(c.value == expected.value);
  EXPECT_TRUE(c.magnitude == expected.magnitude);

  const Case backward =
      gold_case("matmul", "backward", DType::f64, {{"batch", 1}, {"seq", 521}, {"k_dim", 2053}, {"n_dim", 5}});
  inputs = gold_inputs(backward);
  const std::vector<double> a = values_of(inputs[0]), b = values_of(inputs[1]), grad = values_of(inputs[2]);
  const std::vector<GoldOutput> gradients = collect_gold(backward, inputs, 2);
  const SimpleProduct da(grad, transposed(b, 5), 521, 5, 2053), db(transposed(a, 2053), grad, 2053, 521, 5);
  EXPECT_TRUE(gradients[0].value == da.value);
  EXPECT_TRUE(gradients[0].magnitude == da.magnitude);
  EXPECT_TRUE(gradients[1].value == db.value);
  EXPECT_TRUE(gradients[1].magnitude == db.magnitude);
}

TEST(Identity, MatmulMagnitudeIsAtLeastTheValue) {
  for (const std::string_view pass : {"forward", "backward"}) {
    const Case c = gold_case("matmul", pass, DType::f64, {{"batch", 2}, {"seq", 7}, {"k_dim", 33}, {"n_dim", 9}});
    for (const GoldOutput& output : collect_gold(c, gold_inputs(c), 1)) {
      for (size_t i = 0; i < output.value.size(); ++i) {
        EXPECT_TRUE(output.magnitude[i] >= std::abs(output.value[i]) * (1 - kRelativeError))
            << output.name << "[" << i << "]: " << output.magnitude[i] << " < |" << output.value[i] << "|";
      }
    }
  }
}

TEST(Identity, ErrorCoefficientsAreFiniteAndNotNegative) {
  for (const Operator* op : operators()) {
    for (const Pass& pass : op->passes) {
      const Case c = fitted(gold_case(op->name, pass.name, DType::f64, test_dims(*op, 3)));
      for (const GoldOutput& output : collect_gold(c, gold_inputs(c), 1)) {
        for (size_t i = 0; i < output.value.size(); ++i) {
          EXPECT_TRUE(output.magnitude[i] >= 0 && std::isfinite(output.magnitude[i])) << op->name << " " << output.name;
          EXPECT_TRUE(output.rounding[i] >= 0 && std::isfinite(output.rounding[i])) << op->name << " " << output.name;
        }
      }
    }
  }
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

// Large enough for the work to be split: 3*43 rows, and more columns than any block.
TEST(Identity, GoldBitsDoNotDependOnTheNumberOfThreads) {
  const Dims extents{{"batch", 3}, {"seq", 43}, {"hidden", 70}, {"vocab", 1031}, {"k_dim", 301}, {"n_dim", 257}};
  for (const Operator* op : operators()) {
    const Dims dims = dims_with(*op, [&](std::string_view dim) {
      const auto known = extents.find(dim);
      return known == extents.end() ? int64_t{37} : known->second;
    });
    for (const Pass& pass : op->passes) {
      const Case c = fitted(gold_case(op->name, pass.name, DType::f32, dims));
      const std::vector<Tensor> inputs = gold_inputs(c);
      const std::vector<GoldOutput> one = collect_gold(c, inputs, 1);
      for (const unsigned threads : {2u, 5u}) {
        const std::vector<GoldOutput> several = collect_gold(c, inputs, threads);
        for (size_t i = 0; i < one.size(); ++i) {
          SCOPED_TRACE(std::string(op->name) + "/" + std::string(pass.name) + " " + one[i].name + ", " +
                       std::to_string(threads) + " threads");
          EXPECT_TRUE(same_bits(one[i].value, several[i].value));
          EXPECT_TRUE(same_bits(one[i].magnitude, several[i].magnitude));
          EXPECT_TRUE(same_bits(one[i].rounding, several[i].rounding));
        }
      }
    }
  }
}

}  // namespace
}  // namespace checkop::identity_test
