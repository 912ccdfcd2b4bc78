// SPDX-License-Identifier: Apache-2.0
// Saved cases: the layout, and that a case is read back unchanged.
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "case/sampling.hpp"
#include "run/runner.hpp"
#include "session/saved_case.hpp"
#include "support/contract_helper.hpp"
#include "support/gold_helper.hpp"
#include "tensor/safetensors.hpp"

namespace checkop::saved_case_test {
namespace {

Case sample(bool bias) {
  Case c = gold_case("linear_logp", "backward", DType::bf16, {{"batch", 2}, {"seq", 3}, {"hidden", 8}, {"vocab", 11}});
  if (bias) c.optionals = {"bias"};
  c.seed = 99;
  return c;
}

TEST(SavedCase, HoldsInputsOutputsGoldAndMagnitude) {
  const Case c = sample(true);
  const std::string path =
      save_case(testing::TempDir() + "saved", c, "mine", "sm90", gold_inputs(c), make_outputs(c), 2);
  EXPECT_NE(path.find("mine-backward-linear_logp-bf16-2x3x8x11+bias#99.safetensors"), std::string::npos);
  const SafetensorsFile file = read_safetensors(path);
  EXPECT_EQ(file.tensors.size(), 5u + 3u * 3u);
  EXPECT_EQ(file.metadata.at("op"), "linear_logp");
  EXPECT_EQ(file.metadata.at("seed"), "99");
  const auto gold = collect_gold(c, gold_inputs(c), 1);
  for (size_t i = 0; i < 3; ++i) {
    const Tensor& value = *file.find("gold/" + gold[i].name);
    const Tensor& magnitude = *file.find("magnitude/" + gold[i].name);
    EXPECT_EQ(value.dtype, DType::f64);
    for (size_t k = 0; k < gold[i].value.size(); ++k) {
      EXPECT_EQ(value.at(static_cast<int64_t>(k)), gold[i].value[k]);
      EXPECT_EQ(magnitude.at(static_cast<int64_t>(k)), gold[i].magnitude[k]);
    }
  }
}

TEST(SavedCase, SampledRowsAreKeptAndReadBack) {
  const Case c = sample(true);
  const auto inputs = gold_inputs(c);
  const auto rows = sample_rows(c, inputs, 4);
  const std::string path =
      save_case(testing::TempDir() + "saved_rows", c, "mine", "", inputs, make_outputs(c), 2, rows);
  const SafetensorsFile file = read_safetensors(path);
  const auto gold = collect_gold(c, inputs, 1);
  for (size_t i = 0; i < 3; ++i) {
    const Tensor& value = *file.find("gold/" + gold[i].name);
    ASSERT_EQ(value.shape, (Shape{4, gold[i].columns}));
    for (int64_t r = 0; r < 4; ++r) {
      const auto at = static_cast<size_t>(rows[i].at(r) * gold[i].columns);
      EXPECT_NEAR(value.at(r * gold[i].columns), gold[i].value[at], 1e-14);
    }
  }
  const SavedCase saved = load_case(path);
  ASSERT_EQ(saved.rows.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(saved.rows[i].chosen, rows[i].chosen);
}

TEST(SavedCase, IsReadBackAsItWas) {
  for (const bool bias : {false, true}) {
    const Case c = sample(bias);
    const auto inputs = gold_inputs(c);
    const SavedCase saved =
        load_case(save_case(testing::TempDir() + "saved_again", c, "mine", "sm90", inputs, make_outputs(c), 1));
    EXPECT_EQ(case_name(saved.c), case_name(c));
    EXPECT_EQ(saved.c.pass, c.pass);
    EXPECT_EQ(saved.candidate, "mine");
    EXPECT_EQ(saved.arch_key, "sm90");
    EXPECT_EQ(saved.c.seed, 99u);
    EXPECT_EQ(saved.c.grad_seed, c.grad_seed);
    ASSERT_EQ(saved.inputs.size(), inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_EQ(saved.inputs[i].name, inputs[i].name);
      for (int64_t k = 0; k < (inputs[i].name.empty() ? 0 : inputs[i].count()); ++k) {
        EXPECT_EQ(saved.inputs[i].at(k), inputs[i].at(k));
      }
    }
    EXPECT_EQ(saved.outputs[2].name.empty(), !bias);
  }
}

TEST(SavedCase, TensorsThatDoNotFitEachOtherAreRefused) {
  const std::string path = testing::TempDir() + "misfit.safetensors";
  const auto error = [&](const std::vector<SafetensorsEntry>& entries, const std::map<std::string, std::string>& meta) {
    { const SafetensorsWriter file(path, entries, meta); }
    return contract_test::error_of([&] { load_case(path); });
  };
  const std::map<std::string, std::string> meta{
      {"op", "logp"}, {"pass", "forward"}, {"candidate", "x"}, {"attrs", "{}"}, {"seed", "1"}};
  EXPECT_NE(error({}, {}).find("no 'op'"), std::string::npos);
  EXPECT_NE(error({}, meta).find("input/logits"), std::string::npos);
  const auto with = [&](const char* key, const char* value) {
    auto changed = meta;
    changed[key] = value;
    return error({}, changed);
  };
  for (const char* seed : {"", "abc", "-1", "1x", "18446744073709551616"}) {
    EXPECT_NE(with("seed", seed).find("misfit.safetensors: seed: expected an integer"), std::string::npos) << seed;
    EXPECT_NE(with("grad_seed", seed).find("misfit.safetensors: grad_seed: expected an integer"), std::string::npos);
  }
  EXPECT_NE(with("attrs", R"({"beta": 1})").find("misfit.safetensors: attrs: unknown key 'beta'"), std::string::npos);
  EXPECT_NE(error({{"input/logits", DType::f32, {1, 2, 3}},
                   {"input/token_ids", DType::i64, {1, 5}},
                   {"output/logp", DType::f32, {1, 2}}},
                  meta)
                .find("seq"),
            std::string::npos);
  EXPECT_NE(error({{"input/logits", DType::f32, {1, 2, 3}},
                   {"input/token_ids", DType::i64, {1, 2}},
                   {"output/logp", DType::bf16, {1, 2}}},
                  meta)
                .find("expected fp32"),
            std::string::npos);
  EXPECT_NE(error({{"input/logits", DType::f32, {2, 3}}}, meta).find("expected [batch, seq, vocab]"),
            std::string::npos);
}

}  // namespace
}  // namespace checkop::saved_case_test
