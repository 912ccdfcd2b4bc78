// SPDX-License-Identifier: Apache-2.0
// Presets: the shipped models, the format of a file of models, and the sizes that operators take from them.
#include <gtest/gtest.h>

#include <set>

#include "base/error.hpp"
#include "case/preset.hpp"
#include "support/contract_helper.hpp"
#include "support/source_tree.hpp"

namespace checkop::preset_test {
namespace {

using contract_test::error_of;

class Presets : public testing::Test {
  const InSourceTree here_;
};

using Pair = std::pair<int64_t, int64_t>;

std::string models_error(const std::string& models) {
  return error_of([&] {
    parse_models(JsonValue::parse(R"({"format": "check_operator/models-1", "models": )" + models + "}", "m.json"));
  });
}

std::vector<PresetSizes> shipped_sizes(std::string_view op, const std::vector<std::string>& presets) {
  const Operator& found = *find_operator(op);
  return sizes_of("--preset", found, parse_presets("--preset", presets), shipped_mappings(found), true);
}

/// The mappings of `op` in a case file with this "presets" section.
std::vector<PresetMapping> mappings(std::string_view op, const std::string& section) {
  return parse_mappings(*find_operator(op), JsonValue::parse(fmt::format(R"({{"presets": {}}})", section), "c.json"));
}

std::set<Pair> products_of(const std::string& preset) {
  std::set<Pair> found;
  for (const PresetSizes& sizes : shipped_sizes("matmul", {preset}))
    found.insert({sizes.dims.at("k_dim"), sizes.dims.at("n_dim")});
  return found;
}

TEST_F(Presets, ShippedModelsGoTogether) {
  EXPECT_EQ(shipped_models().size(), 17u);
  for (const Preset& preset : shipped_models()) {
    SCOPED_TRACE(preset.name);
    const auto& fields = preset.fields;
    EXPECT_TRUE(fields.contains("hidden") && fields.contains("vocab"));
    if (!fields.contains("head_dim")) continue;
    EXPECT_EQ(static_cast<int64_t>(fields.at("q_heads")) % static_cast<int64_t>(fields.at("kv_heads")), 0);
    // Models with QK-norm choose their head size; in the others, except gpt-oss, the heads make up the hidden size.
    if (!fields.contains("qk_norm") && !preset.name.starts_with("gpt-oss")) {
      EXPECT_EQ(fields.at("q_heads") * fields.at("head_dim"), fields.at("hidden"));
    }
    EXPECT_TRUE(fields.at("eps") == 1e-5 || fields.at("eps") == 1e-6);
    EXPECT_TRUE(preset.tied.has_value());
  }
}

TEST_F(Presets, ProjectionsAreTheModels) {
  EXPECT_EQ(products_of("qwen3-8b"),
            (std::set<Pair>{{4096, 6144}, {4096, 4096}, {4096, 24576}, {12288, 4096}, {4096, 151936}}));
  EXPECT_EQ(products_of("llama3-8b"),
            (std::set<Pair>{{4096, 6144}, {4096, 4096}, {4096, 28672}, {14336, 4096}, {4096, 128256}}));
  EXPECT_EQ(products_of("qwen3-30b-a3b"),
            (std::set<Pair>{{2048, 5120}, {4096, 2048}, {2048, 1536}, {768, 2048}, {2048, 128}, {2048, 151936}}));
  EXPECT_EQ(products_of("deepseek-v3"), (std::set<Pair>{{7168, 1536},
                                                        {1536, 24576},
                                                        {7168, 576},
                                                        {512, 32768},
                                                        {16384, 7168},
                                                        {7168, 4096},
                                                        {2048, 7168},
                                                        {7168, 36864},
                                                        {18432, 7168},
                                                        {7168, 256},
                                                        {7168, 129280}}));
  EXPECT_EQ(shipped_sizes("matmul", {"llama3-70b"}), shipped_sizes("det_gemm", {"llama3-70b"}));
}

TEST_F(Presets, NormsTakeHiddenSizeHeadSizeAndEps) {
  const auto sizes = shipped_sizes("rms_norm", {"qwen3-8b"});
  ASSERT_EQ(sizes.size(), 2u);
  EXPECT_EQ(sizes[0].dims.at("hidden"), 4096);
  EXPECT_EQ(sizes[1].dims.at("hidden"), 128);
  EXPECT_EQ(sizes[1].attrs.at("eps"), 1e-6);
  EXPECT_EQ(shipped_sizes("rms_norm", {"llama3-8b"}).front().attrs.at("eps"), 1e-5);
  EXPECT_EQ(shipped_sizes("rms_norm", {"deepseek-v3"}).size(), 3u);
}

TEST_F(Presets, RopeTakesHeadsHeadSizeAndTheta) {
  const auto sizes = shipped_sizes("rope", {"llama3.2-3b"});
  ASSERT_EQ(sizes.size(), 2u);
  EXPECT_EQ(sizes[0].dims, (std::map<std::string, int64_t, std::less<>>{{"heads", 24}, {"head_dim", 128}}));
  EXPECT_EQ(sizes[1].dims.at("heads"), 8);
  EXPECT_EQ(sizes[1].attrs.at("theta"), 500000);
  EXPECT_EQ(shipped_sizes("rope", {"deepseek-v3"}).front().dims.at("head_dim"), 64);
}

TEST_F(Presets, DimensionsNamedLikeFieldsNeedNoMapping) {
  EXPECT_EQ(shipped_sizes("attention", {"gpt-oss-20b"}).front().dims,
            (std::map<std::string, int64_t, std::less<>>{{"q_heads", 64}, {"kv_heads", 8}, {"head_dim", 64}}));
  for (const char* op : {"attention", "varlen_attention"}) {
    const auto latent = shipped_sizes(op, {"deepseek-v3"});
    ASSERT_EQ(latent.size(), 1u) << op;
    EXPECT_EQ(latent.front().dims, (std::map<std::string, int64_t, std::less<>>{
                                       {"q_heads", 128}, {"kv_heads", 128}, {"head_dim", 192}, {"v_dim", 128}}));
  }
  EXPECT_EQ(shipped_sizes("logp", {"stress-v262k"}).front().dims,
            (std::map<std::string, int64_t, std::less<>>{{"vocab", 262144}}));
  EXPECT_TRUE(shipped_sizes("grpo_loss", {"qwen3-8b"}).front().attrs.empty()) << "its eps is not the norm's";
}

TEST_F(Presets, GatedUnitsTakeTheInnerSize) {
  for (const char* op : {"swiglu", "silu"}) {
    EXPECT_EQ(shipped_sizes(op, {"qwen3-8b"}).front().dims.at("hidden"), 12288) << op;
    EXPECT_EQ(shipped_sizes(op, {"deepseek-v3"}).size(), 2u) << op;
  }
}

TEST_F(Presets, WhatPresetsHaveInCommonIsThereOnce) {
  EXPECT_EQ(shipped_sizes("logp", {"qwen3-4b", "qwen3-8b", "qwen2.5-7b"}).size(), 2u);
  EXPECT_EQ(shipped_sizes("logp", {"all"}).size(), 7u);
}

TEST_F(Presets, AModelThatLacksAFieldIsLeftOutUnlessRequired) {
  const Operator& attention = *find_operator("kv_cache_attention");
  const auto deepseek = parse_presets("", {"deepseek-v3"});
  EXPECT_TRUE(sizes_of("--preset", attention, deepseek, shipped_mappings(attention), false).empty());
  EXPECT_EQ(error_of([&] { sizes_of("--preset", attention, deepseek, shipped_mappings(attention), true); }),
            "--preset: deepseek-v3 lacks fields that the sizes of kv_cache_attention need; choose another preset, or "
            "leave the "
            "operator out");
}

TEST_F(Presets, AnUnknownPresetIsAnsweredWithTheNearest) {
  const std::string message = error_of([] { parse_presets("--preset", {"qwen3-8"}); });
  EXPECT_EQ(message.rfind("--preset: unknown preset 'qwen3-8'; did you mean 'qwen3-8b'? known: deepseek-v3, ", 0), 0u)
      << message;
}

TEST_F(Presets, FormulasAddProducts) {
  const Preset preset{"p", {{"hidden", 10}, {"q_heads", 3}, {"kv_heads", 2}, {"head_dim", 4}}, {}};
  const Operator& matmul = *find_operator("matmul");
  const auto list =
      mappings("matmul", R"([{"k_dim": " hidden", "n_dim": "q_heads*head_dim+2 * kv_heads*head_dim + 1"}])");
  const auto sizes = sizes_of("", matmul, {preset}, list, true);
  EXPECT_EQ(sizes.front().dims.at("k_dim"), 10);
  EXPECT_EQ(sizes.front().dims.at("n_dim"), 3 * 4 + 2 * 2 * 4 + 1);
}

TEST_F(Presets, MistakesInMappingsNameFileAndPath) {
  const std::pair<const char*, const char*> mistakes[] = {
      {"[]", "c.json: presets: expected at least one mapping"},
      {"7", "c.json: presets: expected an array, got 7"},
      {R"("logpp")", "c.json: presets: expected a list of mappings, or another operator that has one"},
      {R"("matmul")", "c.json: presets: expected a list of mappings, or another operator that has one"},
      {R"("logp")", "key 'presets' is missing"},
      {R"([{"k": "hidden"}])", "c.json: presets[0]: unknown key 'k'"},
      {R"([{"k_dim": 7}])", "c.json: presets[0].k_dim: expected a sentence, got 7"},
      {R"([{"k_dim": "hiden"}])", "c.json: presets[0].k_dim: unknown field 'hiden'; did you mean 'hidden'?"},
      {R"([{"k_dim": "2*"}])", "c.json: presets[0].k_dim: expected sums of products of digits and fields, got \"2*\""},
      {R"([{"k_dim": "2**hidden"}])", "expected sums of products"},
      {R"([{"k_dim": "eps"}])", "c.json: presets[0].k_dim: unknown field 'eps'; fields: hidden, inter"},
      {R"([{"k_dim": "hidden-1"}])", "unknown field 'hidden-1'"},
      {R"([{"k_dim": "99999999999"}])", "unknown field '99999999999'"},
  };
  for (const auto& [section, part] : mistakes) {
    const std::string message = error_of([&, text = section] { mappings("matmul", text); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST_F(Presets, AnAttributeIsOneField) {
  const auto attribute = [](const char* formula) {
    return error_of([&] {
      parse_mappings(*find_operator("rope"),
                     JsonValue::parse(fmt::format(R"({{"presets": [{{"theta": "{}"}}]}})", formula), "c.json"));
    });
  };
  EXPECT_EQ(attribute("theta"), "no error");
  EXPECT_EQ(attribute("2*theta"), "c.json: presets[0].theta: expected one field, got \"2*theta\"");
  EXPECT_EQ(attribute("7"), "c.json: presets[0].theta: expected one field, got \"7\"");
}

TEST_F(Presets, MistakesInModelsNameFileAndPath) {
  const std::pair<const char*, const char*> mistakes[] = {
      {R"({"m": {"hiden": 8, "source": ["s"]}})", "m.json: models.m: unknown key 'hiden'; did you mean 'hidden'?"},
      {R"({"m": {"hidden": 8}})", "m.json: models.m: key 'source' is missing"},
      {R"({"m": {"hidden": 8, "source": []}})",
       "m.json: models.m.source: expected at least one source, got an empty array; say which public file has these "
       "numbers"},
      {R"({"m": {"hidden": 8, "source": [1]}})", "m.json: models.m.source[0]: expected a sentence, got 1"},
      {R"({"m": {"hidden": 0, "source": ["s"]}})", "m.json: models.m.hidden: expected an integer >= 1"},
      {R"({"m": {"hidden": 1.5, "source": ["s"]}})", "m.json: models.m.hidden: expected an integer >= 1"},
      {R"({"m": {"vocab": 9223372036854775807, "source": ["s"]}})", "m.json: models.m.vocab: expected an integer"},
      {R"({"m": {"eps": 0, "source": ["s"]}})", "m.json: models.m.eps: expected a number > 0, got 0"},
      {R"({"m": {"eps": "1e-5", "source": ["s"]}})", "m.json: models.m.eps: expected a finite number"},
      {R"({"m": {"hidden": 8, "tied": 1, "source": ["s"]}})", "m.json: models.m.tied: expected true or false"},
      {R"({"m": {"hidden": 8, "why": "", "source": ["s"]}})", "m.json: models.m.why: expected a sentence"},
      {R"({"m": {"tied": true, "source": ["s"]}})", "m.json: models.m: expected at least one of hidden"},
      {R"({"all": {"hidden": 8, "source": ["s"]}})", "m.json: models: 'all' can't be the name of a preset"},
      {R"({"a,b": {"hidden": 8, "source": ["s"]}})", "m.json: models: 'a,b' can't be the name of a preset"},
      {R"([])", "m.json: models: expected an object"},
      {R"({"m": {"hidden": 8, "hidden": 8, "source": ["s"]}})", "m.json: models.m: key 'hidden' appears twice"},
  };
  for (const auto& [models, part] : mistakes) {
    const std::string message = models_error(models);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_EQ(models_error(R"({"m": {"hidden": 8, "source": ["s"]}})"), "no error");
}

}  // namespace
}  // namespace checkop::preset_test
