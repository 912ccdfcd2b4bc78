// SPDX-License-Identifier: Apache-2.0
// Every backward gold against central differences of its forward gold, in FP64. Covers new operators automatically.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "support/gold_helper.hpp"

namespace checkop::gradient_test {
namespace {

// Five-point differences have errors of h^4/30 times the fifth derivative, 3e-14 here, and 1e-16/h times the loss,
// 1e-13.
constexpr double kStep = 1.0 / 1024;
constexpr double kTolerance = 1e-10;

struct Variant {
  const Operator* op;
  bool optionals;          ///< with all optional inputs of the forward pass, or with none
  bool upstreams = false;  ///< with the optional upstream gradients, too
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const Operator* op : operators()) {
    if (find_pass(*op, "backward") == nullptr) continue;
    all.push_back({op, false});
    for (const TensorSpec& spec : op->passes[0].inputs) {
      if (spec.optional && !all.back().optionals) all.push_back({op, true});
    }
    const auto is_upstream = [](const TensorSpec& spec) { return spec.optional && spec.fill == Fill::upstream; };
    const auto inputs = find_pass(*op, "backward")->inputs;
    if (std::any_of(inputs.begin(), inputs.end(), is_upstream)) all.push_back({op, true, true});
  }
  return all;
}

Case variant_case(const Variant& variant, int64_t smallest) {
  std::set<std::string, std::less<>> optionals;
  for (const TensorSpec& spec : variant.op->passes[0].inputs) {
    if (spec.optional && variant.optionals) optionals.emplace(spec.name);
  }
  for (const TensorSpec& spec : find_pass(*variant.op, "backward")->inputs) {
    const bool is_upstream = spec.optional && spec.fill == Fill::upstream;
    if (!variant.upstreams || !is_upstream) continue;
    optionals.emplace(spec.name);
    optionals.emplace(spec.name.substr(std::string_view("grad_").size()));  // the output that it is the gradient of
  }
  return fitted(gold_case(variant.op->name, "backward", DType::f64, test_dims(*variant.op, smallest), optionals));
}

/// The inputs of the forward pass, moved by step*direction[input][element].
std::vector<Tensor> moved_inputs(const Case& forward, const std::vector<Tensor>& inputs,
                                 const std::vector<std::vector<double>>& direction, double step) {
  std::vector<Tensor> moved;
  for (size_t i = 0; i < forward.pass->inputs.size(); ++i) {
    const Tensor& from = inputs[i];
    moved.push_back(gold_input(forward, forward.pass->inputs[i], [&](int64_t e) {
      return direction[i].empty() ? from.at(e) : from.at(e) + step * direction[i][static_cast<size_t>(e)];
    }));
  }
  return moved;
}

const Tensor* find_input(const std::vector<Tensor>& inputs, const std::string& name) {
  for (const Tensor& tensor : inputs) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

/// sum over outputs of <upstream gradient, output>
double loss(const Case& forward, const std::vector<Tensor>& inputs, const std::vector<Tensor>& forward_inputs) {
  double sum = 0;
  for (const GoldOutput& output : collect_gold(forward, forward_inputs, 1)) {
    const Tensor* const upstream = find_input(inputs, fmt::format("grad_{}", output.name));
    if (upstream == nullptr) continue;  // an output without a gradient
    // An output that all ranks hold has an upstream gradient for each leaf.
    for (int64_t e = 0; e < upstream->count(); ++e)
      sum += upstream->at(e) * output.value[static_cast<size_t>(e) % output.value.size()];
  }
  return sum;
}

class Gradient : public testing::TestWithParam<Variant> {
 protected:
  void prepare(int64_t smallest) {
    backward_ = variant_case(GetParam(), smallest);
    forward_ = with_pass(backward_, "forward");
    inputs_ = gold_inputs(backward_);
    forward_inputs_ = gold_inputs(forward_);  // the same values; the backward pass need not use all of them
    gradients_ = collect_gold(backward_, inputs_, 1);
    direction_.assign(forward_.pass->inputs.size(), {});
  }

  /// The gradient of forward input `i`; nullptr when it has none.
  const GoldOutput* gradient_of(size_t i) const {
    const std::string name = fmt::format("d{}", forward_.pass->inputs[i].name);
    for (const GoldOutput& gradient : gradients_) {
      if (gradient.name == name && !gradient.value.empty()) return &gradient;
    }
    return nullptr;
  }

  double loss_at(double step) const {
    return loss(forward_, inputs_, moved_inputs(forward_, forward_inputs_, direction_, step));
  }

  double difference() const {
    return (8 * (loss_at(kStep) - loss_at(-kStep)) - (loss_at(2 * kStep) - loss_at(-2 * kStep))) / (12 * kStep);
  }

  Case forward_, backward_;
  std::vector<Tensor> inputs_, forward_inputs_;  ///< of the backward and of the forward pass
  std::vector<GoldOutput> gradients_;
  std::vector<std::vector<double>> direction_;  ///< per forward input; empty: the input is not moved
};

TEST_P(Gradient, ExistsForEveryPresentFloatInput) {
  prepare(2);
  for (size_t i = 0; i < forward_.pass->inputs.size(); ++i) {
    const TensorSpec& spec = forward_.pass->inputs[i];
    const bool differentiable = !spec.constant && is_present(forward_, spec) && info(dtype_of(forward_, spec)).is_float;
    EXPECT_EQ(gradient_of(i) != nullptr, differentiable) << spec.name;
  }
}

TEST_P(Gradient, EachElementEqualsItsDifference) {
  prepare(2);
  int64_t compared = 0;
  for (size_t i = 0; i < direction_.size(); ++i) {
    const GoldOutput* gradient = gradient_of(i);
    if (gradient == nullptr) continue;
    // A gradient that is the same for every leaf is given once.
    ASSERT_TRUE(gradient->value.size() == static_cast<size_t>(forward_inputs_[i].count()) ||
                !forward_.op->parallel_dim.empty())
        << gradient->name;
    for (size_t e = 0; e < static_cast<size_t>(forward_inputs_[i].count()); ++e) {
      direction_[i].assign(static_cast<size_t>(forward_inputs_[i].count()), 0.0);
      direction_[i][e] = 1;
      const double expected = difference(), got = gradient->value[e % gradient->value.size()];
      // Negated so that a NaN fails.
      EXPECT_FALSE(!(std::abs(got - expected) <= kTolerance * std::max(1.0, std::abs(expected))))
          << gradient->name << "[" << e << "] is " << got << ", differences give " << expected;
      ++compared;
    }
    direction_[i].clear();
  }
  EXPECT_GT(compared, 0);
}

TEST_P(Gradient, AlongRandomDirectionsEqualsTheDifference) {
  prepare(5);
  std::mt19937 random(7);
  for (int trial = 0; trial < 5; ++trial) {
    double expected = 0, size = 1;
    for (size_t i = 0; i < direction_.size(); ++i) {
      const GoldOutput* gradient = gradient_of(i);
      if (gradient == nullptr) continue;
      direction_[i].resize(static_cast<size_t>(forward_inputs_[i].count()));
      for (size_t e = 0; e < direction_[i].size(); ++e) {
        // Small steps in many dimensions: the fifth derivative grows with the length of the direction.
        direction_[i][e] = (static_cast<double>(random() % 257) - 128) / 1024;
        const double product = direction_[i][e] * gradient->value[e % gradient->value.size()];
        expected += product;
        size += std::abs(product);
      }
    }
    const double got = difference();
    EXPECT_FALSE(!(std::abs(got - expected) <= kTolerance * size))
        << "trial " << trial << ": differences give " << got << ", the gradient " << expected;
  }
}

INSTANTIATE_TEST_SUITE_P(Gold, Gradient, testing::ValuesIn(variants()), [](const auto& info) {
  return std::string(info.param.op->name) + (info.param.optionals ? "_with_optionals" : "") +
         (info.param.upstreams ? "_and_upstream_gradients" : "");
});

}  // namespace
}  // namespace checkop::gradient_test
