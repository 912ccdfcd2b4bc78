// SPDX-License-Identifier: Apache-2.0
// Selects the rule and the overlays that judge an output.
#include "contract/contract.hpp"

#include <array>
#include <cmath>
#include <utility>

#include "contract/reader.hpp"

namespace checkop {
namespace {

/// Applies the numbers of `overlay` to the gate at `index`. An expired overlay may only tighten.
void lay_over(const Overlay& overlay, bool expired, size_t index, Gates& gates) {
  Gate& gate = gates.all[index];
  bool applied = false;
  for (const GateNumbers& numbers : overlay.set) {
    if (numbers.metric != gate.metric) continue;
    for (const GateNumbers::Number& number : numbers.set) {
      const double now = number.key->value_in(gate);
      if (expired && loosens(*number.key, now, number.value())) {
        gates.withheld.push_back(fmt::format("{} expired on {}: {} {} stays {}, not {}", overlay.path,
                                             to_string(*overlay.grant.expires), to_string(gate.metric),
                                             number.key->name, now, number.value()));
        continue;
      }
      number.apply(gate);
      applied = true;
      for (NumberSource& source : gates.numbers) {
        if (source.metric != gate.metric || source.key != number.key) continue;
        source.path = overlay.path;
        source.reason = overlay.grant.reason;
      }
    }
  }
  if (applied) gate.source += " + " + overlay.path;
}

/// Applies what `overlay` says of left-out elements. An expired overlay may only tighten.
void lay_over(const Overlay& overlay, bool expired, Gates& gates) {
  if (!expired || *overlay.left_out == LeftOut::nonfinite) {
    gates.left_out = {*overlay.left_out, overlay.path, overlay.grant.reason};
  } else if (gates.left_out.content == LeftOut::nonfinite) {
    gates.withheld.push_back(fmt::format("{} expired on {}: left_out stays nonfinite, not finite", overlay.path,
                                         to_string(*overlay.grant.expires)));
  }
}

/// Adds the gates of `list` that apply to `subject`. A bits_of_model gate applies to the modelled architecture only.
void take(const GateList& list, const Subject& subject, const std::string& reason, Gates& gates) {
  for (size_t i = 0; i < list.gates.size(); ++i) {
    const Gate& gate = list.gates[i];
    if (gate.metric == Metric::bits_of_model && modelled_arch(gate).key != subject.arch_key) continue;
    gates.all.push_back(gate);
    for (const GateKey& key : keys_of(gate.metric))
      gates.numbers.push_back(
          {gate.metric, &key, list.numbers[i].find(&key) == nullptr ? "" : list.gate_paths[i], reason});
  }
}

/// Grants the recipes of `known` that are among `names` and not yet granted.
void grant_recipes(std::span<const std::string> names, const std::vector<const Recipe*>& known, const std::string& path,
                   const std::string& reason, std::vector<RecipeGrant>& granted) {
  for (const Recipe* recipe : known) {
    const bool already = std::any_of(granted.begin(), granted.end(),
                                     [&](const RecipeGrant& grant) { return grant.name == recipe->name; });
    if (lists(names, recipe->name) && !already) granted.push_back({std::string(recipe->name), path, reason});
  }
}

}  // namespace

std::string describe(const JudgedOutput& t) {
  return fmt::format("{}/{} {} {} (case {})", t.op->name, t.pass->name, t.output->tensor.name, info(t.dtype).name,
                     info(t.case_dtype).name);
}

std::vector<JudgedOutput> all_targets() {
  std::vector<JudgedOutput> all;
  for (const Operator* op : operators())
    for (const Pass& pass : op->passes)
      for (const OutputSpec& output : pass.outputs)
        for (const DType dtype : kCaseDTypes) {
          all.push_back({op, &pass, &output, output.tensor.dtype.value_or(dtype), dtype});
          if (!output.tensor.carry.empty() && dtype != DType::f32)
            all.push_back({op, &pass, &output, DType::f32, dtype});
        }
  return all;
}

const Rule* most_specific(const std::vector<Rule>& rules, const JudgedOutput& target, const std::string& file) {
  const Rule *best = nullptr, *equal = nullptr;
  for (const Rule& rule : rules) {
    if (!rule.match.fits(target)) continue;
    const int order = best ? rule.match.specificity() - best->match.specificity() : 1;
    if (order > 0) {
      best = &rule;
      equal = nullptr;
    } else if (order == 0) {
      equal = &rule;
    }
  }
  if (equal)
    throw InputError(
        file,
        fmt::format("{} and {} both match {} and are equally specific", best->path, equal->path, describe(target)),
        "remove one or let one name more keys");
  return best;
}

const std::vector<std::string>& all_archs() {
  static const std::vector<std::string> kArchs{"sm70", "sm75",  "sm80",  "sm86",  "sm87",  "sm89",
                                               "sm90", "sm100", "sm103", "sm110", "sm120", "sm121"};
  return kArchs;
}

void require_known_arch(const std::string& where, std::string_view key) {
  if (is_known_arch(key)) return;
  const std::string hint = did_you_mean(key, all_archs());
  throw InputError(where, fmt::format("unknown architecture '{}'", key),
                   hint.empty() ? "known: " + known_archs() : hint);
}

int64_t chain_length(const Gate& gate, int64_t terms) {
  const int64_t chain = terms / gate.step + (terms % gate.step != 0);
  return gate.max_chain > 0 ? std::min(chain, gate.max_chain) : chain;
}

double sum_growth(const Gate& gate, int64_t terms, double u) {
  return gate.lambda * std::sqrt(static_cast<double>(chain_length(gate, terms))) * u;
}

Contract Contract::load(const std::string& path, Date today) {
  return parse(read_text_file(path, "a contract"), path, today);
}

Contract Contract::parse(std::string_view text, const std::string& path, Date today) {
  const JsonValue root = JsonValue::parse(text, path);
  Contract contract;
  contract.path_ = path;
  contract.today_ = today;
  RuleTable table;
  read_contract(root, table);
  contract.hash_ = fnv1a_hex(std::string(text) + table.base_text);
  contract.table_ = std::make_shared<const RuleTable>(std::move(table));
  return contract;
}

void Contract::grant(std::vector<std::string> recipes) {
  const std::vector<std::string> known = all_recipes();
  for (const std::string& name : recipes) {
    if (lists(known, name)) continue;
    const std::string hint = did_you_mean(name, known);
    throw InputError("--recipe", fmt::format("unknown recipe '{}'", name),
                     hint.empty() ? "'check_operator show OP' lists those of an operator" : hint);
  }
  granted_ = std::move(recipes);
}

Gates Contract::gates_for(const Case& c, const OutputSpec& output, const Subject& subject) const {
  const JudgedOutput target{c.op, c.pass, &output, dtype_of(c, output.tensor), c.dtype};
  if (!subject.arch_key.empty()) require_known_arch("", subject.arch_key);
  const Rule* rule = most_specific(table_->rules, target, path_);
  if (!rule)
    throw InputError(path_, "no rule matches " + describe(target),
                     fmt::format("add one, or choose another dtype than {} or another contract", info(c.dtype).name));
  Gates gates{{}, rule->nonfinite_may_match, path_ + ": " + rule->path, rule->why, {}, {}, {}, {}};
  take(*rule, subject, "", gates);
  const std::vector<const Recipe*> recipes = recipes_of(*c.pass, output.tensor, c.dtype);
  grant_recipes(rule->recipes, recipes, rule->path, "", gates.recipes);
  if (rule->left_out) gates.left_out = {*rule->left_out, rule->path, ""};
  const size_t of_rule = gates.all.size();
  for (const Overlay& overlay : table_->overlays) {
    if (!overlay.match.fits(subject) || !overlay.match.fits(target)) continue;
    for (size_t i = 0; i < of_rule; ++i) lay_over(overlay, overlay.grant.expired(today_), i, gates);
    take(overlay.added, subject, overlay.grant.reason, gates);
    if (overlay.left_out) lay_over(overlay, overlay.grant.expired(today_), gates);
    if (!overlay.grant.expired(today_)) {
      grant_recipes(overlay.recipes, recipes, overlay.path, overlay.grant.reason, gates.recipes);
    } else if (!overlay.recipes.empty()) {
      gates.withheld.push_back(fmt::format("{} expired on {}: it no longer grants {}", overlay.path,
                                           to_string(*overlay.grant.expires), fmt::join(overlay.recipes, ", ")));
    }
  }
  for (const std::string& name : subject.declared) {
    if (lists(table_->declared_recipes, name)) grant_recipes({&name, 1}, recipes, kDeclaredRecipes, "", gates.recipes);
  }
  grant_recipes(granted_, recipes, "--recipe", "", gates.recipes);
  return gates;
}

Demands Contract::demands_for(const Case& c, const OutputSpec& output) const {
  const auto own = table_->operator_demands.find(c.op->name);
  const Demands& demands = own == table_->operator_demands.end() ? table_->demands : own->second;
  Demands own_demands = demands;
  own_demands.batch_invariance &=
      is_per_row(*c.op, output.tensor) || is_carried(c, output.tensor) || is_rearranged(*c.op, output.tensor);
  return own_demands;
}

const Sampling& Contract::sampling() const { return table_->sampling; }

const std::vector<std::string>& known_kinds() {
  static const std::vector<std::string> kKinds{"accuracy",    "nonfinite",  "identity", "unwritten",
                                               "determinism", "invariance", "candidate"};
  return kKinds;
}

std::vector<KnownFailure> Contract::known_for(const Case& c, const Subject& subject) const {
  std::vector<KnownFailure> all;
  for (const KnownEntry& entry : table_->known)
    if (!entry.grant.expired(today_) && entry.fits(c, subject)) all.push_back(entry.failure);
  return all;
}

std::vector<std::string> Contract::warnings() const {
  std::vector<std::string> all;
  const auto warn = [&](const std::string& path, const Grant& grant, std::string_view consequence) {
    if (grant.expired(today_))
      all.push_back(fmt::format("{}: {} of {} expired on {}: {} ({})", path_, path, grant.owner,
                                to_string(*grant.expires), consequence, grant.reason));
  };
  for (const Overlay& overlay : table_->overlays) warn(overlay.path, overlay.grant, "what it loosens no longer holds");
  for (const KnownEntry& entry : table_->known) warn(entry.failure.path, entry.grant, "the failure counts again");
  return all;
}

bool is_known_arch(std::string_view key) {
  return std::find(all_archs().begin(), all_archs().end(), key) != all_archs().end();
}

std::string known_archs() { return fmt::format("{}", fmt::join(all_archs(), ", ")); }

}  // namespace checkop
