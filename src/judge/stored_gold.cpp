// SPDX-License-Identifier: Apache-2.0
// Stores gold rows and hands them out again.
#include "judge/stored_gold.hpp"

#include <algorithm>

#include "base/parallel.hpp"

namespace checkop {

StoredGold::StoredGold(const Case& c, const std::vector<Tensor>& inputs, unsigned threads,
                       const ActiveRecipes& recipes) {
  const size_t n = c.pass->outputs.size();
  for (Values* each : {&values_, &magnitudes_, &roundings_, &spreads_, &deviations_}) each->resize(n);
  columns_.resize(n);
  bool has_spread = !recipes.none();
  for (const TensorSpec& spec : c.pass->inputs) has_spread |= spec.fill == Fill::saved && is_present(c, spec);
  for (size_t i = 0; i < n; ++i) {
    const TensorSpec& spec = c.pass->outputs[i].tensor;
    if (!is_present(c, spec)) continue;
    const Shape shape = shape_of(c, spec);
    const auto count = static_cast<size_t>(element_count(shape));
    columns_[i] = judged_view(*c.op, spec, shape).columns;
    for (Values* each : {&values_, &magnitudes_, &roundings_}) (*each)[i].resize(count);
    if (!has_spread) continue;
    for (Values* each : {&spreads_, &deviations_}) (*each)[i].resize(count);
  }
  const auto store = [this](const GoldRows& rows) {
    const auto output = static_cast<size_t>(rows.output);
    if (values_[output].empty()) return;
    const int64_t at = rows.first_row * rows.columns, count = rows.n_rows * rows.columns;
    std::copy_n(rows.value, count, values_[output].begin() + at);
    std::copy_n(rows.magnitude, count, magnitudes_[output].begin() + at);
    std::copy_n(rows.rounding, count, roundings_[output].begin() + at);
    if (rows.spread == nullptr || spreads_[output].empty()) return;
    std::copy_n(rows.spread, count, spreads_[output].begin() + at);
    std::copy_n(rows.deviation, count, deviations_[output].begin() + at);
  };
  run_gold(c, inputs, threads, store, {}, recipes);
}

void StoredGold::replay(unsigned threads, const GoldSink& sink) const {
  constexpr int64_t kElements = 1 << 14;  // per block: enough work for a task
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].empty()) continue;
    const int64_t columns = columns_[i], rows = static_cast<int64_t>(values_[i].size()) / columns;
    const int64_t of_block = std::max<int64_t>(1, kElements / columns);
    parallel_for(threads, (rows + of_block - 1) / of_block, [&](int64_t block) {
      const int64_t first = block * of_block, at = first * columns;
      sink({static_cast<int>(i), first, std::min(of_block, rows - first), columns, values_[i].data() + at,
            magnitudes_[i].data() + at, roundings_[i].data() + at,
            spreads_[i].empty() ? nullptr : spreads_[i].data() + at,
            deviations_[i].empty() ? nullptr : deviations_[i].data() + at});
    });
  }
}

GoldReplay StoredGolds::replay() {
  return [this](unsigned threads, const ActiveRecipes& recipes, const GoldSink& sink) {
    if (recipes.none()) return plain_.replay(threads, sink);
    by_recipes_.try_emplace({recipes.names(), recipes.numbers()}, c_, inputs_, threads, recipes)
        .first->second.replay(threads, sink);
  };
}

}  // namespace checkop
