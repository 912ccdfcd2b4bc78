// SPDX-License-Identifier: Apache-2.0
// Which rows are sampled, and that a gold of some rows equals the gold of all rows there.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "case/inputs.hpp"
#include "case/sampling.hpp"
#include "support/gold_helper.hpp"

namespace checkop::sampling_test {
namespace {

Case logp(const Dims& dims) { return gold_case("logp", "backward", DType::f32, dims); }

TEST(Sampling, NothingIsLeftOutOfSmallOutputsNorWhenAllAreWanted) {
  const Case c = logp({{"batch", 2}, {"seq", 8}, {"vocab", 5}});
  const auto inputs = make_inputs(c, 1);
  EXPECT_TRUE(sample_rows(c, inputs, 0)[0].all);
  EXPECT_TRUE(sample_rows(c, inputs, 16)[0].all);
  EXPECT_FALSE(sample_rows(c, inputs, 15)[0].all);
}

TEST(Sampling, HoldsBothEndsTileEdgesAndAsManyRowsAsWanted) {
  const Case c = logp({{"batch", 4}, {"seq", 1000}, {"vocab", 3}});
  const auto inputs = make_inputs(c, 1);
  for (const int64_t rows : {2, 16, 256, 3999}) {
    const RowSet set = sample_rows(c, inputs, rows)[0];
    ASSERT_EQ(set.count(4000), rows);
    EXPECT_TRUE(std::is_sorted(set.chosen.begin(), set.chosen.end()));
    EXPECT_EQ(std::adjacent_find(set.chosen.begin(), set.chosen.end()), set.chosen.end());
    EXPECT_TRUE(set.has(0) && set.has(3999)) << rows;
  }
  const RowSet set = sample_rows(c, inputs, 256)[0];
  for (const int64_t edge : {15, 16, 63, 64, 127, 128, 255, 256, 511, 512, 1024, 2047, 2048, 3839, 3840, 3967, 3968}) {
    EXPECT_TRUE(set.has(edge)) << edge;
  }
}

TEST(Sampling, FollowsTheSeedAndNothingElse) {
  Case c = logp({{"batch", 4}, {"seq", 1000}, {"vocab", 3}});
  const auto rows = sample_rows(c, make_inputs(c, 1), 256)[0].chosen;
  EXPECT_EQ(rows, sample_rows(c, make_inputs(c, 2), 256)[0].chosen);
  c.seed = 124;
  EXPECT_NE(rows, sample_rows(c, make_inputs(c, 1), 256)[0].chosen);
}

// Rows near both ends and next to powers of two would fill samples of these sizes.
TEST(Sampling, FewRowsAreRandomOnesToo) {
  const Case c = logp({{"batch", 4}, {"seq", 1000}, {"vocab", 3}});
  const auto inputs = make_inputs(c, 1);
  for (const int64_t rows : {8, 16, 32}) {
    std::set<int64_t> seen;
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const auto chosen = sample_rows(c, inputs, rows, seed)[0].chosen;
      ASSERT_EQ(std::ssize(chosen), rows);
      seen.insert(chosen.begin(), chosen.end());
    }
    EXPECT_GT(std::ssize(seen), 40 * rows / 4) << rows;
  }
}

TEST(Sampling, HoldsRowsOnBothSidesOfAMaskEdge) {
  const Case c = gold_case("ratio_kl", "backward", DType::f32, {{"batch", 1}, {"seq", 3000}, {"vocab", 3}});
  auto inputs = make_inputs(c, 1);
  Tensor& mask = inputs[input_index(*c.pass, "attention_mask")];
  for (int64_t r = 0; r < 3000; ++r) mask.set(r, r >= 1234 && r < 1777 ? 0 : 1);
  const RowSet set = sample_rows(c, inputs, 64)[0];
  for (const int64_t row : {1233, 1234, 1776, 1777}) EXPECT_TRUE(set.has(row)) << row;
}

TEST(Sampling, WeightGradientsHoldRowsThatIdsSelect) {
  const Case c = gold_case("linear_logp", "backward", DType::f32,
                           {{"batch", 1}, {"seq", 3}, {"hidden", 4}, {"vocab", 30000}}, {"bias"});
  auto inputs = make_inputs(c, 1);
  const double ids[] = {7777, 12345, 23456};
  for (int64_t r = 0; r < 3; ++r) inputs[input_index(*c.pass, "target_ids")].set(r, ids[r]);
  const auto sets = sample_rows(c, inputs, 64);
  EXPECT_TRUE(sets[0].all);  // three rows of dhidden
  for (const double id : ids) EXPECT_TRUE(sets[1].has(static_cast<int64_t>(id))) << id;
  EXPECT_EQ(sets[1].chosen, sets[2].chosen);
}

TEST(Sampling, WorkIsTheProductOfTheExtents) {
  EXPECT_EQ(gold_work(gold_case("linear_logp", "forward", DType::bf16,
                                {{"batch", 2}, {"seq", 3}, {"hidden", 5}, {"vocab", 7}})),
            210);
}

/// Every operator and pass with sampled outputs: without optional inputs, with the first, with all.
std::vector<Case> sampled_cases(DType dtype) {
  std::vector<Case> cases;
  for (const Operator* op : operators()) {
    for (const Pass& pass : op->passes) {
      if (std::none_of(pass.outputs.begin(), pass.outputs.end(), [](const OutputSpec& o) { return o.sampled; }))
        continue;
      cases.push_back(fitted(gold_case(op->name, pass.name, dtype, test_dims(*op, 4))));
      std::vector<std::string> optionals;
      for (const TensorSpec& spec : pass.inputs) {
        if (spec.optional) optionals.emplace_back(spec.name);
      }
      for (const size_t n : {size_t{1}, optionals.size()}) {
        if (optionals.empty() || (n == 1) != cases.back().optionals.empty()) continue;
        cases.push_back(cases.back());
        cases.back().optionals = {optionals.begin(), optionals.begin() + static_cast<std::ptrdiff_t>(n)};
        cases.back() = fitted(cases.back());
      }
    }
  }
  return cases;
}

/// value, magnitude, rounding, spread and deviation of an element, by output and number.
using Elements = std::map<std::pair<int, int64_t>, std::array<double, 5>>;

Elements elements_of(const Case& c, const std::vector<Tensor>& inputs, unsigned threads,
                     const std::vector<RowSet>& rows, const ActiveRecipes& recipes, KeptResults* kept = nullptr) {
  Elements elements;
  std::mutex mutex;
  run_gold(
      c, inputs, threads,
      [&](const GoldRows& block) {
        const std::lock_guard lock(mutex);
        for (int64_t i = 0; i < block.n_rows * block.columns; ++i) {
          const auto of = [&](const double* array) { return array == nullptr ? 0 : array[i]; };
          const std::pair place{block.output, block.first_row * block.columns + i};
          EXPECT_TRUE(elements
                          .try_emplace(place, std::array{of(block.value), of(block.magnitude), of(block.rounding),
                                                         of(block.spread), of(block.deviation)})
                          .second);
        }
      },
      rows, recipes, kept);
  return elements;
}

/// `some`, the gold with `sets`, has these rows of every output and no others, as in `all`.
void expect_rows(const Case& c, const std::vector<RowSet>& sets, const Elements& all, const Elements& some) {
  size_t n_expected = 0;
  for (size_t i = 0; i < sets.size(); ++i) {
    const TensorSpec& spec = c.pass->outputs[i].tensor;
    if (!is_present(c, spec)) continue;
    const MatrixView view = judged_view(*c.op, spec, shape_of(c, spec));
    n_expected += static_cast<size_t>(sets[i].count(view.rows) * view.columns);
    for (int64_t r = 0; r < view.rows; ++r) {
      if (view.columns == 0 || !sets[i].has(r)) continue;
      EXPECT_TRUE(some.contains({static_cast<int>(i), r * view.columns})) << case_name(c);
    }
  }
  EXPECT_EQ(some.size(), n_expected) << case_name(c);
  for (const auto& [place, element] : some) {
    for (size_t k = 0; k < element.size(); ++k) {
      const double expected = all.at(place)[k];
      if (element[k] == expected || (std::isnan(element[k]) && std::isnan(expected))) continue;  // may be infinite
      ASSERT_NEAR(element[k], expected, 1e-12 * (1 + std::abs(expected))) << case_name(c) << " " << k;
    }
  }
}

/// The recipes of c that go together, for golds.
ActiveRecipes some_recipes(const Case& c) {
  std::vector<std::string_view> names;
  for (const Recipe& recipe : c.pass->recipes) {
    if (recipe.excludes.empty()) names.push_back(recipe.name);
  }
  return {names, c.dtype, 0x1p-24, std::vector<ActiveRecipes::Numbers>(c.pass->outputs.size(), {1, 6})};
}

TEST(Sampling, SampledGoldIsTheGoldOfThoseRows) {
  const std::vector<Case> cases = sampled_cases(DType::f32);
  EXPECT_GE(cases.size(), 12u);
  for (const Case& c : cases) {
    const auto inputs = gold_inputs(c);
    const auto sets = sample_rows(c, inputs, 5);
    expect_rows(c, sets, elements_of(c, inputs, 1, {}, {}), elements_of(c, inputs, 1, sets, {}));
  }
}

// A search for recipes asks for rows of one output at a time, and keeps what other golds need, too.
TEST(Sampling, RowsOfOneOutputNeedNoneOfTheOthers) {
  int64_t without_others = 0;
  for (const Case& c : sampled_cases(DType::bf16)) {
    const auto inputs = gold_inputs(c);
    const auto sampled = sample_rows(c, inputs, 5);
    KeptResults kept;
    for (const ActiveRecipes& recipes : {ActiveRecipes(), some_recipes(c)}) {
      const Elements all = elements_of(c, inputs, 1, {}, recipes);
      for (size_t i = 0; i < sampled.size(); ++i) {
        const auto sets = rows_of(c, c.pass->outputs[i], sampled[i].chosen);
        without_others += std::ranges::count_if(sets, [](const RowSet& set) { return !set.all && set.chosen.empty(); });
        expect_rows(c, sets, all, elements_of(c, inputs, 1, sets, recipes));
        for (const auto& wanted : {sets, sampled})
          expect_rows(c, wanted, all, elements_of(c, inputs, 1, wanted, recipes, &kept));
      }
    }
  }
  EXPECT_GE(without_others, 24);
}

bool are_same(const Elements& a, const Elements& b) {
  return std::ranges::equal(a, b, [&](const auto& x, const auto& y) {
    return x.first == y.first && std::ranges::equal(x.second, y.second, is_same);
  });
}

// What golds keep is for golds that round logits in the same way.
TEST(Sampling, KeptRowsAreThoseOfTheSameRoundings) {
  using Names = std::vector<std::string_view>;
  constexpr std::string_view kLogits = "logits_in_16_bit", kProduct = "product_in_16_bit",
                             kTransform = "transform_in_16_bit";
  const std::array<Names, 6> all{
      Names{}, {kLogits}, {kProduct}, {kTransform}, {kLogits, kTransform}, {kProduct, kTransform}};
  int n_different = 0;
  for (const std::string_view op : {"linear_logp", "linear_entropy", "linear_policy_loss", "tp_linear_logp"}) {
    for (const Pass& pass : find_operator(op)->passes) {
      Case c = fitted(gold_case(op, pass.name, DType::bf16, test_dims(*find_operator(op), 4), {"bias"}));
      for (size_t i = 0; i < c.attrs.size(); ++i) {
        if (c.op->attrs[i].name == "temperature") c.attrs[i] = 0.7;
        if (c.op->attrs[i].name == "softcap") c.attrs[i] = 4;
      }
      const auto inputs = gold_inputs(c);
      const auto gold = [&](const Names& names, KeptResults* kept) {
        const std::vector<ActiveRecipes::Numbers> numbers(pass.outputs.size(), {1, 6});
        return elements_of(c, inputs, 1, {}, {names, c.dtype, 0x1p-24, numbers}, kept);
      };
      for (const Names& before : all) {
        for (const Names& names : all) {
          const auto is_known = [&](std::string_view name) {
            return std::ranges::count(pass.recipes, name, &Recipe::name) > 0;
          };
          if (!std::ranges::all_of(before, is_known) || !std::ranges::all_of(names, is_known)) continue;
          KeptResults kept;
          const Elements expected = gold(names, nullptr);
          n_different += are_same(gold(before, &kept), expected) ? 0 : 1;
          EXPECT_TRUE(are_same(gold(names, &kept), expected)) << case_name(c);
        }
      }
    }
  }
  EXPECT_GE(n_different, 100);
}

TEST(Sampling, AttentionGivesWholeHeadsOfKeys) {
  const Dims sizes{{"batch", 2},   {"q_heads", 6},  {"kv_heads", 3}, {"q_seq", 37},
                   {"kv_seq", 41}, {"head_dim", 5}, {"v_dim", 7}};
  for (const Case& c : {gold_case("attention", "forward", DType::bf16, sizes, {"lse", "key_padding_mask"}),
                        gold_case("attention", "backward", DType::bf16, sizes, {"key_padding_mask", "o", "lse"})}) {
    const auto inputs = make_inputs(c, 1);
    const auto sets = sample_rows(c, inputs, 7);
    EXPECT_EQ(sets[0].count(0), 7);
    const bool is_forward = c.pass->name == "forward";
    EXPECT_EQ(sets[1].count(0), is_forward ? 2 : 2 * 41);
    EXPECT_TRUE(sets[1].has(is_forward ? 11 : 6 * 41 - 1));
    if (!is_forward) {
      EXPECT_EQ(sets[1].chosen, sets[2].chosen);
      EXPECT_EQ(sets[1].chosen.front() % 41, 0);
    }
    for (const ActiveRecipes& active : {ActiveRecipes(), some_recipes(c)})
      expect_rows(c, sets, elements_of(c, inputs, 1, {}, active), elements_of(c, inputs, 3, sets, active));
  }
}

}  // namespace
}  // namespace checkop::sampling_test
