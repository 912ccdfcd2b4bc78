// SPDX-License-Identifier: Apache-2.0
// Compares two contracts.
#include "contract/diff.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "contract/rule_table.hpp"

namespace checkop {
namespace {

std::optional<Gates> gates_or_none(const Contract& contract, const Case& c, const OutputSpec& output,
                                   const Subject& subject) {
  const JudgedOutput target{c.op, c.pass, &output, dtype_of(c, output.tensor), c.dtype};
  if (most_specific(contract.table().rules, target, contract.path()) == nullptr) return {};
  return contract.gates_for(c, output, subject);
}

const Gate* find(const Gates& gates, Metric metric) {
  const auto found =
      std::find_if(gates.all.begin(), gates.all.end(), [metric](const Gate& gate) { return gate.metric == metric; });
  return found == gates.all.end() ? nullptr : &*found;
}

Tendency tendency_of(const GateKey& key, double a, double b) {
  const bool looser = loosens(key, a, b), tighter = loosens(key, b, a);
  return looser == tighter ? Tendency::either : looser ? Tendency::looser : Tendency::tighter;
}

/// Adds a change for something that only one contract asks for; asking is stricter.
void add_asked(const std::string& what, bool a, bool b, std::vector<Change>& changes) {
  if (a == b) return;
  const auto word = [](bool asked) { return asked ? "asked" : "not asked"; };
  changes.push_back({a ? Tendency::looser : Tendency::tighter, what, word(a), word(b)});
}

void diff_gates(const Gates& a, const Gates& b, std::vector<Change>& changes) {
  for (const Metric metric : all_metrics()) {
    const Gate *in_a = find(a, metric), *in_b = find(b, metric);
    add_asked(fmt::format("gate {}", to_string(metric)), in_a != nullptr, in_b != nullptr, changes);
    if (in_a == nullptr || in_b == nullptr) continue;
    for (const GateKey& key : keys_of(metric)) {
      const double from = key.value_in(*in_a), to = key.value_in(*in_b);
      if (from == to) continue;
      changes.push_back({tendency_of(key, from, to), fmt::format("{} {}", to_string(metric), key.name),
                         key.text_in(*in_a), key.text_in(*in_b)});
    }
  }
  add_asked("finite where the gold is not finite", !a.nonfinite_may_match, !b.nonfinite_may_match, changes);
  for (const std::string& recipe : all_recipes()) {
    const auto grants = [&](const Gates& gates, bool if_declared) {
      return std::any_of(gates.recipes.begin(), gates.recipes.end(), [&](const RecipeGrant& grant) {
        return grant.name == recipe && (if_declared || grant.path != kDeclaredRecipes);
      });
    };
    const std::string what = "to do without " + recipe;
    add_asked(what, !grants(a, false), !grants(b, false), changes);
    if (grants(a, false) == grants(b, false))
      add_asked(what + ", declared or not", !grants(a, true), !grants(b, true), changes);
  }
}

/// The expected failures as text, without their positions in the file.
std::set<std::string> expected(const Contract& contract, const Case& c, const Subject& subject) {
  std::set<std::string> all;
  for (const KnownFailure& known : contract.known_for(c, subject))
    all.insert(fmt::format("{}: {}", fmt::join(known.kinds, ", "), known.reason));
  return all;
}

template <class Collect>
std::vector<std::string> named(const Contract& a, const Contract& b, const Collect& collect) {
  std::set<std::string> names;
  for (const Contract* contract : {&a, &b}) {
    for (const Overlay& overlay : contract->table().overlays) names.insert(collect(overlay.match));
    for (const KnownEntry& entry : contract->table().known) names.insert(collect(entry.match));
  }
  names.insert("");
  return {names.begin(), names.end()};
}

}  // namespace

std::string_view to_string(Tendency tendency) {
  switch (tendency) {
    case Tendency::looser:
      return "looser";
    case Tendency::tighter:
      return "tighter";
    case Tendency::either:
      break;
  }
  return "other";
}

std::vector<Change> diff_output(const Contract& a, const Contract& b, const Case& c, const OutputSpec& output,
                                const Subject& subject) {
  std::vector<Change> changes;
  const std::vector<std::string> recipes = all_recipes();
  const Subject declaring{subject.arch_key, subject.candidate, recipes};
  const auto in_a = gates_or_none(a, c, output, declaring), in_b = gates_or_none(b, c, output, declaring);
  add_asked("a rule", in_a.has_value(), in_b.has_value(), changes);
  if (!in_a || !in_b) return changes;
  diff_gates(*in_a, *in_b, changes);
  const auto nonfinite = [](const Gates& gates) { return gates.left_out.content == LeftOut::nonfinite; };
  if (!c.op->left_out.empty())
    add_asked(fmt::format("to be right with NaN in {}", c.op->left_out), nonfinite(*in_a), nonfinite(*in_b), changes);
  const Demands from = a.demands_for(c, output), to = b.demands_for(c, output);
  add_asked("determinism", from.determinism, to.determinism, changes);
  add_asked("batch invariance", from.batch_invariance, to.batch_invariance, changes);
  return changes;
}

std::vector<Change> diff_case(const Contract& a, const Contract& b, const Case& c, const Subject& subject,
                              double work) {
  std::vector<Change> changes;
  const int64_t from = a.sampling().rows_for(work), to = b.sampling().rows_for(work);
  const auto rows = [](int64_t n) { return n == 0 ? std::string("all") : fmt::format("{}", n); };
  if (from != to) {
    const bool looser = from == 0 || (to != 0 && to < from);
    changes.push_back({looser ? Tendency::looser : Tendency::tighter, "rows of the gold", rows(from), rows(to)});
  }
  const std::set<std::string> in_a = expected(a, c, subject), in_b = expected(b, c, subject);
  for (const std::string& entry : in_a)
    if (!in_b.contains(entry)) changes.push_back({Tendency::tighter, "expected failure", entry, "none"});
  for (const std::string& entry : in_b)
    if (!in_a.contains(entry)) changes.push_back({Tendency::looser, "expected failure", "none", entry});
  return changes;
}

std::vector<std::string> archs_named(const Contract& a, const Contract& b) {
  return named(a, b, [](const RuleMatch& match) { return match.arch; });
}

std::vector<std::string> candidates_named(const Contract& a, const Contract& b) {
  return named(a, b, [](const RuleMatch& match) {
    std::string name = match.candidate;
    std::erase(name, '*');
    std::replace(name.begin(), name.end(), '?', 'x');
    return name;
  });
}

}  // namespace checkop
