// SPDX-License-Identifier: Apache-2.0
// Sets of recipes: their order, and the smallest that serves several outputs.
#include <gtest/gtest.h>

#include "judge/recipe_sets.hpp"

namespace checkop::recipe_sets_test {
namespace {

constexpr Recipe kA{"a", "y", "bf16", /*exact=*/false, "", ""}, kB{"b", "y", "bf16", /*exact=*/true, "", ""},
    kC{"c", "y", "bf16", /*exact=*/true, "", ""};
const std::vector<const Recipe*> kAll{&kA, &kB, &kC};
using Sets = std::vector<RecipeSet>;

TEST(RecipeSets, TheSmallestComeFirstAndOfThemThoseWithTheFewestAllowances) {
  EXPECT_EQ(recipe_sets(kAll), (Sets{{"b"}, {"c"}, {"a"}, {"b", "c"}, {"a", "b"}, {"a", "c"}, {"a", "b", "c"}}));
}

TEST(RecipeSets, OneThatExcludesAnotherIsInNoSetWithIt) {
  const Recipe d{"d", "y", "bf16", /*exact=*/true, "", "", /*excludes=*/"b x"};
  EXPECT_EQ(recipe_sets({&kB, &kC, &d}), (Sets{{"b"}, {"c"}, {"d"}, {"b", "c"}, {"c", "d"}}));
}

TEST(RecipeSets, TheSmallestSetOfEachOutputNeedNotServeTheOthers) {
  EXPECT_EQ(smallest_for_all(kAll, {{{"b"}, {"c"}}, {{"c"}}}), RecipeSet{"c"});
  EXPECT_EQ(smallest_for_all(kAll, {{{"b"}, {"a", "c"}}, {{"c"}}, {{"a"}}}), (RecipeSet{"a", "c"}));
}

TEST(RecipeSets, AGrantIsAPermissionSoOutputsMayUseDifferentParts) {
  EXPECT_EQ(smallest_for_all(kAll, {{{"a"}}, {{"b"}}}), (RecipeSet{"a", "b"}));
}

TEST(RecipeSets, WithoutOutputsNoRecipeIsNeededAndAnOutputThatNoneServesHasNoSet) {
  EXPECT_EQ(smallest_for_all(kAll, {}), RecipeSet());
  EXPECT_EQ(smallest_for_all(kAll, {{{"a"}}, {}}), std::nullopt);
}

}  // namespace
}  // namespace checkop::recipe_sets_test
