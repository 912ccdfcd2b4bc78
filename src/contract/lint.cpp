// SPDX-License-Identifier: Apache-2.0
// The checks of lint(), one function each.
#include "contract/lint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "contract/rule_table.hpp"

namespace checkop {
namespace {

using Findings = std::vector<Finding>;

void find_expired(const Contract& contract, Findings& found) {
  const auto look = [&](const std::string& path, const Grant& grant) {
    if (grant.expired(contract.date()))
      found.push_back(
          {path, fmt::format("expired on {}; renew or remove it (owner: {})", to_string(*grant.expires), grant.owner)});
  };
  for (const Overlay& overlay : contract.table().overlays) look(overlay.path, overlay.grant);
  for (const KnownEntry& entry : contract.table().known) look(entry.failure.path, entry.grant);
}

void find_idle_numbers(const Contract& contract, Findings& found) {
  const RuleTable& table = contract.table();
  for (const Overlay& overlay : table.overlays) {
    // For each number, in the order of the file's metrics: whether it differs from any value that it may replace.
    std::vector<std::pair<std::string, bool>> changes;
    for (const GateNumbers& numbers : overlay.set)
      for (const GateNumbers::Number& number : numbers.set)
        changes.emplace_back(fmt::format("{}.{}", to_string(numbers.metric), number.key->name), false);
    for_each_gate(overlay, table, contract.path(),
                  [&](const auto& target, const Rule& rule, const Gate& gate, const GateNumbers& numbers) {
                    for (const GateNumbers::Number& number : numbers.set)
                      for (const Underneath& below :
                           what_lies_below(overlay, table.overlays, target, rule, gate, *number.key, contract.path())) {
                        if (below.value == number.value()) continue;
                        const std::string name = fmt::format("{}.{}", to_string(numbers.metric), number.key->name);
                        std::find_if(changes.begin(), changes.end(), [&](const auto& c) {
                          return c.first == name;
                        })->second = true;
                      }
                  });
    for (const auto& [name, changed] : changes)
      if (!changed)
        found.push_back(
            {fmt::format("{}.set.{}", overlay.path, name), "has no effect: it equals the value that it replaces"});
  }
}

/// The `left_out` that would apply at `target` without `overlay`, for every subject that it fits.
LeftOut left_out_below(const Overlay& overlay, const Contract& contract, const JudgedOutput& target) {
  const Rule* rule = most_specific(contract.table().rules, target, contract.path());
  LeftOut below = rule == nullptr ? LeftOut::nonfinite : rule->left_out.value_or(LeftOut::nonfinite);
  for (const Overlay& other : contract.table().overlays) {
    if (&other != &overlay && other.left_out && other.match.specificity() < overlay.match.specificity() &&
        other.match.covers(overlay.match) && other.match.fits(target) && !other.grant.expired(contract.date()))
      below = *other.left_out;
  }
  return below;
}

void find_idle_left_out(const Contract& contract, Findings& found) {
  const std::vector<JudgedOutput> targets = all_targets();
  for (const Overlay& overlay : contract.table().overlays) {
    if (overlay.left_out && std::none_of(targets.begin(), targets.end(), [&](const JudgedOutput& target) {
          return overlay.match.fits(target) && !target.op->left_out.empty() &&
                 left_out_below(overlay, contract, target) != *overlay.left_out;
        }))
      found.push_back({overlay.path + ".left_out", "has no effect: it equals the value that it replaces"});
  }
}

/// A more specific overlay that sets the number everywhere where `overlay` would; nullptr: none.
const Overlay* shadow_of(const Overlay& overlay, const Contract& contract, const JudgedOutput& target, Metric metric,
                         const GateKey& key) {
  for (const Overlay& other : contract.table().overlays) {
    if (other.match.specificity() <= overlay.match.specificity() || other.grant.expired(contract.date())) continue;
    if (other.match.covers(overlay.match) && other.match.fits(target) && other.find(metric, &key) != nullptr)
      return &other;
  }
  return nullptr;
}

void find_shadowed_overlays(const Contract& contract, Findings& found) {
  for (const Overlay& overlay : contract.table().overlays) {
    std::set<std::string> shadows;
    bool seen = false;
    for_each_gate(overlay, contract.table(), contract.path(),
                  [&](const JudgedOutput& target, const auto&, const Gate& gate, const GateNumbers& numbers) {
                    for (const GateNumbers::Number& number : numbers.set) {
                      const Overlay* shadow = shadow_of(overlay, contract, target, gate.metric, *number.key);
                      seen |= shadow == nullptr;
                      if (shadow != nullptr) shadows.insert(shadow->path);
                    }
                  });
    if (!seen && !shadows.empty() && overlay.added.gates.empty() && overlay.recipes.empty() && !overlay.left_out)
      found.push_back({overlay.path, fmt::format("has no effect: {} set the same numbers and are more specific",
                                                 fmt::join(shadows, ", "))});
  }
}

void find_idle_rules(const Contract& contract, Findings& found) {
  const RuleTable& table = contract.table();
  for (const Rule& rule : table.rules) {
    std::set<std::string> others;
    bool judges = false;
    for (const JudgedOutput& target : all_targets()) {
      if (!rule.match.fits(target)) continue;
      const Rule* chosen = most_specific(table.rules, target, contract.path());
      judges |= chosen == &rule;
      if (chosen != &rule) others.insert(chosen->path);
    }
    if (judges || (others.empty() && rule.match.may_fit_files())) continue;
    found.push_back({rule.path, others.empty() ? "judges nothing: no operator has such an output"
                                               : fmt::format("judges nothing: {} take all its outputs and are more "
                                                             "specific",
                                                             fmt::join(others, ", "))});
  }
}

/// Whether the entry can match any case, of any sizes.
bool can_match(const KnownEntry& entry) {
  for (const JudgedOutput& target : all_targets()) {
    Case c;
    c.op = target.op;
    c.pass = target.pass;
    c.dtype = target.case_dtype;
    const std::string any_size = fmt::format("{}-{}-*", target.op->name, info(target.case_dtype).name);
    if (entry.fits_all_but_name(c) && (entry.cases.empty() || globs_overlap(entry.cases, any_size))) return true;
  }
  return false;
}

void find_idle_known(const Contract& contract, Findings& found) {
  for (const KnownEntry& entry : contract.table().known)
    if (!can_match(entry)) found.push_back({entry.failure.path, "matches no check: no operator has such a case"});
}

}  // namespace

std::vector<Finding> lint(const Contract& contract) {
  Findings found;
  for (const auto look :
       {find_expired, find_idle_numbers, find_idle_left_out, find_shadowed_overlays, find_idle_rules, find_idle_known})
    look(contract, found);
  return found;
}

}  // namespace checkop
