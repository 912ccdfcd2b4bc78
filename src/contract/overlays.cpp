// SPDX-License-Identifier: Apache-2.0
// Reads overlays, and refuses overlays that tie, loosen without saying so, or have no effect.
#include <utility>

#include "contract/reader.hpp"

namespace checkop {
namespace {

/// Reads "add": the gates that an overlay adds.
void read_added(const JsonValue& json, const RuleTable& table, Overlay& overlay) {
  for (const JsonValue& item : json.items()) read_gate(item, overlay.added);
  if (overlay.added.gates.empty()) json.fail("at least one gate", "remove the key or name what is added");
  bool judges = false;
  for (const JudgedOutput& target : all_targets()) {
    const Rule* rule = overlay.match.fits(target) ? most_specific(table.rules, target, json.file()) : nullptr;
    if (rule == nullptr) continue;
    judges = true;
    for (const Gate& gate : overlay.added.gates)
      if (rule->find(gate.metric) != nullptr)
        throw InputError(gate.source,
                         fmt::format("{} has a gate '{}' for {}", rule->path, to_string(gate.metric), describe(target)),
                         R"(change its numbers with "set")");
    check_gates(overlay.added, *rule, {target}, overlay.path);
  }
  if (!judges) throw InputError(json.where(), "no rule judges these outputs", "name outputs that a rule matches");
  for (const Gate& gate : overlay.added.gates) {
    const std::string_view arch = modelled_arch(gate).key;
    if (gate.metric == Metric::bits_of_model && !overlay.match.arch.empty() && overlay.match.arch != arch)
      throw InputError(gate.source, fmt::format("a model of {}, added for {}", arch, overlay.match.arch),
                       "let both name the same architecture");
  }
}

/// Refuses two overlays that add the same gate to an output.
void check_added(const std::vector<Overlay>& all, const std::string& file) {
  for (const Overlay& a : all) {
    for (const Overlay& b : all) {
      if (&a == &b || !a.match.meets(b.match)) continue;
      for (const Gate& gate : a.added.gates) {
        if (b.added.find(gate.metric) == nullptr) continue;
        for (const JudgedOutput& target : all_targets())
          if (a.match.fits(target) && b.match.fits(target))
            throw InputError(file,
                             fmt::format("{} and {} both add a gate '{}' for {}", a.path, b.path,
                                         to_string(gate.metric), describe(target)),
                             "remove one");
      }
    }
  }
}

/// Refuses two equally specific overlays that say different things of the left-out elements of an output.
void check_left_out(const std::vector<Overlay>& all, const std::string& file) {
  for (const Overlay& a : all) {
    for (const Overlay& b : all) {
      if (!a.left_out || !b.left_out || *a.left_out == *b.left_out || !a.match.meets(b.match) ||
          a.match.specificity() != b.match.specificity())
        continue;
      for (const JudgedOutput& target : all_targets())
        if (a.match.fits(target) && b.match.fits(target))
          throw InputError(file,
                           fmt::format("{} and {} both set left_out of {} and are equally specific", a.path, b.path,
                                       describe(target)),
                           "remove one or let one name more keys");
    }
  }
}

Overlay read_overlay(const JsonValue& json, const RuleTable& table) {
  json.allow_keys({"match", "set", "add", "recipes", "left_out", "reason", "owner", "expires", "loosen"});
  Overlay overlay;
  overlay.path = json.path();
  const JsonValue match = json.at("match");
  overlay.match = read_match(match, {"arch", "candidate"});
  read_subject(match, overlay.match);
  if (overlay.match.arch.empty() && overlay.match.candidate.empty() && !json.has("recipes") && !json.has("left_out"))
    match.fail("an architecture or a candidate",
               R"(add "arch" or "candidate"; what holds everywhere belongs in a rule)");
  if (const auto loosen = json.find("loosen")) overlay.loosen = loosen->boolean();
  overlay.grant = read_grant(json);
  const auto add = json.find("add");
  if (add) read_added(*add, table, overlay);
  if (const auto recipes = json.find("recipes")) {
    overlay.recipes = read_recipes(*recipes, overlay.match);
    if (!overlay.loosen)
      throw InputError(recipes->where(), "a recipe accepts what the rule rejects", R"(say "loosen": true)");
  }
  if (const auto left_out = json.find("left_out")) {
    overlay.left_out = read_left_out(*left_out, overlay.match);
    if (overlay.left_out == LeftOut::finite && !overlay.loosen)
      throw InputError(left_out->where(), "finite accepts what nonfinite rejects", R"(say "loosen": true)");
  }
  if ((add || !overlay.recipes.empty() || overlay.left_out) && !json.has("set")) return overlay;
  const JsonValue set = json.at("set");
  set.allow_keys(names_of(all_metrics()));
  for (const Metric metric : all_metrics()) {
    const auto numbers = set.find(to_string(metric));
    if (!numbers) continue;
    if (numbers->members().empty() || is_of_bits(metric))
      numbers->fail("a number to set", "remove the overlay or name what it changes");
    overlay.set.push_back(read_numbers(*numbers, metric));
    bool judges = false;
    for_each_gate(overlay, table, json.file(),
                  [&](const auto&, const auto&, const Gate& gate, const auto&) { judges |= gate.metric == metric; });
    if (!judges)
      throw InputError(numbers->where(), "no rule that judges these outputs has such a gate",
                       "name a metric that a matching rule has");
  }
  if (overlay.set.empty()) set.fail("at least one metric with numbers", "remove the overlay or name what it changes");
  return overlay;
}

/// Whether any number of `overlay` is looser than a number that it may replace; throws InputError if the overlay lacks
/// "loosen": true.
bool loosens_something(const Overlay& overlay, const std::vector<Overlay>& all, const RuleTable& table,
                       const std::string& file) {
  bool loosened = false;
  for_each_gate(overlay, table, file, [&](const auto& target, const Rule& rule, const Gate& gate, const auto& numbers) {
    for (const GateNumbers::Number& number : numbers.set)
      for (const Underneath& below : what_lies_below(overlay, all, target, rule, gate, *number.key, file)) {
        if (!loosens(*number.key, below.value, number.value())) continue;
        loosened = true;
        if (!overlay.loosen)
          throw InputError(
              fmt::format("{}: {}.set.{}.{}", file, overlay.path, to_string(gate.metric), number.key->name),
              fmt::format("loosens {} from {} to {} for {}", below.path, below.value, number.value(), describe(target)),
              R"(tighten it, or say "loosen": true)");
      }
  });
  return loosened;
}

}  // namespace

std::vector<Underneath> what_lies_below(const Overlay& overlay, const std::vector<Overlay>& all,
                                        const JudgedOutput& target, const Rule& rule, const Gate& gate,
                                        const GateKey& key, const std::string& file) {
  std::vector<Underneath> below{{rule.path, key.value_in(gate)}};
  for (const Overlay& other : all) {
    const GateNumbers::Number* number = other.find(gate.metric, &key);
    if (&other == &overlay || number == nullptr || !other.match.meets(overlay.match) || !other.match.fits(target))
      continue;
    const int order = overlay.match.specificity() - other.match.specificity();
    if (order == 0)
      throw InputError(file,
                       fmt::format("{} and {} both set {} {} of {} and are equally specific", overlay.path, other.path,
                                   to_string(gate.metric), key.name, describe(target)),
                       "remove one or let one name more keys");
    if (order > 0) below.push_back({other.path, number->value()});
  }
  return below;
}

void read_subject(const JsonValue& json, RuleMatch& match) {
  if (const auto arch = json.find("arch")) match.arch = arch->one_of("architecture", all_archs());
  if (const auto candidate = json.find("candidate")) match.candidate = candidate->sentence();
}

Grant read_grant(const JsonValue& json) {
  Grant grant;
  grant.reason = json.at("reason").sentence();
  grant.owner = json.at("owner").sentence();
  const JsonValue expires = json.at("expires");
  if (const std::string text = expires.sentence(); text != "never") {
    grant.expires = parse_date(text);
    if (!grant.expires) expires.fail("a date such as 2027-01-31, or never", "the last day on which it holds");
  }
  return grant;
}

void read_overlays(const JsonValue& list, RuleTable& table) {
  const std::vector<JsonValue> items = list.items();
  std::vector<Overlay> all = std::move(table.overlays);  // of the contract that this one extends
  const size_t of_base = all.size();
  for (const JsonValue& item : items) all.push_back(read_overlay(item, table));
  for (size_t i = of_base; i < all.size(); ++i)
    if (!loosens_something(all[i], all, table, list.file()) && all[i].loosen && !all[i].permits())
      throw InputError(items[i - of_base].where(), R"("loosen" is true and no number becomes looser)", "leave it out");
  std::stable_sort(all.begin(), all.end(),
                   [](const Overlay& a, const Overlay& b) { return a.match.specificity() < b.match.specificity(); });
  check_added(all, list.file());
  check_left_out(all, list.file());
  table.overlays = std::move(all);
}

}  // namespace checkop
