// SPDX-License-Identifier: Apache-2.0
// fp8_block_gemm: where scales belong, and the bound against sums as FP8 tensor cores compute them.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "base/random.hpp"
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

// --- the bound of a block, against the model of tensor cores -----------------------------------------------------

constexpr int64_t kCodes = 128;
constexpr double kUnit = 0x1p-24;

/// Kinds of blocks of a row of codes, by what sums of tensor cores lose.
enum class Kind : uint8_t {
  any,                 ///< all codes are as likely
  alike,               ///< like normal numbers
  subnormal,           ///< codes of subnormal numbers
  of_cancelled,        ///< where the next kind has large numbers, two that cancel and are subnormal; else normal ones
  cancelled,           ///< in every instruction two large numbers; else tiny ones
  between,             ///< large numbers in the first and in the last instruction, and small ones between them
  between_with_signs,  ///< the same, with the last ones below 0
  count
};

double number_of(Kind kind, int64_t k, std::mt19937& random) {
  std::array<double, 256> values{};
  for (size_t i = 0; i < values.size(); ++i) {
    const auto code = static_cast<std::byte>(i);
    info(DType::e4m3).decode(&code, &values[i], 1);
  }
  const auto drawn = static_cast<double>(random()) * 0x1p-32;
  const int64_t instruction = k / kTensorCoreCodes, i = k % kTensorCoreCodes;
  switch (kind) {
    case Kind::any: {
      const double value = values[random() % 256];
      return std::isnan(value) ? 448 : value;
    }
    case Kind::alike:
      return 128 * std::normal_distribution<double>()(random);
    case Kind::subnormal:
      return values[random() % 8 + (drawn < 0.5 ? 128 : 0)];
    case Kind::of_cancelled:
      return i == 0 ? 0x1p-9 : i == 1 ? -0x1p-9 : 1.125 * 0x1p-5;
    case Kind::cancelled:
      return i < 2 ? 256 : 7 * 0x1p-9;
    case Kind::between:
      return instruction % 3 == 0 ? 256 : 15;
    case Kind::between_with_signs:
      return instruction == 0 ? 256 : instruction == 3 ? -256 : 15;
    case Kind::count:
      break;
  }
  return 0;
}

/// What the bound was before it knew of aligned codes and of partial sums.
double bound_of_size(double sum, double squares) {
  return (132 * 0x1p-13 + 3 * kUnit) * (std::abs(sum) + std::sqrt(squares));
}

TEST(Fp8BlockGemm, DrawnDataHaveBlocksThatLoseMoreThanTheirSize) {
  const int64_t rows = 16, n_dim = 12;
  const Case c = case_of(rows, kCodes, n_dim);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const std::vector<Tensor> got = of_tensor_cores(c, inputs);
  const std::vector<GoldOutput> gold = collect_gold(c, inputs, 1);
  std::set<std::pair<int64_t, int64_t>> beyond;
  for (int64_t i = 0; i < rows * n_dim; ++i) {
    const int64_t row = i / n_dim, n = i % n_dim;
    double squares = 0;
    for (int64_t k = 0; k < kCodes; ++k)
      squares += std::pow(inputs[0].at(row * kCodes + k) * inputs[2].at(n * kCodes + k), 2);
    const double value = gold[0].value[static_cast<size_t>(i)], scale = inputs[1].at(row) * inputs[3].at(0);
    if (std::abs(got[0].at(i) - value) > bound_of_size(value, scale * scale * squares)) beyond.emplace(row, n);
  }
  const std::set<std::pair<int64_t, int64_t>> expected{{4, 6}, {7, 4}, {7, 6}, {12, 6}, {15, 4}, {15, 6}};
  EXPECT_EQ(beyond, expected);
}

// A product of of_cancelled and cancelled is below the last place of 2^-6 * 256, as which an instruction counts
// 2^-9 * 256; so is 15 * 15 below that of 32 * 256 * 256. All of them are lost, and what they are lost beside cancels.
TEST(Fp8BlockGemm, NoBlockLosesMoreThanItsBoundAndSomeMoreThanTheirSize) {
  constexpr auto kKinds = static_cast<int64_t>(Kind::count);
  constexpr int64_t kOfKind = 8, kRows = kKinds * kOfKind;
  const Case c = case_of(kRows, kCodes, kRows);
  std::vector<Tensor> inputs = make_inputs(c, 1);
  std::mt19937 random(1);
  for (const size_t codes : {0, 2})
    for (int64_t i = 0; i < inputs[codes].count(); ++i)
      inputs[codes].set(i, number_of(static_cast<Kind>(i / kCodes % kKinds), i % kCodes, random));
  for (const size_t scales : {1, 3})
    for (int64_t i = 0; i < inputs[scales].count(); ++i) inputs[scales].set(i, 0.75);
  const std::vector<Tensor> got = of_tensor_cores(c, inputs);
  const std::vector<GoldOutput> gold = collect_gold(c, inputs, 1);
  std::array<double, kKinds * kKinds> largest{};  // ratio to bound_of_size() by kinds
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t n = 0; n < kRows; ++n) {
      const auto at = static_cast<size_t>(row * kRows + n);
      const double error = std::abs(got[0].at(row * kRows + n) - gold[0].value[at]);
      EXPECT_LE(error, kUnit * gold[0].rounding[at]) << row << " " << n;
      double squares = 0;
      for (int64_t k = 0; k < kCodes; ++k)
        squares += std::pow(0.75 * 0.75 * inputs[0].at(row * kCodes + k) * inputs[2].at(n * kCodes + k), 2);
      const double before = bound_of_size(gold[0].value[at], squares);
      double& ratio = largest[static_cast<size_t>(row % kKinds * kKinds + n % kKinds)];
      ratio = std::max(ratio, error == 0 ? 0 : error / before);
      if (row % kKinds == 1 && n % kKinds == 1) {
        EXPECT_NEAR(kUnit * gold[0].rounding[at], before, 1e-4 * before) << "the bound of ordinary data has changed";
      }
    }
  }
  const auto of = [&](Kind a, Kind b) {
    return largest[static_cast<size_t>(static_cast<int64_t>(a) * kKinds + static_cast<int64_t>(b))];
  };
  EXPECT_GT(of(Kind::of_cancelled, Kind::cancelled), 2);
  EXPECT_GT(of(Kind::between, Kind::between_with_signs), 1.5);
  EXPECT_LT(of(Kind::alike, Kind::alike), 0.1);
}

// An instruction counts a subnormal code as 2^-6; sums in fp32 do not.
TEST(Fp8BlockGemm, MagnitudesAreOfProductsAsTheyAre) {
  const Case c = case_of(1, 256, 1);
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (int64_t k = 0; k < 256; ++k) inputs[0].set(k, 0x1p-9), inputs[2].set(k, k % 2 == 0 ? 1 : -1);
  for (const size_t scales : {1, 3})
    for (int64_t i = 0; i < inputs[scales].count(); ++i) inputs[scales].set(i, 1);
  const std::vector<GoldOutput> gold = collect_gold(c, inputs, 1);
  EXPECT_EQ(gold[0].value[0], 0);
  EXPECT_DOUBLE_EQ(gold[0].magnitude[0], 16 * 0x1p-9);
  EXPECT_GT(kUnit * gold[0].rounding[0], 2 * 132 * 0x1p-13 * std::sqrt(128) * 0x1p-6);
}

// --- NaN ---------------------------------------------------------------------------------------------------------

Case extreme_case() {
  Case c = case_of(24, 272, 140);
  c.input_mode = InputMode::extreme;
  return c;
}

/// Whether a code of row `row`, or a scale of row `scale_row`, is NaN.
bool has_nan(const Tensor& codes, int64_t row, const Tensor& scales, int64_t scale_row) {
  bool found = false;
  for (const auto& [tensor, r] : {std::pair{&codes, row}, std::pair{&scales, scale_row}}) {
    const int64_t columns = tensor->shape.back();
    for (int64_t k = 0; k < columns; ++k) found |= std::isnan(tensor->at(r * columns + k));
  }
  return found;
}

TEST(Fp8BlockGemm, NanReachesItsRowAndItsColumnAloneAlsoInTensorCores) {
  const Case c = extreme_case();
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const std::vector<GoldOutput> gold = collect_gold(c, inputs, 1);
  const std::vector<Tensor> got = of_tensor_cores(c, inputs);
  int64_t counts[2] = {};
  for (int64_t i = 0; i < got[0].count(); ++i) {
    const int64_t row = i / 140, n = i % 140;
    const bool is_nan = has_nan(inputs[0], row, inputs[1], row) || has_nan(inputs[2], n, inputs[3], n / 128);
    ASSERT_EQ(std::isnan(gold[0].value[static_cast<size_t>(i)]), is_nan) << row << " " << n;
    ASSERT_EQ(std::isnan(got[0].at(i)), is_nan) << row << " " << n;
    ++counts[is_nan ? 1 : 0];
  }
  EXPECT_GT(counts[0], 1000);
  EXPECT_GT(counts[1], 1000);
  EXPECT_TRUE(judge_outputs(c, inputs, got, default_contract(), {}, 1)[0].passed());
  for (const size_t codes : {0, 2}) {  // of both signs
    std::set<std::byte> seen;
    for (int64_t i = 0; i < inputs[codes].count(); ++i)
      if (std::isnan(inputs[codes].at(i))) seen.insert(inputs[codes].bytes.data()[i]);
    EXPECT_EQ(seen, (std::set{std::byte{0x7f}, std::byte{0xff}}));
  }
}

TEST(Fp8BlockGemm, ANumberInPlaceOfNanFails) {
  const Case c = extreme_case();
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (const size_t codes : {0, 2}) {
    std::vector<Tensor> read = make_inputs(c, 1);
    for (int64_t i = 0; i < read[codes].count(); ++i)
      if (std::isnan(read[codes].at(i))) read[codes].set(i, 448);
    const Comparison wrong = judge_outputs(c, inputs, of_tensor_cores(c, read), default_contract(), {}, 1)[0];
    EXPECT_FALSE(wrong.passed());
    EXPECT_GT(wrong.nonfinite, 0);
  }
}

void each_residual(const Case& c, const std::vector<Tensor>& inputs, const Tensor& d,
                   const std::function<void(const Residual&)>& sink) {
  std::vector<const Tensor*> in;
  for (const Tensor& tensor : inputs) in.push_back(&tensor);
  const Tensor* const out = &d;
  c.pass->identities({in,
                      {&out, 1},
                      c.attrs,
                      1,
                      [](std::string_view stream, uint64_t j) {
                        return Stream::derive(123, "fp8_block_gemm", stream).below(j, 2) == 0 ? -1.0 : 1.0;
                      },
                      sink});
}

double bound_of(const Residual& r) { return kUnit * (8 * r.magnitude + r.rounding + r.stored); }

/// The largest residuals of rows by identity, over their bounds as multiples of fp32's unit; infinite if that is 0.
std::map<std::string, double> residuals_of(const Case& c, const std::vector<Tensor>& inputs, const Tensor& d) {
  std::map<std::string, double> largest;
  each_residual(c, inputs, d, [&](const Residual& r) {
    double& worst = largest[std::string(r.identity)];
    const double ratio = r.value == 0 ? 0 : std::abs(r.value) / bound_of(r);
    if (!(ratio <= worst)) worst = ratio;
  });
  return largest;
}

TEST(Fp8BlockGemm, IdentitiesTellWhereNanBelongs) {
  const Case c = extreme_case();
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = of_tensor_cores(c, inputs);
  Tensor& d = outputs[0];
  std::map<std::string, double> residuals = residuals_of(c, inputs, d);
  EXPECT_EQ(residuals.at("nan"), 0);
  EXPECT_LT(residuals.at("freivalds"), 1);
  EXPECT_GT(residuals.at("freivalds"), 0);
  const int64_t number = 6 * 140, nan = 6 * 140 + 3;
  ASSERT_TRUE(std::isfinite(d.at(number)) && std::isnan(d.at(nan)));
  const double right = d.at(number);
  d.set(number, std::nan(""));
  EXPECT_EQ(residuals_of(c, inputs, d).at("nan"), INFINITY);
  d.set(number, right + 1e3);
  EXPECT_GT(residuals_of(c, inputs, d).at("freivalds"), 1);
  d.set(number, right), d.set(nan, 1);
  EXPECT_EQ(residuals_of(c, inputs, d).at("nan"), INFINITY);
}

/// Residuals of Freivalds' check over their bounds, by row.
std::vector<double> freivalds_of(const Case& c, const std::vector<Tensor>& inputs, const Tensor& d) {
  std::vector<double> ratios;
  each_residual(c, inputs, d, [&](const Residual& r) {
    if (r.identity == "freivalds") ratios.push_back(std::abs(r.value) / bound_of(r));
  });
  return ratios;
}

// Its limit grows as k_dim, numbers of a row of both signs as the root of it. Every second row of draw() has no number
// below 0, nor has every second row of b, so that the numbers of these grow as k_dim too.
TEST(Fp8BlockGemm, FreivaldsCheckSeesOnlyGrossErrorsInLongRowsOfBothSigns) {
  const int64_t rows = 64, k_dim = 4096, n_dim = 256;
  const Case c = case_of(rows, k_dim, n_dim);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = of_tensor_cores(c, inputs);
  Tensor& d = outputs[0];
  for (const double ratio : freivalds_of(c, inputs, d)) EXPECT_LT(ratio, 0.05);
  double squares = 0;
  for (int64_t n = 0; n < n_dim; ++n) squares += d.at(n) * d.at(n);
  // The least error of one element that it sees in row 0, in multiples of that row's root mean square.
  const double root_mean = std::sqrt(squares / n_dim), right = d.at(7);
  d.set(7, right + 105 * root_mean);
  EXPECT_LT(freivalds_of(c, inputs, d)[0], 1) << "it sees more than reference/fp8_product.hpp says";
  d.set(7, right + 125 * root_mean);
  EXPECT_GT(freivalds_of(c, inputs, d)[0], 1);
  for (int64_t i = 0; i < d.count(); ++i) d.set(i, 0);
  const std::vector<double> of_zeros = freivalds_of(c, inputs, d);
  std::array<int64_t, 8> seen{};
  for (size_t row = 0; row < of_zeros.size(); ++row) seen[row % 8] += of_zeros[row] > 1 ? 1 : 0;
  EXPECT_EQ(seen[0] + seen[2] + seen[6], 0) << "it sees more than reference/fp8_product.hpp says";
  EXPECT_GE(seen[1] + seen[5] + seen[7], 20);
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
