// SPDX-License-Identifier: Apache-2.0
// Sets of recipes: the order in which they are tried, and the smallest that serves several outputs.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "operator/recipe.hpp"

namespace checkop {

using RecipeSet = std::vector<std::string_view>;

bool exclude_each_other(const Recipe& a, const Recipe& b);

/// All nonempty sets of the recipes in which no recipe excludes another: the smallest first, and among sets of one size
/// those with the fewest allowances.
std::vector<RecipeSet> recipe_sets(const std::vector<const Recipe*>& recipes);

bool is_part_of(const RecipeSet& part, const RecipeSet& whole);

/// The first of recipe_sets(recipes) that contains, for each output of `passing`, a set under which this output passes.
/// Granting it lets all outputs pass, since a grant is a permission. Empty if there are no outputs; nullopt if there is
/// no such set.
std::optional<RecipeSet> smallest_for_all(const std::vector<const Recipe*>& recipes,
                                          const std::vector<std::vector<RecipeSet>>& passing);

}  // namespace checkop
