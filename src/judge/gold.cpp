// SPDX-License-Identifier: Apache-2.0
// Runs the gold and streams its rows into the comparisons.
#include "judge/gold.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>

#include "base/clock.hpp"
#include "base/parallel.hpp"
#include "case/sampling.hpp"
#include "judge/gold_faults.hpp"
#include "judge/model_bits.hpp"
#include "judge/recipe_sets.hpp"
#include "judge/residuals.hpp"

namespace checkop {

void GoldArgs::parallel_for(int64_t n, const std::function<void(int64_t)>& body) const {
  checkop::parallel_for(threads, n, body);
}

void IdentityArgs::parallel_for(int64_t n, const std::function<void(int64_t)>& body) const {
  checkop::parallel_for(threads, n, body);
}

const RowSet& GoldArgs::rows(int output) const {
  static const RowSet kAll;
  return row_sets.empty() ? kAll : row_sets[static_cast<size_t>(output)];
}

void GoldArgs::for_rows(int output, int64_t total, const std::function<void(int64_t)>& body) const {
  const RowSet& set = rows(output);
  parallel_for(set.count(total), [&](int64_t i) { body(set.at(i)); });
}

namespace {

constexpr double kMostRecipeWork = 4e11;  // of all sets of recipes that nobody granted, in units of gold_work()

constexpr double kNoiseLimit = 1;  // of noise_rms, where recipes widen the bounds of elements

/// Calls body with the GoldArgs of the case.
template <typename Body>
auto with_gold_args(const Case& c, const std::vector<Tensor>& inputs, unsigned threads, const GoldSink& sink,
                    const std::vector<RowSet>& rows, const ActiveRecipes& recipes, KeptResults* kept,
                    const Body& body) {
  std::vector<const Tensor*> present;
  for (const Tensor& tensor : inputs) present.push_back(tensor.name.empty() ? nullptr : &tensor);
  std::vector<Shape> output_shapes;
  for (const OutputSpec& spec : c.pass->outputs) {
    output_shapes.push_back(is_present(c, spec.tensor) ? shape_of(c, spec.tensor) : Shape());
  }
  return body(GoldArgs{present, c.attrs, threads, sink, output_shapes, rows, recipes, kept});
}

}  // namespace

void run_gold(const Case& c, const std::vector<Tensor>& inputs, unsigned threads, const GoldSink& sink,
              const std::vector<RowSet>& rows, const ActiveRecipes& recipes, KeptResults* kept) {
  with_gold_args(c, inputs, threads, sink, rows, recipes, kept, c.pass->gold);
}

Cost cost_of(const Case& c, const std::vector<Tensor>& inputs) {
  Work work;
  if (c.pass->work != nullptr) work = with_gold_args(c, inputs, 1, {}, {}, {}, nullptr, c.pass->work);
  double bytes = -work.unread_bytes;
  for (const Tensor& tensor : inputs) bytes += static_cast<double>(tensor.bytes.size());
  for (const OutputSpec& spec : c.pass->outputs) {
    if (!is_present(c, spec.tensor)) continue;
    const int64_t count = element_count(shape_of(c, spec.tensor));
    bytes += static_cast<double>(count) * static_cast<double>(info(dtype_of(c, spec.tensor)).bytes);
  }
  return {work.flops, bytes};
}

int64_t sum_terms(const Case& c, const OutputSpec& output) {
  int64_t longest = 1;
  for (const std::string_view sum : split_dims(output.reduced)) longest = std::max(longest, extent_of(c, sum));
  return longest;
}

namespace {

using Names = RecipeSet;

/// The outputs of a candidate, the gates that they have to pass, and the gold.
class Judge {
 public:
  Judge(const Case& c, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs, const Contract& contract,
        const Subject& subject, unsigned threads, const std::vector<RowSet>& rows, const GoldReplay& stored,
        EmulatedFaults* emulated)
      : c_(c),
        inputs_(inputs),
        outputs_(outputs),
        contract_(contract),
        threads_(threads),
        copies_outputs_(subject.copies_outputs),
        stored_(stored),
        emulated_(emulated),
        sets_(rows.empty() ? std::vector<RowSet>(outputs.size()) : rows),
        gates_(outputs.size()),
        terms_(outputs.size()),
        telling_rows_(outputs.size()) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].name.empty()) continue;
      const OutputSpec& spec = c.pass->outputs[i];
      gates_[i] = contract.gates_for(c, spec, subject);
      // Equal inputs repeat one error many times, so its sign says nothing about bias.
      if (c.input_mode == InputMode::constant)
        std::erase_if(gates_[i].all, [](const Gate& gate) { return gate.metric == Metric::bias_t; });
      if (c.pass->identities == nullptr)
        std::erase_if(gates_[i].all, [](const Gate& gate) { return gate.metric == Metric::identities; });
      terms_[i] = sum_terms(c, spec);
    }
  }

  std::vector<Comparison> judged(GoldTimes* times, RecipeSearch search) {
    std::vector<std::optional<OutputComparison>> compared;
    std::vector<Comparison> results = once(outputs_, {}, sets_, times, &compared);
    for (size_t i = 0; i < results.size(); ++i) {
      if (outputs_[i].name.empty() || results[i].passed()) continue;
      note_telling_rows(i, results[i]);
      search == RecipeSearch::every_set ? find_every_set(i, results[i]) : try_recipes(i, results[i]);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      results[i].granted = gates_[i].recipes;
      reject_trivial_answers(i, results[i]);
    }
    diagnose(compared, results);
    return results;
  }

 private:
  void diagnose(const std::vector<std::optional<OutputComparison>>& compared, std::vector<Comparison>& results) const {
    const bool any_fails =
        std::any_of(results.begin(), results.end(), [](const Comparison& result) { return result.out_of_bound > 0; });
    if (!any_fails || inputs_.empty() || (stored_ && emulated_ == nullptr)) return;
    EmulatedFaults own(c_, inputs_, threads_);
    diagnose_outputs({c_, inputs_, outputs_, compared, sets_, threads_, &kept_},
                     emulated_ != nullptr ? *emulated_ : own, results, !copies_outputs_);
  }

  /// One run of the gold with `recipes` for the rows `sets`, compared with `outputs`.
  std::vector<Comparison> once(const std::vector<Tensor>& outputs, const Names& recipes,
                               const std::vector<RowSet>& sets, GoldTimes* times = nullptr,
                               std::vector<std::optional<OutputComparison>>* compared = nullptr) const {
    std::vector<std::optional<OutputComparison>> comparisons(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].name.empty()) continue;
      const OutputSpec& spec = c_.pass->outputs[i];
      comparisons[i].emplace(outputs[i].dtype, outputs[i].bytes.data(),
                             judged_view(*c_.op, spec.tensor, outputs[i].shape), gates_under(i, recipes), terms_[i],
                             sets[i], token_quantity(spec));
    }
    std::atomic<int64_t> compare_ns{0};
    const auto start = Clock::now();
    const auto ms = [](Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); };
    const auto compare = [&](const GoldRows& block) {
      const auto before = Clock::now();
      if (auto& comparison = comparisons[static_cast<size_t>(block.output)]) comparison->add(block);
      compare_ns += std::chrono::nanoseconds(Clock::now() - before).count();
    };
    const ActiveRecipes active = active_recipes(recipes);
    if (stored_) {
      stored_(threads_, active, compare);
    } else {
      run_gold(c_, inputs_, threads_, compare, sets, active, &kept_);
    }
    const auto identities_start = Clock::now();
    std::vector<Comparison> results;
    for (const auto& comparison : comparisons) results.push_back(comparison ? comparison->finish() : Comparison{});
    check_identities(c_, inputs_, outputs, gates_, terms_, sets_, threads_, active, results);
    check_model(c_, inputs_, outputs, gates_, terms_, sets_, threads_, results);
    if (times != nullptr) {
      const auto end = Clock::now();
      times->wall_ms = ms(end - start);
      times->compare_ms = static_cast<double>(compare_ns) / 1e6 / std::max(1u, threads_) + ms(end - identities_start);
    }
    if (compared != nullptr) *compared = std::move(comparisons);
    return results;
  }

  /// The gates of output i. Recipes with a spread loosen the bound of each element; noise_rms then judges all together.
  Gates gates_under(size_t i, const Names& recipes) const {
    Gates gates = gates_[i];
    bool spreads = false, bounded = false, judged = false;
    for (const Recipe* recipe : recipes_of(*c_.pass, c_.pass->outputs[i].tensor, c_.dtype)) {
      if (recipe->exact || !is_part_of({recipe->name}, recipes)) continue;
      spreads = true;
      if (recipe->independent.empty()) continue;
      int64_t errors = 1;
      for (const std::string_view dim : split_dims(recipe->independent)) errors *= extent_of(c_, dim);
      gates.independent = gates.independent == 0 ? errors : std::min(gates.independent, errors);
    }
    for (const Gate& gate : gates.all) {
      bounded |= gate.metric == Metric::bound_ratio;
      judged |= gate.metric == Metric::noise_rms;
    }
    // Equal inputs repeat one error many times.
    if (!spreads || !bounded || judged || c_.input_mode == InputMode::constant) return gates;
    Gate noise;
    noise.metric = Metric::noise_rms, noise.limit = kNoiseLimit, noise.source = "recipes";
    gates.all.push_back(noise);
    return gates;
  }

  ActiveRecipes active_recipes(const Names& names) const {
    if (names.empty()) return {};
    std::vector<ActiveRecipes::Numbers> numbers;
    const double unit = unit_roundoff(DType::f32);  // of the arithmetic: no case of fp64 has recipes
    for (size_t i = 0; i < gates_.size(); ++i) {
      ActiveRecipes::Numbers of_output;
      for (const Gate& gate : gates_[i].all) {
        if (gate.metric != Metric::bound_ratio) continue;
        const PreparedGate prepared(gate, DType::f32, terms_[i]);
        of_output = {prepared.growth + prepared.bias, gate.lambda};
      }
      numbers.push_back(of_output);
    }
    return {names, c_.dtype, unit, std::move(numbers), c_.input_mode == InputMode::constant};
  }

  /// Output i fails. Judges it under the smallest set of granted recipes with which it passes. If there is none, finds
  /// out whether recipes that are not granted would let it pass.
  void try_recipes(size_t i, Comparison& result) {
    const std::vector<const Recipe*> known = recipes_of(*c_.pass, c_.pass->outputs[i].tensor, c_.dtype);
    // No rounding makes a non-finite element finite. Without inputs there is only a stored gold.
    if (known.empty() || result.nonfinite > 0 || inputs_.empty()) return;
    Names all, granted;
    for (const Recipe* recipe : known) all.push_back(recipe->name);
    for (const RecipeGrant& grant : gates_[i].recipes) granted.push_back(grant.name);
    const std::vector<Names> sets = sets_to_try(known);
    if (const Names* set = first_that_passes(i, known, sets, {}, granted)) {
      result = judged_by(i, *set);
      result.recipes.assign(set->begin(), set->end());
      return;
    }
    const double work = std::min(gold_work(c_), contract_.sampling().above);
    // Counts the sets of all recipes, so that optional inputs do not decide whether there is a search.
    if (stored_ || work * static_cast<double>(recipe_sets(known).size()) > kMostRecipeWork) return;
    result.tried_recipes = true;
    if (const Names* set = first_that_passes(i, known, sets, granted, all))
      result.passes_under.assign(set->begin(), set->end());
  }

  /// Output i fails. Finds the minimal sets of recipes, granted or not, under which it would pass.
  void find_every_set(size_t i, Comparison& result) {
    const std::vector<const Recipe*> known = recipes_of(*c_.pass, c_.pass->outputs[i].tensor, c_.dtype);
    if (known.empty() || result.nonfinite > 0 || inputs_.empty()) return;
    Names all;
    for (const Recipe* recipe : known) all.push_back(recipe->name);
    std::vector<Names> found;
    for (const Names& set : sets_to_try(known)) {
      const bool has_part =
          std::any_of(found.begin(), found.end(), [&](const Names& part) { return is_part_of(part, set); });
      if (!has_part && passes_by(i, known, set, all)) found.push_back(set);
    }
    result.tried_recipes = true;
    for (const Names& set : found) result.every_set.emplace_back(set.begin(), set.end());
    if (!found.empty()) result.passes_under = result.every_set.front();
  }

  /// Sets of the recipes that round anything in the case. With another one, a set passes if it passes without.
  std::vector<Names> sets_to_try(std::vector<const Recipe*> known) const {
    const auto differs = [&](std::string_view name) {
      const auto attrs = c_.op->attrs;
      const auto at = std::ranges::find(attrs, name, &AttrSpec::name);
      return c_.optionals.contains(name) ||
             (at != attrs.end() && c_.attrs[static_cast<size_t>(at - attrs.begin())] != at->fallback);
    };
    std::erase_if(known, [&](const Recipe* recipe) {
      return !recipe->needs.empty() && std::ranges::none_of(split_dims(recipe->needs), differs);
    });
    return recipe_sets(known);
  }

  /// The first of `sets` that is a subset of `allowed`, not of `tried`, and by which output i passes; nullptr for none.
  const Names* first_that_passes(size_t i, const std::vector<const Recipe*>& known, const std::vector<Names>& sets,
                                 const Names& tried, const Names& allowed) {
    for (const Names& set : sets) {
      if (is_part_of(set, allowed) && !is_part_of(set, tried) && passes_by(i, known, set, allowed)) return &set;
    }
    return nullptr;
  }

  /// Whether output i passes under `set`, a subset of `allowed`. Recipes that leave the gold as it is only widen
  /// bounds. So in the telling rows the other recipes of `set` are first tried together with all allowed recipes of
  /// that kind: if that fails, `set` fails too.
  bool passes_by(size_t i, const std::vector<const Recipe*>& known, const Names& set, const Names& allowed) {
    Names widest;
    for (const Recipe* recipe : known) {
      if (is_part_of({recipe->name}, recipe->changes_gold() ? set : allowed)) widest.push_back(recipe->name);
    }
    if (!passes_in_telling_rows(i, widest) || !passes_in_telling_rows(i, set)) return false;
    const Comparison& of_set = judged_by(i, set);
    note_telling_rows(i, of_set);
    return of_set.passed();
  }

  /// The rows of the worst and the first failing element are likely to fail under other sets, too.
  void note_telling_rows(size_t i, const Comparison& result) {
    if (!has_quick_rows(i) || result.out_of_bound == 0) return;
    const MatrixView view = judged_view(*c_.op, c_.pass->outputs[i].tensor, outputs_[i].shape);
    for (const auto& element : {result.worst, result.first}) {
      if (!element) continue;
      const int64_t row = element->index / view.columns;
      if (std::ranges::count(telling_rows_[i], row) == 0) telling_rows_[i].push_back(row);
    }
  }

  /// Whether output i is within its bounds under `set` in the rows in which other sets failed. If it is not, the much
  /// slower gold of all rows is not needed. If no rows are quick, in all rows.
  bool passes_in_telling_rows(size_t i, const Names& set) {
    if (!has_quick_rows(i) || by_recipes_.contains({i, set})) return judged_by(i, set).out_of_bound == 0;
    const std::vector<int64_t>& rows = telling_rows_[i];
    auto& [passes, tried] = in_telling_rows_[{i, set}];
    if (!passes || tried == rows.size()) return passes;
    RowSet chosen{false, {rows.begin() + static_cast<std::ptrdiff_t>(tried), rows.end()}};
    std::ranges::sort(chosen.chosen);
    tried = rows.size();
    return passes = passes_in_rows(i, set, chosen);
  }

  /// Whether these rows of output i, which the gold can compute alone, are within their bounds under `set`.
  bool passes_in_rows(size_t i, const Names& set, const RowSet& chosen) const {
    const OutputSpec& output = c_.pass->outputs[i];
    OutputComparison comparison(outputs_[i].dtype, outputs_[i].bytes.data(),
                                judged_view(*c_.op, output.tensor, outputs_[i].shape), gates_under(i, set), terms_[i],
                                chosen, token_quantity(output));
    const auto compare = [&](const GoldRows& block) {
      if (block.output == static_cast<int>(i)) comparison.add(block);
    };
    run_gold(c_, inputs_, threads_, compare, rows_of(c_, output, chosen.chosen), active_recipes(set), &kept_);
    return comparison.finish().out_of_bound == 0;
  }

  bool has_single_rows(size_t i) const { return !stored_ && c_.pass->outputs[i].sampled; }
  /// Whether the gold of a row or two of output i takes much less time than that of the judged ones: not if each takes
  /// the time of an entry, and no others are judged.
  bool has_quick_rows(size_t i) const {
    const OutputSpec& spec = c_.pass->outputs[i];
    return has_single_rows(i) &&
           (spec.sampled_whole.empty() || (sets_[i].all && entries_of(c_, spec) > kSampledEntries));
  }
  /// Output i is judged together with the outputs of this group.
  std::string group_of(size_t i) const {
    return has_single_rows(i) ? row_group(c_, c_.pass->outputs[i].tensor) : std::string();
  }

  /// Output i under `set`. The gold computes no row of sampled outputs that other groups hold. The run serves the other
  /// outputs of the group, too.
  const Comparison& judged_by(size_t i, const Names& set) {
    const auto known = by_recipes_.find({i, set});
    if (known != by_recipes_.end()) return known->second;
    const std::string group = group_of(i);
    std::vector<RowSet> sets = sets_;
    for (size_t k = 0; k < sets.size(); ++k)
      if (has_single_rows(k) && group_of(k) != group) sets[k] = {false};
    const Names joint = joined(i, set);
    std::vector<Comparison> judged = once(outputs_, joint, sets);
    for (size_t k = 0; k < judged.size(); ++k)
      if (k != i && group_of(k) == group) by_recipes_.try_emplace({k, part_of(k, joint)}, std::move(judged[k]));
    return by_recipes_.try_emplace({i, set}, std::move(judged[i])).first->second;
  }

  std::vector<const Recipe*> recipes_for(size_t i) const {
    return recipes_of(*c_.pass, c_.pass->outputs[i].tensor, c_.dtype);
  }
  /// Those of `set` that output i has.
  Names part_of(size_t i, const Names& set) const {
    Names part;
    for (const Recipe* recipe : recipes_for(i))
      if (is_part_of({recipe->name}, set)) part.push_back(recipe->name);
    return part;
  }
  /// `set`, some recipes of output i, and granted ones that only other outputs of its group have. They widen bounds
  /// of those outputs alone, so output i is judged as under `set`; see Recipe::outputs.
  Names joined(size_t i, const Names& set) const {
    Names joint = set;
    for (size_t k = 0; k < gates_.size(); ++k) {
      if (group_of(k) != group_of(i)) continue;
      for (const Recipe* recipe : recipes_for(k)) {
        if (lists(recipe->outputs, c_.pass->outputs[i].tensor.name) || recipe->changes_gold()) continue;
        const bool is_granted = std::ranges::count(gates_[k].recipes, recipe->name, &RecipeGrant::name) > 0;
        const bool is_excluded = std::ranges::any_of(c_.pass->recipes, [&](const Recipe& other) {
          return is_part_of({other.name}, joint) && (&other == recipe || exclude_each_other(other, *recipe));
        });
        if (is_granted && !is_excluded) joint.push_back(recipe->name);
      }
    }
    return joint;
  }

  /// Removes the trivial answers from would_pass that the gates of the whole output reject.
  void reject_trivial_answers(size_t i, Comparison& result) const {
    const bool by_elements_alone = std::all_of(result.gates.begin(), result.gates.end(),
                                               [](const GateResult& gate) { return is_elementwise(gate.metric); });
    if (!result.passed() || by_elements_alone) return;
    const Names recipes(result.recipes.begin(), result.recipes.end());
    std::erase_if(result.would_pass, [&](Trivial answer) {
      std::vector<Tensor> tried;
      for (const Tensor& output : outputs_) tried.push_back(copy_of(output));
      tried[i] =
          trivial_tensor(answer, outputs_[i], judged_view(*c_.op, c_.pass->outputs[i].tensor, outputs_[i].shape));
      return !once(tried, recipes, sets_)[i].passed();
    });
  }

  static Tensor copy_of(const Tensor& tensor) {
    if (tensor.name.empty()) return {};
    Tensor copy(tensor.name, tensor.dtype, tensor.shape);
    std::copy_n(tensor.bytes.data(), tensor.bytes.size(), copy.bytes.data());
    return copy;
  }

  const Case& c_;
  const std::vector<Tensor>&inputs_, &outputs_;
  const Contract& contract_;
  const unsigned threads_;
  const bool copies_outputs_;
  const GoldReplay& stored_;
  EmulatedFaults* const emulated_;
  const std::vector<RowSet> sets_;
  std::vector<Gates> gates_;
  std::vector<int64_t> terms_;
  mutable KeptResults kept_;
  std::map<std::pair<size_t, Names>, Comparison> by_recipes_;  ///< by output and some of its recipes
  std::vector<std::vector<int64_t>> telling_rows_;  ///< by output: of the worst and the first failing elements,
                                                    ///< without recipes and under sets that failed
  struct InTellingRows {
    bool passes = true;
    size_t tried = 0;  ///< how many of telling_rows_, from the front
  };
  std::map<std::pair<size_t, Names>, InTellingRows> in_telling_rows_;  ///< by output and recipes
};

}  // namespace

std::vector<Comparison> judge_outputs(const Case& c, const std::vector<Tensor>& inputs,
                                      const std::vector<Tensor>& outputs, const Contract& contract,
                                      const Subject& subject, unsigned threads, const std::vector<RowSet>& rows,
                                      GoldTimes* times, const GoldReplay& stored, RecipeSearch search,
                                      EmulatedFaults* emulated) {
  return Judge(c, inputs, outputs, contract, subject, threads, rows, stored, emulated).judged(times, search);
}

bool accepts_finite(const Case& c, const std::vector<Comparison>& with_nan, const Contract& contract,
                    const Subject& subject) {
  bool any_fails = false;
  for (size_t i = 0; i < c.pass->outputs.size(); ++i) {
    const OutputSpec& spec = c.pass->outputs[i];
    const bool holds = i < with_nan.size() && (with_nan[i].expected == 0 || with_nan[i].passed());
    if (!is_present(c, spec.tensor) || holds) continue;
    if (contract.gates_for(c, spec, subject).left_out.content != LeftOut::finite) return false;
    any_fails = true;
  }
  return any_fails;
}

}  // namespace checkop
