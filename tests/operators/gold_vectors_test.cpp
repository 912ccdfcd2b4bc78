// SPDX-License-Identifier: Apache-2.0
// The gold against tests/data/gold/*.json, which scripts/gold_vectors computed with mpmath at 50 digits.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "support/gold_helper.hpp"

namespace checkop::gold_vectors_test {
namespace {

// FP64 rounds at 1.1e-16; an exponential of -80 amplifies that 80 times, and the sums here are short.
constexpr double kRelativeError = 1e-13;

const nlohmann::json& vectors() {
  static const nlohmann::json all = [] {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& entry : std::filesystem::directory_iterator(CHECKOP_SOURCE_DIR "/tests/data/gold")) {
      std::ifstream file(entry.path());
      const nlohmann::json document = nlohmann::json::parse(file);
      for (const auto& vector : document.at("vectors")) list.push_back(vector);
    }
    return list;
  }();
  return all;
}

double number(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  const auto& text = value.get_ref<const std::string&>();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw std::logic_error("gold vectors: no number: " + text);
}

Case case_of(const nlohmann::json& vector, DType dtype) {
  Case c = gold_case(vector.at("op").get<std::string>(), vector.at("pass").get<std::string>(), dtype,
                     vector.at("dims").get<Dims>(), vector.at("optionals").get<std::set<std::string, std::less<>>>());
  for (size_t i = 0; i < c.attrs.size(); ++i) {
    if (vector.contains("attrs")) c.attrs[i] = number(vector.at("attrs").at(std::string(c.op->attrs[i].name)));
  }
  return c;
}

std::vector<Tensor> inputs_of(const nlohmann::json& vector, const Case& c) {
  std::vector<Tensor> inputs;
  for (const TensorSpec& spec : c.pass->inputs) {
    const std::string name(spec.name);
    inputs.push_back(gold_input(
        c, spec, [&](int64_t i) { return number(vector.at("inputs").at(name).at(static_cast<size_t>(i))); }));
    const Tensor& tensor = inputs.back();
    if (tensor.name.empty()) continue;
    EXPECT_EQ(static_cast<size_t>(tensor.count()), vector.at("inputs").at(name).size()) << name;
    for (int64_t i = 0; i < tensor.count(); ++i) {
      EXPECT_EQ(tensor.at(i), number(vector.at("inputs").at(name).at(static_cast<size_t>(i)))) << name << " " << i;
    }
  }
  return inputs;
}

/// Written so that NaN fails.
bool is_close(double got, double expected, double scale) {
  return got == expected || std::abs(got - expected) <= kRelativeError * scale;
}

void expect_vectors_hold(DType dtype) {
  int64_t compared = 0;
  for (const nlohmann::json& vector : vectors()) {
    SCOPED_TRACE(vector.at("name").get<std::string>());
    const Case c = case_of(vector, dtype);
    const std::vector<GoldOutput> outputs = collect_gold(c, inputs_of(vector, c), 1);
    size_t present = 0;
    for (const GoldOutput& output : outputs) {
      if (output.value.empty()) continue;
      ++present;
      const nlohmann::json& expected = vector.at("outputs").at(output.name);
      ASSERT_EQ(output.value.size(), expected.at("value").size()) << output.name;
      for (size_t i = 0; i < output.value.size(); ++i) {
        const double want = number(expected.at("value").at(i)), scale = number(expected.at("scale").at(i));
        EXPECT_TRUE(is_close(output.value[i], want, scale))
            << output.name << "[" << i << "] is " << output.value[i] << ", expected " << want << " at scale " << scale;
        ++compared;
      }
    }
    EXPECT_EQ(present, vector.at("outputs").size());
  }
  EXPECT_GT(compared, 1000);
}

TEST(GoldVectors, HoldForFp64Inputs) { expect_vectors_hold(DType::f64); }
TEST(GoldVectors, HoldForFp32Inputs) { expect_vectors_hold(DType::f32); }
TEST(GoldVectors, HoldForFp16Inputs) { expect_vectors_hold(DType::f16); }
TEST(GoldVectors, HoldForBf16Inputs) { expect_vectors_hold(DType::bf16); }

TEST(GoldVectors, CoverEveryPassOfEveryOperator) {
  std::set<std::pair<std::string, std::string>> covered;
  for (const nlohmann::json& vector : vectors()) covered.emplace(vector.at("op"), vector.at("pass"));
  for (const Operator* op : operators()) {
    for (const Pass& pass : op->passes) {
      EXPECT_TRUE(covered.count({std::string(op->name), std::string(pass.name)}) == 1) << op->name << " " << pass.name;
    }
  }
}

TEST(GoldVectors, ComparisonFailsForNan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(is_close(nan, 1.0, 1.0));
  EXPECT_FALSE(is_close(1.0 + 2e-13, 1.0, 1.0));
  EXPECT_TRUE(is_close(1.0 + 0.5e-13, 1.0, 1.0));
}

}  // namespace
}  // namespace checkop::gold_vectors_test
