// SPDX-License-Identifier: Apache-2.0
// kv_cache_attention: the bits of attention over the joined cache and new keys, which keys each query sees, and sizes.
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
#include "support/contract_helper.hpp"
#include "support/gold_helper.hpp"

namespace checkop::kv_cache_attention_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kBatch = 2, kWidth = 5;

struct Lengths {
  int64_t cached, fresh;
};

Case cached(std::string_view pass, Lengths n, bool masked = false, DType dtype = DType::f64, int64_t q_heads = 4,
            int64_t kv_heads = 2) {
  Case c = gold_case("kv_cache_attention", pass, dtype,
                     {{"batch", kBatch},
                      {"q_heads", q_heads},
                      {"kv_heads", kv_heads},
                      {"q_seq", n.fresh},
                      {"new_seq", n.fresh},
                      {"cache_seq", n.cached},
                      {"head_dim", kWidth}});
  if (masked) c.optionals.insert("key_padding_mask");
  return c;
}

/// The attention case in which cache and new keys are one tensor.
Case joined_case(const Case& c) {
  Case joined = gold_case("attention", c.pass->name, c.dtype,
                          {{"batch", kBatch},
                           {"q_heads", c.dims.at("q_heads")},
                           {"kv_heads", c.dims.at("kv_heads")},
                           {"q_seq", c.dims.at("q_seq")},
                           {"kv_seq", c.dims.at("cache_seq") + c.dims.at("new_seq")},
                           {"head_dim", kWidth}});
  std::copy(c.attrs.begin(), c.attrs.end(), joined.attrs.begin());  // attention has more, here the defaults
  joined.optionals = c.optionals;
  return joined;
}

Tensor copy_of(const Tensor& from) {
  if (from.name.empty()) return {};
  Tensor copy(from.name, from.dtype, from.shape);
  std::memcpy(copy.bytes.data(), from.bytes.data(), from.bytes.size());
  return copy;
}

/// For every head the rows of `a`, then those of `b`; element by element, so that no kernel code is copied here.
Tensor joined(const Tensor& a, const Tensor& b, std::string name) {
  Shape shape = a.shape;
  shape[2] += b.shape[2];
  Tensor all(std::move(name), a.dtype, shape);
  for (int64_t i = 0; i < all.count(); ++i) {
    const int64_t d = i % kWidth, row = i / kWidth % shape[2], head = i / kWidth / shape[2];
    all.set(i, row < a.shape[2] ? a.at((head * a.shape[2] + row) * kWidth + d)
                                : b.at((head * b.shape[2] + row - a.shape[2]) * kWidth + d));
  }
  return all;
}

std::vector<Tensor> joined_inputs(const std::vector<Tensor>& in) {
  std::vector<Tensor> inputs;
  inputs.push_back(copy_of(in[0]));
  inputs.push_back(joined(in[1], in[3], "k"));
  inputs.push_back(joined(in[2], in[4], "v"));
  inputs.push_back(copy_of(in[5]));
  inputs.emplace_back();  // no sinks
  if (in.size() == 6) return inputs;
  inputs.push_back(copy_of(in[6]));
  inputs.resize(inputs.size() + 3);  // o, lse and the gradient of lse, absent
  return inputs;
}

/// Runs the native candidate of c's operator and returns its outputs.
std::vector<Tensor> native(const Case& c, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> outputs = make_outputs(c);
  const auto device = open_cpu_device();
  const std::string path = native_plugin(c.op->name);
  for (const Candidate& candidate : load_plugin(path)) {
    if (candidate.pass != c.pass->name) continue;
    const RunResult run = run_candidate(*device, candidate, c, inputs, outputs, RunChecks{});
    EXPECT_EQ(run.status, RunStatus::ok) << run.message;
  }
  return outputs;
}

/// Which of the two parts element `i` of the joined tensor is in, and where.
struct Place {
  bool fresh;
  int64_t index;

  Place(int64_t i, Lengths n) {
    const int64_t d = i % kWidth, row = i / kWidth % (n.cached + n.fresh), head = i / kWidth / (n.cached + n.fresh);
    fresh = row >= n.cached;
    index = fresh ? (head * n.fresh + row - n.cached) * kWidth + d : (head * n.cached + row) * kWidth + d;
  }
};

size_t at(int64_t i) { return static_cast<size_t>(i); }

constexpr Lengths kLengths[] = {{1, 1}, {6, 3}, {3, 6}, {40, 1}, {33, 34}};

TEST(KvCacheAttention, GoldIsThatOfAttentionOverBothParts) {
  for (const Lengths n : kLengths) {
    for (const bool masked : {false, true}) {
      for (const char* pass : {"forward", "backward"}) {
        const Case c = cached(pass, n, masked);
        const std::vector<Tensor> inputs = gold_inputs(c);
        const std::vector<GoldOutput> got = collect_gold(c, inputs, 1),
                                      whole = collect_gold(joined_case(c), joined_inputs(inputs), 1);
        EXPECT_EQ(got[0].value, whole[0].value);
        EXPECT_EQ(got[0].magnitude, whole[0].magnitude);
        EXPECT_EQ(got[0].rounding, whole[0].rounding);
        for (size_t t = 1; t < whole.size(); ++t) {
          for (size_t i = 0; i < whole[t].value.size(); ++i) {
            const Place place(static_cast<int64_t>(i), n);
            const GoldOutput& part = got[place.fresh ? t + 2 : t];
            ASSERT_EQ(part.value[at(place.index)], whole[t].value[i]) << part.name << place.index;
            ASSERT_EQ(part.magnitude[at(place.index)], whole[t].magnitude[i]) << part.name << place.index;
            ASSERT_EQ(part.rounding[at(place.index)], whole[t].rounding[i]) << part.name << place.index;
          }
        }
      }
    }
  }
}

TEST(KvCacheAttention, NativeHasTheBitsOfAttentionOverBothParts) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const Lengths n : kLengths) {
      for (const bool masked : {false, true}) {
        for (const char* pass : {"forward", "backward"}) {
          const Case c = cached(pass, n, masked, dtype);
          const std::vector<Tensor> inputs = gold_inputs(c);
          const std::vector<Tensor> got = native(c, inputs), whole = native(joined_case(c), joined_inputs(inputs));
          EXPECT_EQ(compare_bits(dtype, got[0].bytes.data(), whole[0].bytes.data(), got[0].count()).different, 0);
          for (size_t t = 1; t < whole.size() && !whole[t].name.empty(); ++t) {
            for (int64_t i = 0; i < whole[t].count(); ++i) {
              const Place place(i, n);
              const Tensor& part = got[place.fresh ? t + 2 : t];
              ASSERT_EQ(load_bits(dtype, part.bytes.data(), place.index), load_bits(dtype, whole[t].bytes.data(), i))
                  << part.name << place.index;
            }
          }
        }
      }
    }
  }
}

// Every query sees the whole cache, and the new keys up to its own.
TEST(KvCacheAttention, ANanReachesTheQueriesThatSeeIt) {
  constexpr Lengths n{4, 3};
  const Case c = cached("forward", n, false, DType::f32, 1, 1);
  for (const bool fresh : {false, true}) {
    for (int64_t key = 0; key < (fresh ? n.fresh : n.cached); ++key) {
      std::vector<Tensor> inputs = gold_inputs(c);
      for (int64_t d = 0; d < kWidth; ++d) inputs[fresh ? 3 : 1].set(key * kWidth + d, kNan);  // in batch entry 0
      const GoldOutput o = collect_gold(c, inputs, 1).at(0);
      const std::vector<Tensor> got = native(c, inputs);
      for (int64_t i = 0; i < kBatch * n.fresh * kWidth; ++i) {
        const int64_t query = i / kWidth;
        const bool sees = query < n.fresh && (!fresh || key <= query);
        EXPECT_EQ(std::isnan(o.value[at(i)]), sees) << fresh << " key " << key << " query " << query;
        EXPECT_EQ(std::isnan(got[0].at(i)), sees) << fresh << " key " << key << " query " << query;
      }
    }
  }
}

// One query at a time, with everything before it in the cache, equals the causal mask over all queries at once.
TEST(KvCacheAttention, DecodingStepByStepIsCausalAttention) {
  constexpr int64_t kSeq = 6;
  const Case whole = gold_case(
      "attention", "forward", DType::f64,
      {{"batch", kBatch}, {"q_heads", 4}, {"kv_heads", 2}, {"q_seq", kSeq}, {"kv_seq", kSeq}, {"head_dim", kWidth}});
  const std::vector<Tensor> all = gold_inputs(whole);
  const GoldOutput expected = collect_gold(whole, all, 1).at(0);
  for (int64_t step = 1; step < kSeq; ++step) {
    const Case c = cached("forward", {step, 1});
    std::vector<Tensor> inputs = gold_inputs(c);
    for (size_t t = 0; t < 5; ++t) {
      const Tensor& from = all[t == 0 ? 0 : 1 + (t - 1) % 2];
      const int64_t first = t == 1 || t == 2 ? 0 : step, n = inputs[t].shape[2];
      for (int64_t i = 0; i < inputs[t].count(); ++i) {
        const int64_t row = i / kWidth % n, head = i / kWidth / n;
        inputs[t].set(i, from.at((head * kSeq + first + row) * kWidth + i % kWidth));
      }
    }
    const GoldOutput o = collect_gold(c, inputs, 1).at(0);
    for (int64_t i = 0; i < kBatch * 4 * kWidth; ++i) {
      EXPECT_EQ(o.value[at(i)], expected.value[at((i / kWidth * kSeq + step) * kWidth + i % kWidth)]) << step;
    }
  }
}

// Padded cache entries may hold anything.
TEST(KvCacheAttention, WhatIsMaskedNeverLeaks) {
  constexpr Lengths n{5, 2};
  for (const std::string_view pass : {"forward", "backward"}) {
    const Case c = cached(pass, n, /*masked=*/true, DType::f32);
    // No mask, because with a mask some keys hold values that must not be read.
    Case open = c;
    open.optionals.clear();
    std::vector<Tensor> clean = gold_inputs(open), spoilt = gold_inputs(open);
    for (auto* inputs : {&clean, &spoilt}) {
      (*inputs)[5] = Tensor("key_padding_mask", DType::u8, {kBatch, 7});
      for (int64_t j = 0; j < kBatch * 7; ++j) (*inputs)[5].set(j, j == 0 || j == 3 || j == 6 || j == 9 ? 0 : 2);
    }
    const auto spoil = [&](size_t t, int64_t b, int64_t row) {
      for (int64_t head = 0; head < 2; ++head) {
        const int64_t first = ((b * 2 + head) * spoilt[t].shape[2] + row) * kWidth;
        for (int64_t d = 0; d < kWidth; ++d) spoilt[t].set(first + d, d % 2 == 0 ? kNan : HUGE_VAL);
      }
    };
    for (const size_t t : {size_t{1}, size_t{2}}) spoil(t, 0, 0), spoil(t, 0, 3), spoil(t, 1, 2);
    for (const size_t t : {size_t{3}, size_t{4}}) spoil(t, 0, 1);
    const std::vector<GoldOutput> expected = collect_gold(c, clean, 1), got = collect_gold(c, spoilt, 1);
    const std::vector<Tensor> native_expected = native(c, clean), native_got = native(c, spoilt);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(got[i].value, expected[i].value) << expected[i].name;
      for (int64_t e = 0; e < native_got[i].count(); ++e) {
        EXPECT_EQ(native_got[i].at(e), native_expected[i].at(e)) << expected[i].name << e;
      }
    }
  }
}

TEST(KvCacheAttention, AScaleOfZeroIsHonoured) {
  Case c = cached("forward", {2, 1});
  c.attrs[1] = 0;
  const std::vector<Tensor> inputs = gold_inputs(c);
  const double mean = (inputs[2].at(0) + inputs[2].at(kWidth) + inputs[4].at(0)) / 3;
  EXPECT_NEAR(collect_gold(c, inputs, 1).at(0).value[0], mean, 1e-15);
}

TEST(KvCacheAttention, SizesThatDoNotGoTogetherAreRefused) {
  const auto error = [](const Case& c) { return contract_test::error_of([&] { validate(c); }); };
  Case c = cached("forward", {6, 3});
  EXPECT_EQ(error(c), "no error");
  c.dims["new_seq"] = 4;
  EXPECT_EQ(error(c),
            "--new-seq: 4 new keys for 3 queries put the causal mask at a wrong offset; give as many as --q-seq; older "
            "keys belong to --cache-seq");
  c.dims["new_seq"] = 3, c.dims["q_heads"] = 3;
  EXPECT_NE(error(c).find("3 query heads are not a multiple of 2 key heads"), std::string::npos);
  c.dims["q_heads"] = 4, c.attrs[0] = 0.5;
  EXPECT_NE(error(c).find("--causal"), std::string::npos);
}

// A caller that does not validate must not get the answer to a different case.
TEST(KvCacheAttention, NativeRefusesNewKeysOfAnotherNumberThanQueries) {
  for (const char* pass : {"forward", "backward"}) {
    Case c = cached(pass, {6, 3}, false, DType::f32);
    c.dims["new_seq"] = 4;
    std::vector<Tensor> outputs = make_outputs(c);
    const auto device = open_cpu_device();
    const std::string path = native_plugin("kv_cache_attention");
    for (const Candidate& candidate : load_plugin(path)) {
      if (candidate.pass != pass) continue;
      const RunResult run = run_candidate(*device, candidate, c, gold_inputs(c), outputs, RunChecks{});
      EXPECT_EQ(run.status, RunStatus::failed);
      EXPECT_NE(run.message.find("4 new keys for 3 queries"), std::string::npos) << run.message;
    }
  }
}

}  // namespace
}  // namespace checkop::kv_cache_attention_test
