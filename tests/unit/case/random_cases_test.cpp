// SPDX-License-Identifier: Apache-2.0
// Cases of random sizes, drawn from a seed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.hpp"
#include "case/random_cases.hpp"
#include "support/contract_helper.hpp"

namespace checkop::random_cases_test {
namespace {

Sweep all_of(const Operator& op) {
  Sweep sweep;
  sweep.op = &op;
  sweep.passes = parse_passes("", op, {"all"});
  sweep.dtypes = parse_dtypes("", {"all"});
  sweep.optionals = parse_optionals("", op, {&op}, {"none"});
  return sweep;
}

std::vector<Case> drawn(const Sweep& sweep, int64_t count, uint64_t seed) {
  std::vector<Case> cases;
  draw_cases(sweep, count, seed, cases);
  return cases;
}

std::vector<std::string> flags_of(const std::vector<Case>& cases) {
  std::vector<std::string> flags;
  for (const Case& c : cases) flags.push_back(fmt::format("{} {}", c.pass->name, case_flags(c)));
  return flags;
}

TEST(RandomCases, AreThoseOfTheirSeed) {
  const Sweep sweep = all_of(*find_operator("det_gemm"));
  EXPECT_EQ(flags_of(drawn(sweep, 50, 7)), flags_of(drawn(sweep, 50, 7)));
  EXPECT_NE(flags_of(drawn(sweep, 50, 7)), flags_of(drawn(sweep, 50, 8)));
  const std::vector<Case> more = drawn(sweep, 60, 7);
  EXPECT_EQ(flags_of({more.begin(), more.begin() + 50}), flags_of(drawn(sweep, 50, 7)));
  // The same on every machine: a report names the seed, not the sizes.
  EXPECT_EQ(case_name(drawn(sweep, 1, 7).front()), "det_gemm-fp32-76x4x1x1#854215g666108515");
}

TEST(RandomCases, EveryOperatorHasSome) {
  for (const Operator* op : operators()) {
    for (const Case& c : drawn(all_of(*op), 40, 1)) {
      EXPECT_NO_THROW(validate(c)) << case_name(c);
      EXPECT_LE(tensor_bytes(c), int64_t{64} << 20) << case_name(c);
      int64_t spanned = 1;
      for (const auto& [dim, size] : c.dims) spanned *= std::max<int64_t>(1, size);
      EXPECT_LE(spanned, kMostSpanned) << case_name(c);
    }
  }
}

TEST(RandomCases, SizesAreSmallAndLargeAndAboutTiles) {
  std::set<std::string_view> passes;
  std::set<DType> dtypes;
  std::set<uint64_t> seeds;
  int64_t ones = 0, large = 0, whole = 0, below = 0, above = 0;
  for (const Case& c : drawn(all_of(*find_operator("matmul")), 1000, 3)) {
    passes.insert(c.pass->name), dtypes.insert(c.dtype), seeds.insert(c.seed);
    const int64_t k = c.dims.at("k_dim");
    ones += k == 1 ? 1 : 0, large += k > 1000 ? 1 : 0;
    if (k < 63) continue;
    whole += k % 64 == 0 ? 1 : 0, below += k % 64 == 63 ? 1 : 0, above += k % 64 == 1 ? 1 : 0;
  }
  EXPECT_EQ(passes.size(), 2u);
  EXPECT_EQ(dtypes.size(), 3u);
  EXPECT_EQ(seeds.size(), 1000u);
  for (const int64_t count : {ones, large, whole, below, above}) EXPECT_GT(count, 20);
}

TEST(RandomCases, SizesThatAreGivenStay) {
  Sweep sweep = all_of(*find_operator("logp"));
  sweep.dims = {{"vocab", {31, 33}}};
  std::set<int64_t> vocab, seq;
  for (const Case& c : drawn(sweep, 50, 1)) vocab.insert(c.dims.at("vocab")), seq.insert(c.dims.at("seq"));
  EXPECT_EQ(vocab, (std::set<int64_t>{31, 33}));
  EXPECT_GT(seq.size(), 10u);
}

TEST(RandomCases, ValuesOftenHaveTheSizeOfKeysAndOftenNot) {
  int64_t given = 0, usual = 0;
  for (const Case& c : drawn(all_of(*find_operator("attention")), 100, 1)) ++(c.dims.contains("v_dim") ? given : usual);
  EXPECT_GT(given, 20);
  EXPECT_GT(usual, 20);
}

TEST(RandomCases, WhatNoDrawCanMendIsAnError) {
  Sweep sweep = all_of(*find_operator("logp"));
  sweep.dims = {{"vocab", {kMostSpanned + 1}}};
  EXPECT_EQ(contract_test::error_of([&] { drawn(sweep, 1, 1); }),
            "--random-cases: the given sizes are too large for random cases; give fewer or smaller ones");
  sweep.dims = {{"vocab", {0}}};
  EXPECT_NE(contract_test::error_of([&] { drawn(sweep, 1, 1); }).find("vocab"), std::string::npos);
}

/// `count` cases of an operator with the sizes of models.
std::vector<Case> of_models(int64_t count, uint64_t seed, std::string_view op = "det_gemm") {
  Sweep sweep = all_of(*find_operator(op));
  sweep.presets = sizes_of("--preset", *sweep.op, shipped_models(), shipped_mappings(*sweep.op), true);
  std::vector<Case> cases;
  draw_model_cases(sweep, count, seed, cases);
  return cases;
}

TEST(RandomCases, OfModelsAreThoseOfTheirSeed) {
  EXPECT_EQ(flags_of(of_models(20, 7)), flags_of(of_models(20, 7)));
  EXPECT_NE(flags_of(of_models(20, 7)), flags_of(of_models(20, 8)));
}

TEST(RandomCases, OfModelsHaveTheirSizesOrSizesNearThem) {
  std::set<std::pair<int64_t, int64_t>> known;
  const Operator& op = *find_operator("det_gemm");
  for (const PresetSizes& preset : sizes_of("--preset", op, shipped_models(), shipped_mappings(op), true))
    known.emplace(preset.dims.at("k_dim"), preset.dims.at("n_dim"));
  int64_t of_a_model = 0, changed = 0, few_rows = 0, many_rows = 0;
  for (const Case& c : of_models(400, 1)) {
    EXPECT_NO_THROW(validate(c)) << case_name(c);
    EXPECT_LE(tensor_bytes(c), kMostModelBytes) << case_name(c);
    const int64_t k = c.dims.at("k_dim"), n = c.dims.at("n_dim"), rows = c.dims.at("seq");
    EXPECT_EQ(c.dims.at("batch"), 1);
    EXPECT_GE(rows, 1);
    EXPECT_LE(rows, 8192);
    few_rows += rows < 64 ? 1 : 0, many_rows += rows >= 1024 ? 1 : 0;
    if (known.contains({k, n})) {
      ++of_a_model;
      continue;
    }
    ++changed;
    const auto is_near = [&](const auto& model) {
      return k >= model.first * 3 / 4 - 8 && k <= model.first * 5 / 4 && n >= model.second * 3 / 4 - 8 &&
             n <= model.second * 5 / 4;
    };
    EXPECT_TRUE(k % 8 == 0 && n % 8 == 0 && std::any_of(known.begin(), known.end(), is_near)) << case_name(c);
  }
  EXPECT_GT(of_a_model, 250);
  EXPECT_GT(changed, 60);
  EXPECT_GT(few_rows, 130);  // 6 of 13 powers of two
  EXPECT_GT(many_rows, 60);
}

TEST(RandomCases, OfAttentionHaveAFewSequencesOfAnyLength) {
  int64_t is_short = 0, is_long = 0, several = 0, odd = 0;
  for (const Case& c : of_models(200, 3, "attention")) {
    EXPECT_NO_THROW(validate(c)) << case_name(c);
    const int64_t length = c.dims.at("q_seq"), n = c.dims.at("batch");
    EXPECT_EQ(c.dims.at("kv_seq"), length);
    EXPECT_TRUE(length >= 64 && length <= 8192 && n >= 1 && n <= 8 && n * length <= 16384) << case_name(c);
    is_short += length < 256 ? 1 : 0, is_long += length >= 4096 ? 1 : 0, several += n > 1 ? 1 : 0, odd += length % 2;
  }
  EXPECT_GT(is_short, 40);  // 2 of 7 powers of two
  EXPECT_GT(is_long, 15);
  EXPECT_GT(several, 100);
  EXPECT_GT(odd, 70);
}

}  // namespace
}  // namespace checkop::random_cases_test
