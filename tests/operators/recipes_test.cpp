// SPDX-License-Identifier: Apache-2.0
// Kernels with the rounding of a recipe: refused without a grant, with the recipe named, accepted with it, and held to
// it as tightly.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "case/rank_parts.hpp"
#include "case/sweep.hpp"
#include "judge/gold.hpp"
#include "operator/emulation.hpp"
#include "support/judge_helper.hpp"

namespace checkop::recipes_test {
namespace {

/// One recipe of a pass, in one dtype.
struct Subject {
  const Operator* op;
  const Pass* pass;
  const Recipe* recipe;
  DType dtype;
};

std::vector<Subject> subjects() {
  // These share the golds of linear_logp, attention and matmul.
  constexpr std::array<std::string_view, 5> kShared{"tp_linear_logp", "kv_cache_attention", "varlen_attention",
                                                    "paged_attention", "det_gemm"};
  std::vector<Subject> all;
  for (const Operator* op : operators()) {
    if (std::find(kShared.begin(), kShared.end(), op->name) != kShared.end()) continue;
    for (const Pass& pass : op->passes) {
      for (const Recipe& recipe : pass.recipes) {
        for (const std::string_view dtype : split_dims(recipe.dtypes))
          all.push_back({op, &pass, &recipe, *parse_dtype(dtype)});
      }
    }
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<Subject>& info) {
  return fmt::format("{}_{}_{}_{}", info.param.op->name, info.param.pass->name, info.param.recipe->name,
                     checkop::info(info.param.dtype).name);
}

int64_t input_bytes(const Case& c) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : c.pass->inputs)
    if (is_present(c, spec))
      bytes += element_count(shape_of(c, spec)) * static_cast<int64_t>(info(dtype_of(c, spec)).bytes);
  return bytes;
}

bool passes_all(const Case& c, const std::vector<Comparison>& comparisons) {
  for (size_t i = 0; i < comparisons.size(); ++i)
    if (is_present(c, c.pass->outputs[i].tensor) && !comparisons[i].passed()) return false;
  return true;
}

/// The outputs of an emulated kernel with the recipe, times `factor`.
std::vector<Tensor> rounded_outputs(const Case& c, const std::vector<Tensor>& inputs, const Recipe& recipe,
                                    double factor) {
  std::vector<const Tensor*> present;
  for (const Tensor& tensor : inputs) present.push_back(tensor.name.empty() ? nullptr : &tensor);
  Values values;
  std::vector<Tensor> outputs = make_outputs(c);
  for (const Tensor& output : outputs) values.emplace_back(static_cast<size_t>(output.count()));
  const ActiveRecipes recipes({recipe.name}, c.dtype, 1, {});
  const Arithmetic arithmetic(Plan{Plan::Order::blocked, 128}, "", recipes);
  const std::vector<int64_t> bounds = is_tensor_parallel(c) ? part_bounds(c) : std::vector<int64_t>();
  c.pass->emulation->run({present, c.attrs, arithmetic, values, 1, bounds});
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t k = 0; k < values[i].size() && !outputs[i].name.empty(); ++k)
      outputs[i].set(static_cast<int64_t>(k), factor * values[i][k]);
  }
  return outputs;
}

/// A case that tells a kernel with the recipe from one without it.
struct Telling {
  Case c;
  std::vector<Tensor> inputs;
  std::vector<Comparison> without_grant;
};

/// The smallest such case of suite mutation, or the largest case if none tells. Searched for once.
const Telling& telling(const Subject& subject) {
  static std::map<std::string, Telling> known;
  const std::string name =
      fmt::format("{}/{}/{}/{}", subject.op->name, subject.pass->name, subject.recipe->name, info(subject.dtype).name);
  const auto [at, is_new] = known.try_emplace(name);
  Telling& found = at->second;
  if (!is_new) return found;
  std::vector<Case> all = load_cases(fmt::format("{}/cases/{}.json", CHECKOP_SOURCE_DIR, subject.op->name), "mutation");
  std::erase_if(all, [&](const Case& each) {
    // What recipes allow is of the first order of rounding.
    return each.op != subject.op || each.pass != subject.pass || each.dtype != subject.dtype ||
           each.input_mode == InputMode::extreme;
  });
  std::stable_sort(all.begin(), all.end(),
                   [](const Case& a, const Case& b) { return input_bytes(a) < input_bytes(b); });
  for (Case& each : all) {
    found = {std::move(each), {}, {}};
    found.inputs = make_inputs(found.c, 1);
    const auto outputs = rounded_outputs(found.c, found.inputs, *subject.recipe, 1);
    found.without_grant = judge_outputs(found.c, found.inputs, outputs, default_contract(), {}, 1);
    if (!passes_all(found.c, found.without_grant)) break;
  }
  return found;
}

class Recipes : public testing::TestWithParam<Subject> {
 protected:
  std::vector<Tensor> rounded_outputs(double factor = 1) const {
    return recipes_test::rounded_outputs(c, inputs, *GetParam().recipe, factor);
  }

  bool names(const TensorSpec& output) const {
    const std::vector<std::string_view> all = split_dims(GetParam().recipe->outputs);
    return std::find(all.begin(), all.end(), output.name) != all.end();
  }

  const Case& c = telling(GetParam()).c;
  const std::vector<Tensor>& inputs = telling(GetParam()).inputs;
};

TEST_P(Recipes, AKernelFailsWithoutTheGrantAndIsToldWhichOneItNeeds) {
  const std::string name(GetParam().recipe->name);
  const auto& comparisons = telling(GetParam()).without_grant;
  bool fails = false;
  for (size_t i = 0; i < comparisons.size(); ++i) {
    const TensorSpec& output = c.pass->outputs[i].tensor;
    if (!is_present(c, output) || comparisons[i].passed()) continue;
    fails = true;
    EXPECT_TRUE(names(output)) << output.name;
    // Another recipe may allow for as much, but none that is exact does, unless it has a part of the same roundings.
    ASSERT_EQ(comparisons[i].passes_under.size(), 1u) << output.name;
    if (!GetParam().recipe->exact || lists(GetParam().recipe->excludes, comparisons[i].passes_under[0])) continue;
    EXPECT_EQ(comparisons[i].passes_under, std::vector{name}) << output.name;
  }
  EXPECT_TRUE(fails);
}

TEST_P(Recipes, AKernelPassesWithTheGrant) {
  const std::string name(GetParam().recipe->name);
  Contract contract = default_contract();
  contract.grant({name});
  const auto comparisons = judge_outputs(c, inputs, rounded_outputs(), contract, {}, 1);
  bool needed = false;
  for (size_t i = 0; i < comparisons.size(); ++i) {
    if (!is_present(c, c.pass->outputs[i].tensor)) continue;
    EXPECT_TRUE(comparisons[i].passed()) << c.pass->outputs[i].tensor.name;
    EXPECT_TRUE(comparisons[i].would_pass.empty()) << c.pass->outputs[i].tensor.name;
    needed |= comparisons[i].recipes == std::vector{name};
  }
  EXPECT_TRUE(needed);
}

TEST_P(Recipes, EverySmallestSetIsFoundWhateverIsGranted) {
  const std::string name(GetParam().recipe->name);
  Contract contract = default_contract();
  contract.grant({name});
  const auto comparisons =
      judge_outputs(c, inputs, rounded_outputs(), contract, {}, 1, {}, nullptr, {}, RecipeSearch::every_set);
  bool found = false;
  for (const Comparison& comparison : comparisons) {
    const auto& sets = comparison.every_set;
    EXPECT_TRUE(sets.empty() || !comparison.passed());
    found |= std::find(sets.begin(), sets.end(), std::vector{name}) != sets.end();
    for (const auto& set : sets) EXPECT_TRUE(set.size() == 1 || std::find(set.begin(), set.end(), name) == set.end());
  }
  EXPECT_TRUE(found);
}

TEST_P(Recipes, AFactorOfTwoPercentFailsUnderTheGrant) {
  Contract contract = default_contract();
  contract.grant({std::string(GetParam().recipe->name)});
  const auto comparisons = judge_outputs(c, inputs, rounded_outputs(1.02), contract, {}, 1);
  for (size_t i = 0; i < comparisons.size(); ++i) {
    const OutputSpec& output = c.pass->outputs[i];
    if (output.numerics == Numerics::exact || !is_present(c, output.tensor)) continue;  // 1.02 rounds to an id of 1
    EXPECT_FALSE(comparisons[i].passed()) << output.tensor.name;
  }
}

TEST_P(Recipes, OtherOutputsHaveTheSameGold) {
  const ActiveRecipes recipes({GetParam().recipe->name}, c.dtype, 0x1p-24,
                              std::vector<ActiveRecipes::Numbers>(c.pass->outputs.size(), {1e-6, 6}));
  std::vector<std::vector<double>> plain(c.pass->outputs.size()), rounded(c.pass->outputs.size());
  const auto collect = [&](auto& to) {
    return [&to](const GoldRows& rows) {
      auto& values = to[static_cast<size_t>(rows.output)];
      for (const double* array : {rows.value, rows.magnitude, rows.rounding})
        values.insert(values.end(), array, array + rows.n_rows * rows.columns);
    };
  };
  run_gold(c, inputs, 1, collect(plain));
  run_gold(c, inputs, 1, collect(rounded), {}, recipes);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(names(c.pass->outputs[i].tensor) || rounded[i] == plain[i]) << c.pass->outputs[i].tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(OfEveryPass, Recipes, testing::ValuesIn(subjects()), name_of);

// Logits of -32768 and 32768 have log-probabilities that fp16 rounds to -inf.
TEST(LogpRecipe, ALogProbabilityRoundedToInfinityIsAProbabilityOfZero) {
  std::vector<Case> all = load_cases(fmt::format("{}/cases/logp.json", CHECKOP_SOURCE_DIR), "smoke");
  std::erase_if(all, [](const Case& c) {
    return c.pass->name != "backward" || c.dtype != DType::f16 || c.input_mode != InputMode::extreme;
  });
  ASSERT_FALSE(all.empty());
  Contract contract = default_contract();
  contract.grant({"logp_in_16_bit"});
  double lowest = 0;
  for (const Case& c : all) {
    const std::vector<Tensor> inputs = make_inputs(c, 1);
    for (int64_t i = 0; i < inputs[0].count(); ++i) {
      if (const double x = inputs[0].at(i); std::isfinite(x)) lowest = std::min(lowest, x);
    }
    const auto recipe = std::ranges::find(c.pass->recipes, "logp_in_16_bit", &Recipe::name);
    const auto outputs = rounded_outputs(c, inputs, *recipe, 1);
    for (const Comparison& comparison : judge_outputs(c, inputs, outputs, contract, {}, 1)) {
      EXPECT_TRUE(comparison.passed()) << case_name(c);
    }
  }
  EXPECT_EQ(lowest, -32768);
}

/// The standard deviation of what p_in_16_bit adds to o, for a query and `n` keys that are all equal.
double deviation_of_equal_keys(int64_t n) {
  const Case c =
      gold_case("attention", "forward", DType::bf16,
                {{"batch", 1}, {"q_heads", 1}, {"kv_heads", 1}, {"q_seq", 1}, {"kv_seq", n}, {"head_dim", 2}});
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (const size_t of_keys : {1, 2}) {
    for (int64_t i = 0; i < inputs[of_keys].count(); ++i) inputs[of_keys].set(i, i % 2 == 0 ? 0.75 : -0.5);
  }
  double deviation = 0;
  const auto collect = [&](const GoldRows& rows) {
    if (rows.output == 0) deviation = rows.deviation[0];
  };
  run_gold(c, inputs, 1, collect, {}, ActiveRecipes({"p_in_16_bit"}, c.dtype, 0x1p-24, {{0, 6}}));
  return deviation;
}

// A kernel rounds equal probabilities alike, so their errors add up; those of different ones partly cancel.
TEST(PIn16Bit, EqualKeysRoundAlike) {
  const double of_one = deviation_of_equal_keys(1);
  EXPECT_GT(of_one, 0);
  EXPECT_NEAR(deviation_of_equal_keys(16), of_one, 1e-9 * of_one);
}

/// dlogits of logp with the recipe transform_in_16_bit less those without it: the largest difference.
double effect_of_transform(double top_k, double top_p) {
  Case c = gold_case("logp", "backward", DType::bf16, {{"batch", 2}, {"seq", 4}, {"vocab", 65}});
  c.attrs = {-100, 0.7, 4, top_k, top_p, 1};
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::array<std::vector<double>, 2> golds;
  for (const bool rounds : {false, true}) {
    const auto collect = [&](const GoldRows& rows) {
      golds[rounds ? 1 : 0].insert(golds[rounds ? 1 : 0].end(), rows.value, rows.value + rows.n_rows * rows.columns);
    };
    std::vector<std::string_view> names;
    if (rounds) names.push_back("transform_in_16_bit");
    run_gold(c, inputs, 1, collect, {}, ActiveRecipes(names, c.dtype, 0x1p-24, {{1e-6, 6}}));
  }
  double most = 0;
  for (size_t i = 0; i < golds[0].size(); ++i) most = std::max(most, std::abs(golds[0][i] - golds[1][i]));
  return most;
}

TEST(TransformIn16Bit, ChangesNothingWhereSomeLogitsAreLeftOut) {
  EXPECT_GT(effect_of_transform(0, 1), 1e-4);
  EXPECT_EQ(effect_of_transform(20, 1), 0);
  EXPECT_EQ(effect_of_transform(0, 0.8), 0);
}

/// What the recipe sums_by_chunk_in_16_bit allows the first element of dlm_head_weight of linear_logp. A chunk has one
/// of the rows.
Spread of_chunks(int64_t rows, const decltype(Case::optionals)& optionals, std::vector<double>* terms = nullptr) {
  Case c =
      gold_case("linear_logp", "backward", DType::bf16, {{"batch", 1}, {"seq", rows}, {"hidden", 4}, {"vocab", 32}});
  c.optionals = optionals;
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  Spread spread;
  const auto look = [&](const GoldRows& gold) {
    if (gold.output == 1 && gold.first_row == 0) spread = {gold.spread[0], gold.deviation[0]};
  };
  run_gold(c, inputs, 1, look, {},
           ActiveRecipes({"sums_by_chunk_in_16_bit"}, c.dtype, 0x1p-24, {{1e-6, 6}, {1e-6, 6}, {1e-6, 6}}));
  for (int64_t r = 0; terms != nullptr && r < rows; ++r) {
    std::vector<Tensor> alone = make_inputs(c, 1);
    for (int64_t other = 0; other < rows; ++other)
      if (other != r) alone[2].set(other, -100);  // ignored
    run_gold(c, alone, 1, [&](const GoldRows& gold) {
      if (gold.output == 1 && gold.first_row == 0) terms->push_back(gold.value[0]);
    });
  }
  return spread;
}

TEST(SumsByChunk, AreAllowedForFromTwoChunksOnAndNotWithCarriedSums) {
  EXPECT_EQ(of_chunks(1, {}).most, 0);
  EXPECT_GT(of_chunks(2, {}).deviation, 0);
  EXPECT_EQ(of_chunks(8, {"dlm_head_weight_carry"}).most, 0);
}

TEST(SumsByChunk, CountEveryPartAndEverySumButTheFirstAndTheLast) {
  std::vector<double> terms;
  const Spread spread = of_chunks(5, {}, &terms);
  ASSERT_EQ(terms.size(), 5u);
  double sum = 0, squares = 0, sizes = 0;
  for (size_t j = 0; j < 5; ++j) {
    sum += terms[j];
    squares += terms[j] * terms[j], sizes += std::abs(terms[j]);
    if (j > 0 && j < 4) squares += sum * sum, sizes += std::abs(sum);
  }
  EXPECT_NEAR(spread.deviation, 0x1p-8 * std::sqrt(squares / 3), 1e-12);
  EXPECT_NEAR(spread.most, 0x1p-8 * std::min(6 * std::sqrt(squares / 3), sizes), 1e-12);
}

// Seen on an H200: cuBLAS rounds to nearest, ties to even.
TEST(Tf32, RoundsToElevenBitsAndTiesToEven) {
  EXPECT_EQ(ActiveRecipes::round_to_tf32(1 + 0x1p-11), 1);
  EXPECT_EQ(ActiveRecipes::round_to_tf32(1 + 3 * 0x1p-11), 1 + 0x1p-9);
  EXPECT_EQ(ActiveRecipes::round_to_tf32(-(1 + 0x1p-11 + 0x1p-20)), -(1 + 0x1p-10));
  EXPECT_EQ(ActiveRecipes::round_to_tf32(0), 0);
}

TEST(Rounded, AnElementMayTurnWhereItLiesWithinItsErrorOfATie) {
  const ActiveRecipes recipes({"r"}, DType::bf16, 0x1p-24, {{0, 6}});
  const double tie = 1 + 0x1p-8;                              // between 1 and 1 + 2^-7
  EXPECT_EQ(recipes.round(0, tie + 0x1p-20, 0, 1).slack, 0);  // further from it than u
  EXPECT_EQ(recipes.round(0, tie + 0x1p-20, 0, 32).slack, 0x1p-7);
  EXPECT_EQ(recipes.round(0, tie + 0x1p-20, 0, 32).value, 1 + 0x1p-7);
  EXPECT_EQ(recipes.round(0, 1.25, 0, 32).slack, 0);
}

TEST(Rounded, TermsAreAllowedLambdaDeviationsAndNoMoreThanEachAtItsWorst) {
  const ActiveRecipes recipes({"r"}, DType::bf16, 0x1p-24, {{0, 6}});
  const Spread one = recipes.of_terms(0, 1, 1), many = recipes.of_terms(0, 100, 100);
  EXPECT_DOUBLE_EQ(one.deviation, 0x1p-8 / std::sqrt(3));
  EXPECT_DOUBLE_EQ(one.most, 0x1p-8);
  EXPECT_DOUBLE_EQ(many.most, 6 * 0x1p-8 * std::sqrt(100.0 / 3));
}

TEST(Rounded, EqualTermsErrAlike) {
  const Spread equal = ActiveRecipes({"r"}, DType::bf16, 0x1p-24, {{0, 6}}).of_terms(0, 100, 100, /*equal=*/true);
  EXPECT_DOUBLE_EQ(equal.most, 0x1p-8 * 100);
  EXPECT_DOUBLE_EQ(equal.deviation, equal.most);
  const ActiveRecipes of_equal_inputs({"r"}, DType::bf16, 0x1p-24, {{0, 6}}, /*equal_inputs=*/true);
  EXPECT_DOUBLE_EQ(of_equal_inputs.of_terms(0, 100, 100).most, 0x1p-8 * 100);
  EXPECT_DOUBLE_EQ(of_equal_inputs.of_errors(0, 100, 100), 100);
}

TEST(Rounded, RoundingToInfinityIsNotAllowedFor) {
  const ActiveRecipes recipes({"r"}, DType::f16, 0x1p-24, {{0, 6}});
  EXPECT_EQ(recipes.round(0, 65504, 0, 0x1p34).value, 65504);
  EXPECT_TRUE(std::isfinite(recipes.round(0, 65504, 0, 0x1p34).slack));
  EXPECT_EQ(recipes.round(0, 70000, 0, 0x1p34).slack, 0);
}

TEST(Families, HoldNoRecipeTogetherWithOneThatItExcludes) {
  const Operator& op = *find_operator("attention");
  using Names = std::vector<std::string_view>;
  EXPECT_EQ(families_of(*find_pass(op, "forward"), {"p_in_16_bit", "scores_in_16_bit"}),
            (std::vector<Names>{{"p_in_16_bit", "scores_in_16_bit"}}));
  EXPECT_EQ(families_of(*find_pass(op, "backward"), {"o_in_16_bit", "ds_in_16_bit", "scores_in_16_bit"}),
            (std::vector<Names>{{"ds_in_16_bit", "scores_in_16_bit"}, {"o_in_16_bit", "ds_in_16_bit"}}));
}

/// An attention case whose gold has one query per row, under some recipes.
struct Rows {
  std::vector<double> spread;
  explicit Rows(double scale, std::string_view recipe, std::string_view pass = "forward", int output = 0) {
    Case c = gold_case("attention", pass, DType::bf16,
                       {{"batch", 1}, {"q_heads", 2}, {"kv_heads", 1}, {"q_seq", 2}, {"kv_seq", 6}, {"head_dim", 8}});
    c.attrs[1] = scale;
    const auto collect = [&](const GoldRows& rows) {
      if (rows.output == output) spread.assign(rows.spread, rows.spread + rows.n_rows * rows.columns);
    };
    const std::vector<ActiveRecipes::Numbers> numbers(c.pass->outputs.size(), {1e-6, 6});
    run_gold(c, make_inputs(c, 1), 1, collect, {}, ActiveRecipes({recipe}, DType::bf16, 0x1p-24, numbers));
  }
};

TEST(RoundedScores, AreAllowedForWhereAFirstOrderDescribesThem) {
  const auto positive = [](const Rows& rows) {
    return std::count_if(rows.spread.begin(), rows.spread.end(), [](double x) { return x > 0; });
  };
  EXPECT_EQ(positive(Rows(0.3, "scores_in_16_bit")), 32);
  EXPECT_EQ(positive(Rows(1e6, "scores_in_16_bit")), 0);
  for (const double x : Rows(1e30, "scores_in_16_bit").spread) EXPECT_EQ(x, 0);  // no NaN
}

// Scores around 100: bf16 rounds them to multiples of a half.
TEST(RoundedScores, ThatAreTooLargeToBeAllowedForAreThoseOfTheGold) {
  Case c = gold_case("attention", "forward", DType::bf16,
                     {{"batch", 1}, {"q_heads", 1}, {"kv_heads", 1}, {"q_seq", 6}, {"kv_seq", 6}, {"head_dim", 8}});
  c.attrs[0] = 0, c.attrs[1] = 24;
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const ActiveRecipes recipes({"scores_in_16_bit"}, DType::bf16, 0x1p-24,
                              std::vector<ActiveRecipes::Numbers>(c.pass->outputs.size(), {1e-6, 6}));
  int64_t tight = 0;
  const auto look = [&](const GoldRows& rows) {
    if (rows.output != 0) return;
    for (int64_t i = 0; i < 6; ++i) {
      std::vector<double> p(6);
      for (int64_t j = 0; j < 6; ++j) {
        double score = 0;
        for (int64_t d = 0; d < 8; ++d) score += inputs[0].at(i * 8 + d) * inputs[1].at(j * 8 + d);
        p[static_cast<size_t>(j)] = recipes.round(24 * recipes.round(score));
      }
      const double largest = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& each : p) sum += each = std::exp(each - largest);
      for (int64_t d = 0; d < 8; ++d) {
        double o = 0;
        for (int64_t j = 0; j < 6; ++j) o += p[static_cast<size_t>(j)] / sum * inputs[2].at(j * 8 + d);
        EXPECT_NEAR(rows.value[i * 8 + d], o, 1e-12) << i << " " << d;
        EXPECT_EQ(rows.spread[i * 8 + d], 0);
        tight += rows.rounding[i * 8 + d] < 1e3 ? 1 : 0;
      }
    }
  };
  run_gold(c, inputs, 1, look, {}, recipes);
  EXPECT_GT(tight, 40);  // all but rows with a score near a tie
}

TEST(RoundedHeads, AKeyThatNoQueryReadsHasAnExactGradient) {
  Case c = gold_case("attention", "backward", DType::bf16,
                     {{"batch", 1}, {"q_heads", 2}, {"kv_heads", 1}, {"q_seq", 2}, {"kv_seq", 6}, {"head_dim", 8}});
  c.optionals = {"key_padding_mask"};
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (int64_t j = 0; j < 6; ++j) inputs[3].set(j, j < 4 ? 1 : 0);
  const std::vector<ActiveRecipes::Numbers> numbers(c.pass->outputs.size(), {1e-6, 6});
  const ActiveRecipes recipes({"group_gradients_in_16_bit"}, DType::bf16, 0x1p-24, numbers);
  const auto look = [&](const GoldRows& rows) {
    if (rows.output != 1) return;
    for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(rows.spread[i] > 0, i / 8 < 4) << i;
  };
  run_gold(c, inputs, 1, look, {}, recipes);
}

// With one key ds is 0. A kernel may round what it has there before the scale of 1/16, or after it.
TEST(RoundedDs, OfAlmostZeroMayLoseTheBitsThatASubnormalNumberLacks) {
  Case c = gold_case("attention", "backward", DType::f16,
                     {{"batch", 1}, {"q_heads", 1}, {"kv_heads", 1}, {"q_seq", 1}, {"kv_seq", 1}, {"head_dim", 256}});
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const ActiveRecipes recipes({"ds_in_16_bit"}, DType::f16, 0x1p-24,
                              std::vector<ActiveRecipes::Numbers>(c.pass->outputs.size(), {1e-6, 6}));
  const auto look = [&](const GoldRows& rows) {
    if (rows.output != 1) return;
    for (int64_t i = 0; i < 256; ++i) EXPECT_EQ(rows.spread[i], 0x1p-25 * std::abs(inputs[0].at(i))) << i;
  };
  run_gold(c, inputs, 1, look, {}, recipes);
}

}  // namespace
}  // namespace checkop::recipes_test
