// SPDX-License-Identifier: Apache-2.0
// attention: masks, groups, scales, and masked values that must not leak, in the gold and in the native candidate.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "device/device.hpp"
#include "device/plugin.hpp"
#include "run/runner.hpp"
#include "support/built.hpp"
#include "support/gold_helper.hpp"

namespace checkop::attention_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Dims dims(int64_t q_seq, int64_t kv_seq, int64_t q_heads = 2, int64_t kv_heads = 1) {
  return {{"batch", 2},     {"q_heads", q_heads}, {"kv_heads", kv_heads},
          {"q_seq", q_seq}, {"kv_seq", kv_seq},   {"head_dim", 4}};
}

/// causal, scale, window_left, window_right, softcap
std::vector<double> attributes(bool causal, double window_left = -1, double window_right = -1, double softcap = 0) {
  return {causal ? 1.0 : 0.0, -1.0, window_left, window_right, softcap};
}

Case attention(std::string_view pass, const Dims& sizes, bool causal = true, bool masked = false,
               DType dtype = DType::f64) {
  Case c = gold_case("attention", pass, dtype, sizes);
  c.attrs = attributes(causal);
  if (masked) c.optionals.insert("key_padding_mask");
  return c;
}

size_t at(int64_t i) { return static_cast<size_t>(i); }

TEST(Attention, OneKeyGivesItsValue) {
  const Case c = attention("forward", dims(1, 1));
  const std::vector<Tensor> inputs = gold_inputs(c);
  const GoldOutput o = collect_gold(c, inputs, 1).at(0);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(o.value[at(b * 8 + i)], inputs[2].at(b * 4 + i % 4));
  }
}

// Scores of 0 weigh all keys equally, and 0 is a valid scale.
TEST(Attention, AScaleOfZeroIsHonoured) {
  Case c = attention("forward", dims(2, 3), /*causal=*/false);
  c.attrs[1] = 0;
  const std::vector<Tensor> inputs = gold_inputs(c);
  const GoldOutput o = collect_gold(c, inputs, 1).at(0);
  const double mean = (inputs[2].at(0) + inputs[2].at(4) + inputs[2].at(8)) / 3;
  EXPECT_NEAR(o.value[0], mean, 1e-15);
  c = with_pass(c, "backward");
  const std::vector<GoldOutput> gradients = collect_gold(c, gold_inputs(c), 1);
  for (const double dq : gradients[0].value) EXPECT_EQ(dq, 0);
}

TEST(Attention, TheDefaultScaleIsOneOverTheRootOfTheHeadSize) {
  Case c = attention("forward", dims(3, 3));
  const std::vector<Tensor> inputs = gold_inputs(c);
  const GoldOutput by_default = collect_gold(c, inputs, 1).at(0);
  c.attrs[1] = 0.5;
  EXPECT_EQ(by_default.value, collect_gold(c, inputs, 1).at(0).value);
}

TEST(Attention, QueryHeadsOfAGroupReadTheSameKeys) {
  const Case grouped = attention("forward", dims(3, 5, 4, 2)), plain = attention("forward", dims(3, 5, 4, 4));
  const std::vector<Tensor> few = gold_inputs(grouped);
  std::vector<Tensor> all = gold_inputs(plain);
  for (const size_t t : {size_t{1}, size_t{2}}) {
    for (int64_t i = 0; i < all[t].count(); ++i) {
      const int64_t b = i / 80, head = i / 20 % 4;
      all[t].set(i, few[t].at(b * 40 + head / 2 * 20 + i % 20));
    }
  }
  EXPECT_EQ(collect_gold(grouped, few, 1).at(0).value, collect_gold(plain, all, 1).at(0).value);
}

// With more queries than keys the first queries see none.
TEST(Attention, AQueryWithoutKeysIsZeroAndHasZeroGradients) {
  const Dims sizes = dims(5, 3, 1, 1);
  const Case c = attention("forward", sizes), back = attention("backward", sizes);
  const GoldOutput o = collect_gold(c, gold_inputs(c), 1).at(0);
  const GoldOutput dq = collect_gold(back, gold_inputs(back), 1).at(0);
  for (const GoldOutput* output : {&o, &dq}) {
    for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(output->value[at(i)], 0) << output->name;
    EXPECT_NE(output->value[at(16)], 0) << output->name;
  }
}

TEST(Attention, AnEntryThatIsAllMaskedIsZero) {
  for (const std::string_view pass : {"forward", "backward"}) {
    const Case c = attention(pass, dims(3, 4), /*causal=*/false, /*masked=*/true);
    std::vector<Tensor> inputs = gold_inputs(c);
    for (int64_t j = 0; j < 4; ++j) inputs[3].set(4 + j, 0);
    for (const GoldOutput& output : collect_gold(c, inputs, 1)) {
      const int64_t entry = std::ssize(output.value) / c.dims.at("batch");
      for (int64_t i = entry; i < 2 * entry; ++i) EXPECT_EQ(output.value[at(i)], 0) << output.name;
    }
  }
}

// Any nonzero value keeps a key.
TEST(Attention, TwoInTheMaskKeepsLikeOne) {
  const Case c = attention("forward", dims(3, 4), true, true);
  std::vector<Tensor> inputs = gold_inputs(c);
  for (int64_t j = 0; j < 8; ++j) inputs[3].set(j, j % 3 == 1 ? 0 : 1);
  const std::vector<double> ones = collect_gold(c, inputs, 1).at(0).value;
  for (int64_t j = 0; j < 8; ++j) inputs[3].set(j, j % 3 == 1 ? 0 : 2);
  EXPECT_EQ(ones, collect_gold(c, inputs, 1).at(0).value);
}

/// Runs the native candidate and returns its outputs.
std::vector<Tensor> native(const Case& c, const std::vector<Tensor>& inputs) {
  const std::vector<Candidate> candidates = load_plugin(native_plugin("attention"));
  std::vector<Tensor> outputs = make_outputs(c);
  const auto device = open_cpu_device();
  for (const Candidate& candidate : candidates) {
    if (candidate.pass != c.pass->name) continue;
    const RunResult run = run_candidate(*device, candidate, c, inputs, outputs, RunChecks{});
    EXPECT_EQ(run.status, RunStatus::ok) << run.message;
  }
  return outputs;
}

// NaN or infinity in padding or in future keys changes no bit of a query that does not see them.
TEST(Attention, WhatIsMaskedNeverLeaks) {
  for (const std::string_view pass : {"forward", "backward"}) {
    const Case c = attention(pass, dims(3, 4), /*causal=*/true, /*masked=*/true, DType::f32);
    std::vector<Tensor> inputs = gold_inputs(c);
    for (int64_t j = 0; j < 8; ++j) inputs[3].set(j, j == 1 || j == 6 ? 0 : 1);
    const std::vector<GoldOutput> clean = collect_gold(c, inputs, 1);
    const std::vector<Tensor> clean_native = native(c, inputs);
    for (const size_t t : {size_t{1}, size_t{2}}) {
      for (int64_t d = 0; d < 4; ++d) {
        inputs[t].set(1 * 4 + d, kNan);
        inputs[t].set(6 * 4 + d, d % 2 == 0 ? kNan : HUGE_VAL);
      }
    }
    const std::vector<GoldOutput> dirty = collect_gold(c, inputs, 1);
    const std::vector<Tensor> dirty_native = native(c, inputs);
    for (size_t i = 0; i < clean.size(); ++i) {
      EXPECT_EQ(clean[i].value, dirty[i].value) << clean[i].name;
      if (clean_native[i].name.empty()) continue;
      for (int64_t e = 0; e < clean_native[i].count(); ++e) {
        EXPECT_EQ(clean_native[i].at(e), dirty_native[i].at(e)) << clean[i].name << e;
      }
    }
  }
}

TEST(Attention, AKeyInTheFutureNeverLeaks) {
  const Case c = attention("forward", dims(3, 3, 1, 1), /*causal=*/true, /*masked=*/false, DType::f32);
  std::vector<Tensor> inputs = gold_inputs(c);
  for (int64_t d = 0; d < 4; ++d) inputs[1].set(8 + d, kNan), inputs[2].set(8 + d, kNan);
  const GoldOutput o = collect_gold(c, inputs, 1).at(0);
  const std::vector<Tensor> got = native(c, inputs);
  for (int64_t i = 0; i < 12; ++i) {
    EXPECT_EQ(std::isnan(o.value[at(i)]), i >= 8) << i;
    EXPECT_EQ(std::isnan(got[0].at(i)), i >= 8) << i;
  }
}

TEST(Attention, SizesThatDoNotGoTogetherAreRefused) {
  EXPECT_THROW(validate(attention("forward", dims(3, 3, 3, 2))), InputError);
  Case c = attention("forward", dims(3, 3, 4, 2));
  EXPECT_NO_THROW(validate(c));
  for (size_t attr = 0; attr < c.attrs.size(); ++attr) {
    const Case good = c;
    for (const double bad : {kNan, attr == 1 ? HUGE_VAL : -1.5}) {
      c.attrs[attr] = bad;
      EXPECT_THROW(validate(c), InputError) << attr << " " << bad;
    }
    c = good;
  }
}

// With 3 queries and 5 keys, query i owns key i + 2.
TEST(Attention, AWindowKeepsBothOfItsEnds) {
  struct Window {
    std::vector<double> attrs;
    int64_t before, after;  // of the own key
  };
  for (const Window& window :
       {Window{attributes(true, 1), 1, 0}, Window{attributes(true, 0, 2), 0, 0}, Window{attributes(false, 2, 1), 2, 1},
        Window{attributes(false, -1, 0), 5, 0}, Window{attributes(false, 9, 9), 5, 5}}) {
    Case c = attention("forward", dims(3, 5, 1, 1), /*causal=*/true, /*masked=*/false, DType::f32);
    c.attrs = window.attrs;
    std::vector<Tensor> inputs = gold_inputs(c);
    for (int64_t i = 0; i < inputs[0].count(); ++i) inputs[0].set(i, 0);  // so that all keys weigh the same
    const GoldOutput o = collect_gold(c, inputs, 1).at(0);
    const std::vector<Tensor> got = native(c, inputs);
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t first = std::max<int64_t>(i + 2 - window.before, 0),
                    end = std::min<int64_t>(i + 3 + window.after, 5);
      double sum = 0;
      for (int64_t j = first; j < end; ++j) sum += inputs[2].at(j * 4);
      EXPECT_NEAR(o.value[at(i * 4)], sum / static_cast<double>(end - first), 1e-14) << i;
      EXPECT_NEAR(got[0].at(i * 4), sum / static_cast<double>(end - first), 1e-6) << i;
    }
  }
}

// A window of kv_seq - 1 keys before the own one leaves nothing out.
TEST(Attention, AWindowOverAllKeysIsTheCausalMask) {
  for (const std::string_view pass : {"forward", "backward"}) {
    Case c = attention(pass, dims(4, 4), /*causal=*/true, /*masked=*/false, DType::f32);
    const std::vector<Tensor> inputs = gold_inputs(c);
    const std::vector<GoldOutput> causal = collect_gold(c, inputs, 1);
    c.attrs = attributes(false, 3, 0);
    const std::vector<GoldOutput> window = collect_gold(c, inputs, 1);
    for (size_t i = 0; i < causal.size(); ++i) EXPECT_EQ(causal[i].value, window[i].value) << pass << i;
  }
}

TEST(Attention, ASoftCapBoundsTheScores) {
  constexpr double kCap = 0.25;
  Case c = attention("forward", dims(1, 2, 1, 1), /*causal=*/true, /*masked=*/false, DType::f32);
  c.attrs = attributes(true, -1, -1, kCap);
  const std::vector<Tensor> inputs = gold_inputs(c);
  const GoldOutput o = collect_gold(c, inputs, 1).at(0);
  double score[2] = {};
  for (int64_t j = 0; j < 2; ++j) {
    for (int64_t d = 0; d < 4; ++d) score[j] += inputs[0].at(d) * inputs[1].at(j * 4 + d) / 2;
    score[j] = kCap * std::tanh(score[j] / kCap);
  }
  const double p0 = 1 / (1 + std::exp(score[1] - score[0]));
  const double expected = p0 * inputs[2].at(0) + (1 - p0) * inputs[2].at(4);
  EXPECT_NEAR(o.value[0], expected, 1e-14);
  EXPECT_NEAR(native(c, inputs)[0].at(0), expected, 1e-6);
}

/// The backward case with o and lse of the forward pass, in fp32.
Case with_saved(const Dims& sizes) {
  Case c = attention("backward", sizes, /*causal=*/true, /*masked=*/false, DType::f32);
  c.optionals = {"o", "lse"};
  return c;
}

TEST(Attention, LseIsTheLogarithmOfTheSumOfExponentials) {
  Case c = attention("forward", dims(3, 2, 1, 1), /*causal=*/true, /*masked=*/false, DType::f32);
  c.optionals = {"lse"};
  const std::vector<Tensor> inputs = gold_inputs(c);
  const GoldOutput lse = collect_gold(c, inputs, 1).at(1);
  const auto score = [&](int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t d = 0; d < 4; ++d) sum += inputs[0].at(i * 4 + d) * inputs[1].at(j * 4 + d);
    return sum / 2;
  };
  EXPECT_EQ(lse.value[0], -INFINITY) << "query 0 sees no key";
  EXPECT_NEAR(lse.value[1], score(1, 0), 1e-14);
  EXPECT_NEAR(lse.value[2], std::log(std::exp(score(2, 0)) + std::exp(score(2, 1))), 1e-14);
  const std::vector<Tensor> got = native(c, inputs);
  EXPECT_EQ(got[1].at(0), -INFINITY);
  EXPECT_NEAR(got[1].at(2), lse.value[2], 1e-6);
}

// exp(sink) is one more term of the denominator; neither scale nor cap change the sink.
TEST(Attention, ASinkCountsInTheDenominatorAlone) {
  Case c = attention("forward", dims(1, 2, 2, 1), /*causal=*/true, /*masked=*/false, DType::f32);
  c.optionals = {"sinks", "lse"};
  c.attrs = attributes(true, -1, -1, 0.25);
  std::vector<Tensor> inputs = gold_inputs(c);
  const Tensor &q = inputs[0], &k = inputs[1], &v = inputs[2], &sinks = inputs[4];
  const std::vector<GoldOutput> gold = collect_gold(c, inputs, 1);
  const std::vector<Tensor> got = native(c, inputs);
  for (int64_t head = 0; head < 2; ++head) {
    double weight[2] = {}, sum = std::exp(sinks.at(head));
    for (int64_t j = 0; j < 2; ++j) {
      for (int64_t d = 0; d < 4; ++d) weight[j] += q.at(head * 4 + d) * k.at(j * 4 + d) / 2;
      sum += weight[j] = std::exp(0.25 * std::tanh(weight[j] / 0.25));
    }
    const double expected = (weight[0] * v.at(0) + weight[1] * v.at(4)) / sum;
    EXPECT_NEAR(gold[0].value[at(head * 4)], expected, 1e-14);
    EXPECT_NEAR(got[0].at(head * 4), expected, 1e-6);
    EXPECT_NEAR(gold[1].value[at(head)], std::log(sum), 1e-14);
    EXPECT_NEAR(got[1].at(head), std::log(sum), 1e-6);
  }
}

TEST(Attention, ASinkOfMinusInfinityIsNone) {
  for (const std::string_view pass : {"forward", "backward"}) {
    Case c = attention(pass, dims(5, 3), /*causal=*/true, /*masked=*/false, DType::f32);
    if (pass == "forward") c.optionals = {"lse"};
    const std::vector<GoldOutput> without = collect_gold(c, gold_inputs(c), 1);
    const std::vector<Tensor> native_without = native(c, gold_inputs(c));
    c.optionals.insert("sinks");
    std::vector<Tensor> inputs = gold_inputs(c);
    for (int64_t head = 0; head < 2; ++head) inputs[input_index(*c.pass, "sinks")].set(head, -HUGE_VAL);
    const std::vector<GoldOutput> with = collect_gold(c, inputs, 1);
    const std::vector<Tensor> native_with = native(c, inputs);
    for (size_t i = 0; i < with.size(); ++i) {
      if (with[i].name != "dsinks") {
        EXPECT_EQ(with[i].value, without[i].value) << with[i].name;
        EXPECT_EQ(values_of(native_with[i]), values_of(native_without[i])) << with[i].name;
        continue;
      }
      EXPECT_EQ(with[i].value, std::vector<double>(2, 0.0));
      EXPECT_EQ(native_with[i].at(1), 0);
    }
  }
}

// With 5 queries and 3 keys, queries 0 and 1 see none.
TEST(Attention, ASinkIsTheLseOfAQueryWithoutKeysAndGetsItsGradient) {
  Case c = attention("forward", dims(5, 3, 1, 1), /*causal=*/true, /*masked=*/false, DType::f32);
  c.optionals = {"sinks", "lse"};
  std::vector<Tensor> inputs = gold_inputs(c);
  inputs[4].set(0, 100);
  const std::vector<GoldOutput> gold = collect_gold(c, inputs, 1);
  const std::vector<Tensor> got = native(c, inputs);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(gold[1].value[i], 100);
    EXPECT_EQ(got[1].at(static_cast<int64_t>(i)), 100);
    EXPECT_EQ(gold[0].value[i * 4], 0);
  }
  c = with_pass(c, "backward");
  c.optionals = {"sinks", "grad_lse"};
  inputs = gold_inputs(c);
  inputs[4].set(0, 1000);  // the probabilities of all keys are 0
  const Tensor& grad_lse = inputs[input_index(*c.pass, "grad_lse")];
  double sum = 0;
  for (int64_t i = 0; i < grad_lse.count(); ++i) sum += grad_lse.at(i);
  EXPECT_NEAR(collect_gold(c, inputs, 1).at(3).value[0], sum, 1e-14);
  EXPECT_NEAR(native(c, inputs)[3].at(0), sum, 1e-6);
}

TEST(Attention, SavedInputsAreTheGoldOfTheForwardPassRounded) {
  const Case back = with_saved(dims(5, 3)), c = with_pass(back, "forward");
  const std::vector<Tensor> inputs = make_inputs(back, 2);
  const std::vector<GoldOutput> gold = collect_gold(c, make_inputs(c, 1), 1);
  for (const size_t output : {size_t{0}, size_t{1}}) {
    const Tensor& saved = inputs[input_index(*back.pass, gold[output].name)];
    for (int64_t i = 0; i < saved.count(); ++i)
      EXPECT_EQ(saved.at(i), static_cast<float>(gold[output].value[at(i)])) << saved.name << i;
  }
}

/// The bound of each gradient of the case, and its gold.
struct Bounds {
  std::vector<std::vector<double>> value, spread;
};
Bounds bounds_of(const Case& c, const std::vector<Tensor>& inputs) {
  Bounds all;
  for (const GoldOutput& output : collect_gold(c, inputs, 1)) {
    all.value.push_back(output.value);
    all.spread.emplace_back(output.value.size());
  }
  run_gold(c, inputs, 1, [&](const GoldRows& rows) {
    for (int64_t i = 0; rows.spread != nullptr && i < rows.n_rows * rows.columns; ++i)
      all.spread[static_cast<size_t>(rows.output)][at(rows.first_row * rows.columns + i)] = rows.spread[i];
  });
  return all;
}

// A kernel that uses o moves dq and dk by what the rounding of o adds to its row sum, and by no more.
TEST(Attention, SavedInputsWidenABoundByTheirOwnErrorAlone) {
  const Case c = with_saved(dims(3, 3, 1, 1));
  std::vector<Tensor> inputs = gold_inputs(c);
  const size_t o = input_index(*c.pass, "o"), lse = input_index(*c.pass, "lse"), grad = input_index(*c.pass, "grad_o");
  const Bounds exact = bounds_of(c, inputs);
  const double added = 1.0 / 1024;
  const int64_t row = 1;  // of the first entry; it sees keys 0 and 1
  inputs[o].set(row * 4, inputs[o].at(row * 4) + added);
  const Bounds moved = bounds_of(c, inputs);
  EXPECT_EQ(exact.value, moved.value) << "the gold follows q, k and v";
  EXPECT_EQ(exact.spread[2], moved.spread[2]) << "dv has no row sum";
  double score[2] = {};
  for (int64_t j = 0; j < 2; ++j) {
    for (int64_t d = 0; d < 4; ++d) score[j] += inputs[0].at(row * 4 + d) * inputs[1].at(j * 4 + d) / 2;
  }
  const double p0 = 1 / (1 + std::exp(score[1] - score[0]));
  for (int64_t d = 0; d < 4; ++d) {
    const double k = p0 * inputs[1].at(d) + (1 - p0) * inputs[1].at(4 + d);
    const double expected = std::abs(inputs[grad].at(row * 4) * added * k / 2);
    EXPECT_NEAR(moved.spread[0][at(row * 4 + d)], expected, 1e-6) << d;
    EXPECT_LT(exact.spread[0][at(row * 4 + d)], 1e-6) << d;
  }
  inputs[lse].set(row, inputs[lse].at(row) + added);
  EXPECT_GT(bounds_of(c, inputs).spread[2][at(0)], 0.5 * added * p0 * std::abs(inputs[grad].at(row * 4)));
}

TEST(Attention, SavedInputsOfAnotherForwardPassAreRefused) {
  const Case c = with_saved(dims(3, 3));
  for (const std::string_view name : {"o", "lse"}) {
    std::vector<Tensor> inputs = gold_inputs(c);
    Tensor& saved = inputs[input_index(*c.pass, name)];
    for (int64_t i = 0; i < saved.count(); ++i) saved.set(i, saved.at(i) + 1);
    EXPECT_THROW(collect_gold(c, inputs, 1), InputError) << name;
  }
}

TEST(Attention, NativeUsesWhatTheForwardPassSaved) {
  const Case c = with_saved(dims(3, 3));
  std::vector<Tensor> inputs = gold_inputs(c);
  const double before = native(c, inputs)[0].at(0 * 4), dv_before = native(c, inputs)[2].at(0);
  Tensor& o = inputs[input_index(*c.pass, "o")];
  for (int64_t i = 0; i < o.count(); ++i) o.set(i, o.at(i) + 1);
  EXPECT_NE(native(c, inputs)[0].at(0), before);
  Tensor& lse = inputs[input_index(*c.pass, "lse")];
  for (int64_t i = 0; i < lse.count(); ++i) lse.set(i, lse.at(i) + 1);
  EXPECT_NE(native(c, inputs)[2].at(0), dv_before);
}

// exp(-90) is subnormal in fp32, and ex2.approx.ftz gives 0.
TEST(Attention, AProbabilityThatIsFlushedIsWithinTheBounds) {
  const Case c = attention("backward", dims(1, 2, 1), /*causal=*/false, /*masked=*/false, DType::f32);
  std::vector<Tensor> inputs = gold_inputs(c);
  for (int64_t i = 0; i < inputs[0].count(); ++i) inputs[0].set(i, i % 4 == 0 ? 1 : 0.25);
  for (int64_t i = 0; i < inputs[1].count(); ++i) inputs[1].set(i, i % 8 == 0 ? 180 : 0);
  Tensor& grad = inputs[input_index(*c.pass, "grad_o")];
  for (int64_t i = 0; i < grad.count(); ++i) grad.set(i, 100);
  const std::vector<GoldOutput> gradients = collect_gold(c, inputs, 1);
  for (const size_t output : {1, 2}) {
    const GoldOutput& gradient = gradients[output];
    for (int64_t b = 0; b < 2; ++b) {
      for (size_t i = at(8 * b + 4); i < at(8 * b + 8); ++i) {  // of the second key
        EXPECT_NE(gradient.value[i], 0);
        EXPECT_LE(std::abs(gradient.value[i]), 0x1p-24 * gradient.rounding[i]) << gradient.name << " " << i;
      }
    }
  }
}

// What the backward pass is given as saved comes from a run of the gold without errors, with sums in the same order.
TEST(Attention, SavedOutputsHaveTheBitsOfTheGold) {
  for (const int64_t kv_seq : {1, 4, 7, 70}) {
    Dims sizes = dims(6, kv_seq);
    sizes["head_dim"] = 5, sizes["v_dim"] = 37;
    Case c = attention("backward", sizes, /*causal=*/false, /*masked=*/true);
    c.attrs = attributes(/*causal=*/false, /*window_left=*/50, /*window_right=*/3, /*softcap=*/2);
    c.optionals.insert({"o", "lse", "sinks"});
    const std::vector<Tensor> inputs = gold_inputs(c);
    Case forward = with_pass(c, "forward");
    forward.optionals.insert("lse");
    const std::vector<GoldOutput> gold = collect_gold(forward, gold_inputs(forward), 1);
    for (const GoldOutput& output : gold) {
      const Tensor& saved = inputs[input_index(*c.pass, output.name)];
      ASSERT_EQ(std::ssize(output.value), saved.count());
      Tensor expected(saved.name, saved.dtype, saved.shape);
      for (int64_t i = 0; i < saved.count(); ++i) expected.set(i, output.value[at(i)]);
      EXPECT_EQ(std::memcmp(expected.bytes.data(), saved.bytes.data(), saved.bytes.size()), 0)
          << output.name << ", " << kv_seq << " keys";
    }
  }
}

// The scores' error grows with their sums: so the output's magnitude grows although its value does not.
TEST(Attention, MagnitudeFollowsTheScores) {
  Case c = attention("forward", dims(3, 5));
  std::vector<Tensor> inputs = gold_inputs(c);
  const GoldOutput small = collect_gold(c, inputs, 1).at(0);
  for (int64_t i = 0; i < inputs[0].count(); ++i) inputs[0].set(i, 16 * inputs[0].at(i));
  const GoldOutput large = collect_gold(c, inputs, 1).at(0);
  double small_sum = 0, large_sum = 0;
  for (size_t i = 0; i < small.value.size(); ++i) {
    EXPECT_GE(small.magnitude[i], std::abs(small.value[i]));
    small_sum += small.magnitude[i], large_sum += large.magnitude[i];
  }
  EXPECT_GT(large_sum, 4 * small_sum);
}

}  // namespace
}  // namespace checkop::attention_test
