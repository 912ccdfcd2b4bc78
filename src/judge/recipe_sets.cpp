// SPDX-License-Identifier: Apache-2.0
// Sets of recipes.
#include "judge/recipe_sets.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "operator/operator.hpp"

namespace checkop {

bool exclude_each_other(const Recipe& a, const Recipe& b) {
  return lists(a.excludes, b.name) || lists(b.excludes, a.name);
}

std::vector<RecipeSet> recipe_sets(const std::vector<const Recipe*>& recipes) {
  struct Set {
    RecipeSet names;
    int64_t allowances = 0;
  };
  std::vector<Set> sets;
  for (size_t bits = 1; bits < size_t{1} << recipes.size(); ++bits) {
    Set set;
    bool excluded = false;
    for (size_t i = 0; i < recipes.size(); ++i) {
      if ((bits >> i & 1) == 0) continue;
      set.names.push_back(recipes[i]->name);
      set.allowances += recipes[i]->exact ? 0 : 1;
      for (size_t k = 0; k < recipes.size(); ++k)
        excluded |= (bits >> k & 1) != 0 && exclude_each_other(*recipes[i], *recipes[k]);
    }
    if (!excluded) sets.push_back(std::move(set));
  }
  std::stable_sort(sets.begin(), sets.end(), [](const Set& a, const Set& b) {
    return std::pair(a.names.size(), a.allowances) < std::pair(b.names.size(), b.allowances);
  });
  std::vector<RecipeSet> all;
  for (Set& set : sets) all.push_back(std::move(set.names));
  return all;
}

bool is_part_of(const RecipeSet& part, const RecipeSet& whole) {
  return std::all_of(part.begin(), part.end(),
                     [&](std::string_view name) { return std::find(whole.begin(), whole.end(), name) != whole.end(); });
}

std::optional<RecipeSet> smallest_for_all(const std::vector<const Recipe*>& recipes,
                                          const std::vector<std::vector<RecipeSet>>& passing) {
  if (passing.empty()) return RecipeSet();
  for (RecipeSet& set : recipe_sets(recipes)) {
    const auto serves = [&](const std::vector<RecipeSet>& ways) {
      return std::any_of(ways.begin(), ways.end(), [&](const RecipeSet& way) { return is_part_of(way, set); });
    };
    if (std::all_of(passing.begin(), passing.end(), serves)) return std::move(set);
  }
  return {};
}

}  // namespace checkop
