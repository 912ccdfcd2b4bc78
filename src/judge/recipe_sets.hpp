// SPDX-License-Identifier: Apache-2.0
// Sets of recipes: the order in which they are tried, and the smallest that serves several outputs.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "operator/recipe.hpp"

namespace checkop {

using RecipeSet = std::vector<std::string_view>;

/// The sets of some of the recipes in which none excludes another: the smallest first, of those of one size the ones
/// with the fewest allowances.
std::vector<RecipeSet> recipe_sets(const std::vector<const Recipe*>& recipes);

bool is_part_of(const RecipeSet& part, const RecipeSet& whole);

/// The first of recipe_sets(recipes) that has, for each output of `passing`, a part by which that output passes: its
/// grant lets all of them pass, since a grant is a permission. Empty if there are no outputs, nullopt if there is no
/// such set.
std::optional<RecipeSet> smallest_for_all(const std::vector<const Recipe*>& recipes,
                                          const std::vector<std::vector<RecipeSet>>& passing);

}  // namespace checkop
