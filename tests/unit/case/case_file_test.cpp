// SPDX-License-Identifier: Apache-2.0
// Case files: valid content, and that every error names file and path.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "case/sweep.hpp"
#include "support/contract_helper.hpp"
#include "support/source_tree.hpp"

namespace checkop::case_file_test {
namespace {

using contract_test::error_of;

std::string write(const std::string& cases) {
  // Tests run in parallel.
  const std::string folder = testing::TempDir() + "case_file_test_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/cases_under_test.json";
  std::ofstream(path) << R"({"format": "check_operator/cases-1", "cases": )" << cases << "}";
  return path;
}

std::string error_in(const std::string& cases) {
  return error_of([&] { load_cases(write(cases), ""); });
}

TEST(CaseFile, EntriesExpandLikeFlags) {
  const auto cases = load_cases(
      write(
          R"([{"op": "linear_logp", "pass": "forward", "dtype": ["fp32", "bf16"], "dims": {"vocab": [5, 9], "seq": "1:4:x2", "hidden": 8},
     "with": ["none", "bias"], "input_mode": "peaked", "seed": 7}])"),
      "");
  EXPECT_EQ(cases.size(), 2u * 2u * 3u * 2u);
  EXPECT_EQ(case_name(cases.front()), "linear_logp-fp32-2x1x8x5~peaked#7");
  EXPECT_EQ(cases.front().seed, 7u);
}

TEST(CaseFile, AllOperatorsAndListsOfThemWork) {
  EXPECT_EQ(load_cases(write(R"([{"op": "all", "pass": "forward", "dtype": "fp32"}])"), "").size(), operators().size());
  EXPECT_EQ(load_cases(write(R"([{"op": ["logp", "matmul"], "pass": "forward", "dtype": "fp32"}])"), "").size(), 2u);
}

TEST(CaseFile, SuitesSelect) {
  const std::string path = write(
      R"([{"op": "logp", "pass": "forward", "dtype": "fp32", "suites": ["smoke"]}, {"op": "logp", "pass": "forward", "dtype": "bf16", "suites": ["ci"]},
                             {"op": "logp", "pass": "forward", "dtype": "fp16"}])");
  EXPECT_EQ(load_cases(path, "").size(), 3u);
  EXPECT_EQ(load_cases(path, "smoke").size(), 1u);
}

TEST(CaseFile, MistakesNameFileAndPath) {
  const std::pair<const char*, const char*> mistakes[] = {
      {R"([{"op": "lgp"}])", "cases[0].op: unknown operator 'lgp'"},
      {R"([{}])", "cases[0]"},
      {R"([{"op": "linear_logp", "with": ["bais"]}])", "no selected operator has an optional input 'bais'"},
      {R"([{"op": "logp", "dims": {"vocab": -4}}])", "cases[0].dims.vocab: expected an integer"},
      {R"([{"op": "logp", "ignored_every": -1}])", "cases[0].ignored_every: expected an integer"},
      {R"([{"op": "logp", "ignored_run": 0}])", "cases[0].ignored_run: expected an integer"},
      {R"([{"op": "logp", "dims": {"vocb": 4}}])", "vocb"},
      {R"([{"op": "logp", "dims": {"vocab": "4:1"}}])", "cases[0].dims.vocab"},
      {R"([{"op": "logp"}, {"op": "logp", "dtype": "int8"}])", "cases[1].dtype"},
      {R"([{"op": "logp", "size": 4}])", "size"},
      {R"([{"op": "logp", "input_mode": "zeros"}])", "cases[0].input_mode"},
      {R"([{"op": "logp", "seed": -1}])", "cases[0].seed"},
      {R"({"op": "logp"})", "cases: expected an array"},
      {R"([{"op": "logp", "dims": {"vocab": []}}])", "cases[0].dims.vocab"},
  };
  for (const auto& [text, part] : mistakes) {
    const std::string message = error_in(text);
    EXPECT_NE(message.find("cases_under_test.json"), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(CaseFile, MissingFilesAndEmptyFoldersAreErrors) {
  EXPECT_NE(error_of([] { load_cases("missing.json", ""); }).find("missing.json: cannot be opened"), std::string::npos);
  const std::string folder = testing::TempDir() + "no_cases_here";
  std::filesystem::create_directories(folder);
  EXPECT_NE(error_of([&] { load_cases(folder, ""); }).find("holds no *.json"), std::string::npos);
}

TEST(CaseFile, RowsMayBeNoneAndIgnored) {
  const auto cases = load_cases(
      write(R"([{"op": "logp", "pass": "forward", "dtype": "fp32", "dims": {"batch": [0, 2]}, "ignored_every": 3}])"),
      "");
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(case_name(cases[0]), "logp-fp32-0x16x257~ignored3");
  EXPECT_NE(
      error_in(R"([{"op": "logp", "dims": {"vocab": 0}}])").find("cases[0]: --vocab: expected an integer >= 1, got 0"),
      std::string::npos);
}

/// Whether a shipped case of the pass in the smoke suite fits `wanted`.
template <class Wanted>
bool smoke_has(const Operator& op, const Pass& pass, Wanted wanted) {
  static const std::vector<Case> cases = load_cases(CHECKOP_SOURCE_DIR "/cases", "smoke");
  return std::any_of(cases.begin(), cases.end(),
                     [&](const Case& c) { return c.op == &op && c.pass == &pass && wanted(c); });
}

TEST(CaseFile, TheSmokeSuiteHasEveryOperatorsEdges) {
  for (const Operator* op : operators()) {
    for (const Pass& pass : op->passes) {
      const std::string name = std::string(op->name) + "/" + std::string(pass.name);
      const auto all_rows = [](const Case& c) {
        for (const char* dim : {"tokens", "seqs", "numel"})
          if (c.dims.contains(dim)) return c.dims.at(dim);
        if (c.dims.contains("capacity")) return c.dims.at("experts");
        int64_t rows = c.dims.at(c.dims.contains("batch") ? "batch" : c.dims.contains("rows") ? "rows" : "n_dim");
        if (c.dims.contains("seq") && c.op->name != "rope") rows *= c.dims.at("seq");
        return rows;
      };
      EXPECT_EQ(smoke_has(*op, pass, [&](const Case& c) { return all_rows(c) == 0; }),
                !op->row_dims.empty() || !op->may_be_empty.empty())
          << name;
      EXPECT_TRUE(smoke_has(*op, pass, [&](const Case& c) { return all_rows(c) > 65536; })) << name;
      EXPECT_TRUE(smoke_has(*op, pass, [](const Case& c) { return c.input_mode == InputMode::integer; }) ||
                  op->name.ends_with("linear_logp"))
          << name;
      for (const std::string_view optional : optionals_of(pass)) {
        for (const bool with : {false, true}) {
          EXPECT_TRUE(smoke_has(*op, pass, [&](const Case& c) { return c.optionals.contains(optional) == with; }))
              << name << " " << optional << " " << with;
        }
      }
      const TensorSpec& first = find_pass(*op, "forward")->inputs[0];
      if (first.fill == Fill::logits) {
        EXPECT_TRUE(smoke_has(*op, pass, [](const Case& c) { return c.input_mode == InputMode::extreme; })) << name;
        for (const int64_t columns : {1, 31, 32, 33, 127, 128, 129, 4097}) {
          EXPECT_TRUE(smoke_has(*op, pass, [&](const Case& c) { return extent_of(c, first.fan_in) == columns; }))
              << name << " " << first.fan_in << " " << columns;
        }
      }
    }
  }
}

TEST(CaseFile, PresetsGiveWhatTheEntryDoesNot) {
  const InSourceTree here;
  const auto cases = load_cases(
      write(
          R"([{"op": "linear_logp", "preset": ["qwen3-8b", "qwen3-0.6b"], "pass": "forward", "dtype": "fp32", "dims": {"vocab": 300}},
                {"op": "all", "preset": "stress-v262k", "pass": "forward", "dtype": "fp32"}])"),
      "");
  std::set<std::string> names;
  for (const Case& c : cases) names.insert(case_name(c));
  EXPECT_TRUE(names.contains("linear_logp-fp32-2x16x4096x300"));
  EXPECT_TRUE(names.contains("linear_logp-fp32-2x16x1024x300"));
  EXPECT_TRUE(names.contains("logp-fp32-2x16x262144"));
  EXPECT_TRUE(std::none_of(cases.begin(), cases.end(), [](const Case& c) { return c.op->name == "attention"; }));
}

TEST(CaseFile, MistakesWithPresetsNameFileAndPath) {
  const InSourceTree here;
  EXPECT_NE(error_in(R"([{"op": "logp", "preset": "qwen3-8"}])").find("cases[0].preset: unknown preset 'qwen3-8'; did"),
            std::string::npos);
  EXPECT_NE(error_in(R"([{"op": "attention", "preset": "stress-v262k"}])")
                .find("cases[0].preset: stress-v262k lacks fields that the sizes of attention need"),
            std::string::npos);
  EXPECT_NE(error_in(R"([{"op": "logp", "preset": []}])").find("cases[0].preset: expected at least one name"),
            std::string::npos);
}

TEST(CaseFile, SizesThatDoNotGoTogetherNameTheEntry) {
  EXPECT_NE(error_in(R"([{"op": "logp"}, {"op": "rope", "dims": {"head_dim": 3}}])")
                .find("cases_under_test.json: cases[1]: --head-dim"),
            std::string::npos);
}

TEST(CaseFile, AnOperatorsOwnFileSaysWhatItsSizesAre) {
  const InSourceTree here;
  const std::string path = testing::TempDir() + "logp.json";
  const auto write_logp = [&](const char* presets) {
    std::ofstream(path) << R"({"format": "check_operator/cases-1", "presets": )" << presets
                        << R"(, "cases": [{"op": "logp", "preset": "qwen3-8b", "pass": "forward", "dtype": "fp32"}]})";
  };
  write_logp(R"([{"vocab": "2*experts"}, {"vocab": "2*q_heads"}])");
  const auto cases = load_cases(path, "");
  ASSERT_EQ(cases.size(), 1u);
  EXPECT_EQ(case_name(cases.front()), "logp-fp32-2x16x64");
  write_logp(R"([{"vocab": "head"}])");
  EXPECT_NE(error_of([&] { load_cases(path, "other"); }).find("logp.json: presets[0].vocab: unknown field 'head'"),
            std::string::npos)
      << "it is read although no case of the suite needs it";
  const std::string elsewhere = testing::TempDir() + "cases_of_mine.json";
  std::filesystem::copy_file(path, elsewhere, std::filesystem::copy_options::overwrite_existing);
  EXPECT_NE(error_of([&] { load_cases(elsewhere, ""); }).find("presets: the name of the file is not an operator's"),
            std::string::npos);
}

// --- the shipped files

std::vector<Case> shipped(std::string_view suite) {
  const InSourceTree here;
  return load_cases("cases", suite);
}

TEST(CaseFile, SmokeHasEveryOperatorPassAndDtypeInTinySizes) {
  std::set<std::string> seen;
  for (const Case& c : shipped("smoke")) {
    seen.insert(fmt::format("{} {} {}", c.op->name, c.pass->name, info(c.dtype).name));
    EXPECT_LE(tensor_bytes(c), int64_t{32} << 20) << case_name(c);
  }
  for (const Operator* op : operators()) {
    for (const Pass& pass : op->passes) {
      for (const char* dtype : {"fp32", "bf16", "fp16"}) {
        EXPECT_TRUE(seen.contains(fmt::format("{} {} {}", op->name, pass.name, dtype)))
            << op->name << " " << pass.name << " " << dtype;
      }
    }
  }
}

/// Whether `c` has a preset's sizes and attributes.
bool has_sizes(const Case& c, const PresetSizes& sizes) {
  const auto attr_is = [&](const auto& attr) {
    for (size_t i = 0; i < c.attrs.size(); ++i) {
      if (c.op->attrs[i].name == attr.first) return c.attrs[i] == attr.second;
    }
    return false;
  };
  return std::all_of(sizes.dims.begin(), sizes.dims.end(),
                     [&](const auto& dim) { return c.dims.at(dim.first) == dim.second; }) &&
         std::all_of(sizes.attrs.begin(), sizes.attrs.end(), attr_is);
}

std::string describe(const PresetSizes& sizes) {
  std::string text;
  for (const auto& [name, size] : sizes.dims) text += fmt::format("{}={} ", name, size);
  for (const auto& [name, value] : sizes.attrs) text += fmt::format("{}={} ", name, value);
  return text;
}

TEST(CaseFile, NightlyHasEveryPresetForEveryOperatorAndPassAtTheTokensOfARun) {
  const InSourceTree here;
  constexpr int64_t kTokens = 2048;
  const auto nightly = shipped("nightly");
  const auto tokens = [](const Case& c) {
    int64_t n = 1;
    bool has_tokens = false;
    for (const char* dim : {"batch", "seq", "q_seq", "tokens", "tokens_q", "rows", "numel"}) {
      if (!c.dims.contains(dim)) continue;
      n *= c.dims.at(dim), has_tokens = true;
    }
    return has_tokens ? n : kTokens;  // a weight has none
  };
  for (const Operator* op : operators()) {
    const auto wanted = sizes_of("", *op, shipped_models(), shipped_mappings(*op), false);
    for (const Pass& pass : op->passes) {
      const auto covers = [&](const Case& c, const PresetSizes& sizes) {
        return c.op == op && c.pass == &pass && tokens(c) >= kTokens && has_sizes(c, sizes);
      };
      for (const PresetSizes& sizes : wanted) {
        EXPECT_TRUE(std::any_of(nightly.begin(), nightly.end(), [&](const Case& c) { return covers(c, sizes); }))
            << op->name << " " << pass.name << " " << describe(sizes);
      }
    }
  }
}

TEST(CaseFile, NightlyFitsOneDevice) {
  constexpr int64_t kMost = 100'000'000'000;
  for (const Case& c : shipped("nightly")) EXPECT_LE(tensor_bytes(c), kMost) << case_name(c);
}

TEST(CaseFile, LargeHasMoreElementsThanAnInt32Counts) {
  const auto nightly = shipped("nightly");
  std::set<std::string> seen;
  for (const Case& c : shipped("large")) {
    // Of a tensor, or of logits that no tensor holds.
    const auto vocab = c.dims.find("vocab");
    int64_t most = vocab == c.dims.end() ? 0 : c.dims.at("batch") * c.dims.at("seq") * vocab->second;
    for (const OutputSpec& spec : c.pass->outputs)
      if (is_present(c, spec.tensor)) most = std::max(most, element_count(shape_of(c, spec.tensor)));
    EXPECT_GT(most, int64_t{1} << 31) << case_name(c);
    EXPECT_TRUE(std::any_of(nightly.begin(), nightly.end(), [&](const Case& n) {
      return case_name(n) == case_name(c) && n.pass == c.pass;
    })) << case_name(c);
    seen.insert(fmt::format("{} {}", c.op->name, c.pass->name));
  }
  for (const char* op : {"logp", "linear_logp", "ratio_kl", "grpo_loss", "lm_head"}) {
    for (const Pass& pass : find_operator(op)->passes) {
      EXPECT_TRUE(seen.contains(fmt::format("{} {}", op, pass.name))) << op << " " << pass.name;
    }
  }
}

TEST(CaseFile, CiHasASizeOfOnePresetForEveryOperator) {
  const InSourceTree here;
  const auto ci = shipped("ci");
  for (const Case& c : ci) EXPECT_LE(tensor_bytes(c), int64_t{4} << 30) << case_name(c);
  for (const Operator* op : operators()) {
    const auto sizes = sizes_of("", *op, parse_presets("", {"qwen3-8b"}), shipped_mappings(*op), false);
    const auto has_one = [&](const Case& c) {
      return c.op == op && std::any_of(sizes.begin(), sizes.end(), [&](const PresetSizes& preset) {
               return std::any_of(preset.dims.begin(), preset.dims.end(),
                                  [&](const auto& dim) { return c.dims.at(dim.first) == dim.second; });
             });
    };
    EXPECT_TRUE(sizes.empty() || std::any_of(ci.begin(), ci.end(), has_one)) << op->name;
  }
}

}  // namespace
}  // namespace checkop::case_file_test
