// SPDX-License-Identifier: Apache-2.0
// varlen_attention: every sequence is attention of that sequence alone, in the gold and in the bits of the native
// candidate; rows behind the last sequence; bounds.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "support/rows_helper.hpp"
#include "tensor/bits.hpp"

namespace checkop::varlen_attention_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kQHeads = 4, kKvHeads = 2, kWidth = 5, kTokens = 90;

Case packed(std::string_view pass, bool own_keys, DType dtype, int64_t seqs = 9, int64_t rest = 8) {
  Case c = gold_case("varlen_attention", pass, dtype,
                     {{"tokens_q", kTokens},
                      {"tokens_k", kTokens + 41},
                      {"q_heads", kQHeads},
                      {"kv_heads", kKvHeads},
                      {"head_dim", kWidth},
                      {"seqs", seqs}});
  if (own_keys) c.optionals.insert("cu_seqlens_k");
  c.ignored_every = rest;
  return c;
}

struct Range {
  int64_t first, n;
};

Range range_of(const Case& c, std::vector<Tensor>& inputs, bool of_keys, int64_t s) {
  const bool own = of_keys && c.optionals.contains("cu_seqlens_k");
  const Tensor& bounds = input(c, inputs, own ? "cu_seqlens_k" : "cu_seqlens_q");
  const auto first = static_cast<int64_t>(bounds.at(s));
  return {first, static_cast<int64_t>(bounds.at(s + 1)) - first};
}

bool is_of_keys(std::string_view tensor) { return tensor.ends_with("k") || tensor.ends_with("v"); }

/// With sinks, lse and its gradient.
Case with_sinks(Case c) {
  c.optionals.insert({"sinks", "grad_lse"});
  if (c.pass->name == "forward") c.optionals.insert("lse");
  return c;
}

/// The same, in the backward pass with o and lse of the forward pass. In the forward pass lse is an output.
Case with_saved(Case c) {
  if (c.pass->name == "backward") c.optionals.insert({"o", "lse"});
  return c;
}

/// Elements of one head of a token: 1 for lse and its gradient.
int64_t width_of(std::string_view tensor) { return tensor.ends_with("lse") ? 1 : kWidth; }

/// The element of a tensor [1, heads, n, width] that element `i` of the sequence's tokens is.
int64_t entry_index(int64_t i, int64_t heads, int64_t n, int64_t width) {
  const int64_t d = i % width, head = i / width % heads, token = i / width / heads;
  return (head * n + token) * width + d;
}

/// Sequence s as a case of attention, and its inputs.
struct Alone {
  Alone(const Case& c, std::vector<Tensor>& inputs, int64_t s)
      : q(range_of(c, inputs, false, s)), k(range_of(c, inputs, true, s)) {
    as_attention = gold_case("attention", c.pass->name, c.dtype,
                             {{"batch", 1},
                              {"q_heads", kQHeads},
                              {"kv_heads", kKvHeads},
                              {"q_seq", q.n},
                              {"kv_seq", k.n},
                              {"head_dim", kWidth}});
    as_attention.attrs = c.attrs;
    as_attention.optionals = c.optionals;
    as_attention.optionals.erase("cu_seqlens_k");
    for (const TensorSpec& spec : as_attention.pass->inputs) {
      if (!is_present(as_attention, spec)) {
        own.emplace_back();
        continue;
      }
      const Tensor& from = input(c, inputs, spec.name);
      if (spec.name == "sinks") {
        Tensor& to = own.emplace_back(from.name, from.dtype, from.shape);
        for (int64_t i = 0; i < to.count(); ++i) to.set(i, from.at(i));
        continue;
      }
      const Range range = is_of_keys(spec.name) ? k : q;
      const int64_t heads = from.shape[1], width = width_of(spec.name);
      Shape shape{1, heads, range.n};
      if (width > 1) shape.push_back(width);
      Tensor& to = own.emplace_back(std::string(spec.name), from.dtype, shape);
      for (int64_t i = 0; i < to.count(); ++i)
        to.set(entry_index(i, heads, range.n, width), from.at(range.first * heads * width + i));
    }
  }

  Range q, k;
  Case as_attention;
  std::vector<Tensor> own;
};

/// Calls body(output, first element among the tokens, elements, heads, n, sequence alone) for every output with tokens
/// of every sequence that has queries and keys.
template <class Body>
void for_outputs(const Case& c, std::vector<Tensor>& inputs, const Body& body) {
  int seen = 0;
  for (int64_t s = 0; s < c.dims.at("seqs"); ++s) {
    const Alone alone(c, inputs, s);
    if (alone.q.n == 0 || alone.k.n == 0) continue;
    ++seen;
    for (size_t i = 0; i < c.pass->outputs.size(); ++i) {
      const TensorSpec& spec = c.pass->outputs[i].tensor;
      if (!is_present(c, spec) || spec.name == "dsinks") continue;
      const bool of_keys = is_of_keys(spec.name);
      const Range range = of_keys ? alone.k : alone.q;
      const int64_t heads = of_keys ? kKvHeads : kQHeads, of_token = heads * width_of(spec.name);
      body(i, range.first * of_token, range.n * of_token, heads, range.n, alone);
    }
  }
  EXPECT_GE(seen, 4);
}

TEST(VarlenAttention, GoldIsThatOfAttentionOfEachSequence) {
  for (const char* pass : {"forward", "backward"}) {
    for (const bool own_keys : {false, true}) {
      for (const double causal : {0.0, 1.0}) {
        Case c = packed(pass, own_keys, DType::f64);
        c.attrs[0] = causal;
        if (own_keys) c = with_sinks(c), c.attrs = {causal, 0.5, 7, 3, 2};
        if (causal != 0) c = with_saved(c);
        std::vector<Tensor> inputs = make_inputs(c, 1);
        const std::vector<GoldOutput> all = collect_gold(c, inputs, 1);
        for_outputs(c, inputs,
                    [&](size_t o, int64_t first, int64_t count, int64_t heads, int64_t n, const Alone& alone) {
                      const GoldOutput one = collect_gold(alone.as_attention, alone.own, 1).at(o);
                      for (int64_t i = 0; i < count; ++i) {
                        const auto at = static_cast<size_t>(first + i),
                                   there = static_cast<size_t>(entry_index(i, heads, n, width_of(one.name)));
                        ASSERT_EQ(all[o].value[at], one.value[there]) << one.name << " " << i;
                        ASSERT_EQ(all[o].magnitude[at], one.magnitude[there]) << one.name << " " << i;
                        ASSERT_EQ(all[o].rounding[at], one.rounding[there]) << one.name << " " << i;
                      }
                    });
      }
    }
  }
}

TEST(VarlenAttention, NativeHasTheBitsOfAttentionOfEachSequence) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const char* pass : {"forward", "backward"}) {
      const Case c = with_saved(with_sinks(packed(pass, /*own_keys=*/true, dtype)));
      std::vector<Tensor> inputs = make_inputs(c, 1);
      const NativeAnswer all = run_native(c, inputs);
      ASSERT_EQ(all.result.status, RunStatus::ok) << all.result.message;
      for_outputs(c, inputs, [&](size_t o, int64_t first, int64_t count, int64_t heads, int64_t n, const Alone& alone) {
        const NativeAnswer one = run_native(alone.as_attention, alone.own);
        const Tensor& output = all.outputs[o];
        for (int64_t i = 0; i < count; ++i)
          ASSERT_EQ(
              load_bits(output.dtype, output.bytes.data(), first + i),
              load_bits(output.dtype, one.outputs[o].bytes.data(), entry_index(i, heads, n, width_of(output.name))))
              << output.name << " " << i;
      });
    }
  }
}

TEST(VarlenAttention, SavedInputsAreTheGoldOfTheForwardPassRounded) {
  const Case back = with_saved(packed("backward", /*own_keys=*/true, DType::f32));
  Case c = packed("forward", /*own_keys=*/true, DType::f32);
  c.optionals.insert("lse");
  std::vector<Tensor> inputs = make_inputs(back, 2);
  for (const GoldOutput& gold : collect_gold(c, make_inputs(c, 1), 1)) {
    const Tensor& saved = input(back, inputs, gold.name);
    for (int64_t i = 0; i < saved.count(); ++i)
      EXPECT_EQ(saved.at(i), static_cast<float>(gold.value[static_cast<size_t>(i)])) << saved.name << i;
  }
}

TEST(VarlenAttention, NativeUsesWhatTheForwardPassSaved) {
  constexpr size_t kDq = 0, kDv = 2;
  const Case c = with_saved(packed("backward", /*own_keys=*/true, DType::f32));
  std::vector<Tensor> inputs = make_inputs(c, 1);
  const auto numbers = [&](size_t output) {
    const NativeAnswer answer = run_native(c, inputs);
    std::vector<double> all;
    for (int64_t i = 0; i < answer.outputs[output].count(); ++i) all.push_back(answer.outputs[output].at(i));
    return all;
  };
  const auto add_one = [&](std::string_view name) {
    Tensor& saved = input(c, inputs, name);
    for (int64_t i = 0; i < saved.count(); ++i) saved.set(i, saved.at(i) + 1);
  };
  const std::vector<double> dq = numbers(kDq), dv = numbers(kDv);
  add_one("o");
  EXPECT_NE(numbers(kDq), dq);
  EXPECT_EQ(numbers(kDv), dv) << "dv has no row sum";
  add_one("lse");
  EXPECT_NE(numbers(kDv), dv);
}

TEST(VarlenAttention, SavedInputsOfAnotherForwardPassAreRefused) {
  const Case c = with_saved(packed("backward", /*own_keys=*/true, DType::f32));
  for (const std::string_view name : {"o", "lse"}) {
    std::vector<Tensor> inputs = make_inputs(c, 1);
    Tensor& saved = input(c, inputs, name);
    for (int64_t i = 0; i < saved.count(); ++i) saved.set(i, saved.at(i) + 1);
    EXPECT_THROW(collect_gold(c, inputs, 1), InputError) << name;
  }
}

TEST(VarlenAttention, TheGradientOfASinkIsThatOfAllSequences) {
  constexpr size_t kDSinks = 3;
  const Case c = with_sinks(packed("backward", /*own_keys=*/true, DType::f64));
  std::vector<Tensor> inputs = make_inputs(c, 1);
  const GoldOutput all = collect_gold(c, inputs, 1).at(kDSinks);
  std::vector<double> sums(kQHeads);
  for (int64_t s = 0; s < c.dims.at("seqs"); ++s) {
    const Alone alone(c, inputs, s);
    const GoldOutput one = collect_gold(alone.as_attention, alone.own, 1).at(kDSinks);
    for (size_t head = 0; head < sums.size(); ++head) sums[head] += one.value[head];
  }
  EXPECT_EQ(all.value, sums);
  const Case single = with_sinks(packed("backward", /*own_keys=*/true, DType::f32));
  const NativeAnswer native = run_native(single, make_inputs(single, 1));
  for (size_t head = 0; head < sums.size(); ++head)
    EXPECT_NEAR(native.outputs[kDSinks].at(static_cast<int64_t>(head)), sums[head], 1e-4) << head;
}

/// Rows of the tokens behind the last sequence become `value`.
void set_rest(const Case& c, std::vector<Tensor>& inputs, double value) {
  for (const TensorSpec& spec : c.pass->inputs) {
    Tensor& tensor = input(c, inputs, spec.name);
    if (tensor.name.empty() || tensor.shape.size() < 2) continue;
    const Range end = range_of(c, inputs, is_of_keys(spec.name), c.dims.at("seqs") - 1);
    const int64_t of_token = tensor.shape[1] * width_of(spec.name);
    for (int64_t i = (end.first + end.n) * of_token; i < tensor.count(); ++i) tensor.set(i, value);
  }
}

TEST(VarlenAttention, RowsBehindTheLastSequenceAreZeroAndNeverLeak) {
  for (const char* pass : {"forward", "backward"}) {
    const Case c = with_saved(with_sinks(packed(pass, /*own_keys=*/true, DType::f32)));
    std::vector<Tensor> inputs = make_inputs(c, 1);
    set_rest(c, inputs, 0.5);
    const auto expected = gold_and_native(c, inputs);
    for (const double content : {kNan, HUGE_VAL, 1e30}) {
      set_rest(c, inputs, content);
      EXPECT_EQ(gold_and_native(c, inputs), expected) << pass << " " << content;
    }
    for (size_t o = 0; o < expected.size(); ++o) {
      const std::string_view name = c.pass->outputs[o % c.pass->outputs.size()].tensor.name;
      if (name == "dsinks") continue;
      const Range end = range_of(c, inputs, is_of_keys(name), c.dims.at("seqs") - 1);
      const auto first =
          static_cast<size_t>((end.first + end.n) * width_of(name) * (is_of_keys(name) ? kKvHeads : kQHeads));
      ASSERT_LT(first, expected[o].size());
      for (size_t i = first; i < expected[o].size(); ++i)
        EXPECT_EQ(expected[o][i], name == "lse" ? -HUGE_VAL : 0) << name << " " << i;
    }
  }
}

// A query without keys, in a sequence without any or with fewer keys than queries.
TEST(VarlenAttention, QueriesWithoutKeysAreZero) {
  for (const char* pass : {"forward", "backward"}) {
    const Case c = packed(pass, /*own_keys=*/true, DType::f32);
    std::vector<Tensor> inputs = make_inputs(c, 1);
    const auto all = gold_and_native(c, inputs);
    int64_t unseen = 0;
    for (int64_t s = 0; s < c.dims.at("seqs"); ++s) {
      const Range q = range_of(c, inputs, false, s), k = range_of(c, inputs, true, s);
      for (int64_t i = 0; i < (q.n - k.n) * kQHeads * kWidth; ++i, ++unseen) {
        const auto at = static_cast<size_t>(q.first * kQHeads * kWidth + i);
        EXPECT_EQ(all[0][at], 0) << pass << " " << at;
        EXPECT_EQ(all[all.size() / 2][at], 0) << pass << " " << at;
      }
    }
    EXPECT_GT(unseen, 0);
  }
}

TEST(VarlenAttention, BoundsThatDoNotFollowEachOtherAreRefused) {
  for (const char* bounds : {"cu_seqlens_q", "cu_seqlens_k"}) {
    for (const auto& [element, value] : {std::pair{0, 1}, {2, -1}, {9, 1000}, {9, 1}}) {
      const Case c = packed("forward", /*own_keys=*/true, DType::f32);
      std::vector<Tensor> inputs = make_inputs(c, 1);
      input(c, inputs, bounds).set(element, value);
      EXPECT_THROW(collect_gold(c, inputs, 1), InputError) << bounds << " " << element << " " << value;
      const NativeAnswer native = run_native(c, inputs);
      EXPECT_EQ(native.result.status, RunStatus::failed) << bounds << " " << element << " " << value;
      EXPECT_NE(native.result.message.find(bounds), std::string::npos) << native.result.message;
    }
  }
}

TEST(VarlenAttention, DrawnSequencesAreOfEveryKind) {
  const Case c = packed("forward", /*own_keys=*/true, DType::f32);
  std::vector<Tensor> inputs = make_inputs(c, 1);
  bool empty = false, no_queries = false, no_keys = false, one = false, more_queries = false, in_a_row = false;
  bool before = false;
  for (int64_t s = 0; s < c.dims.at("seqs"); ++s) {
    const int64_t q = range_of(c, inputs, false, s).n, k = range_of(c, inputs, true, s).n;
    empty |= q == 0 && k == 0, no_queries |= q == 0 && k > 0, no_keys |= q > 0 && k == 0;
    one |= q == 1 && k > 1, more_queries |= k > 0 && q > k, in_a_row |= before && q == 0;
    before = q == 0;
  }
  EXPECT_TRUE(empty && no_queries && no_keys && one && more_queries && in_a_row);
  const Case all = packed("forward", /*own_keys=*/true, DType::f32, 3, /*rest=*/0);
  inputs = make_inputs(all, 1);
  EXPECT_EQ(input(all, inputs, "cu_seqlens_q").at(3), kTokens);
  const Case none = packed("forward", /*own_keys=*/true, DType::f32, 3, /*rest=*/1);
  inputs = make_inputs(none, 1);
  EXPECT_EQ(input(none, inputs, "cu_seqlens_q").at(3), 0);
}

}  // namespace
}  // namespace checkop::varlen_attention_test
