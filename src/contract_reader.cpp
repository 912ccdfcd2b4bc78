// SPDX-License-Identifier: Apache-2.0
// JSON -> RuleTable, for both formats; what is wrong with a contract is found here, before anything runs.
#include <array>
#include <utility>

#include "rule_table.hpp"
#include "text.hpp"

namespace checkop {
namespace {

constexpr std::string_view kFormat = "check_operator/contract-2";
constexpr std::array kNumerics{Numerics::exact,       Numerics::pointwise, Numerics::reduction,
                               Numerics::contraction, Numerics::logprob,   Numerics::composite};
const std::vector<std::string> kSeedClasses{"elementwise", "reduction", "logprob", "attention"};

// --- contract-2 ------------------------------------------------------------------------------------------------------

template <class Array>
std::vector<std::string> names_of(const Array& values) {
  std::vector<std::string> names;
  for (const auto value : values) names.emplace_back(to_string(value));
  return names;
}

template <class Array>
auto read_enum(const JsonValue& json, std::string_view noun, const Array& values) {
  const std::string name = json.one_of(noun, names_of(values));
  return *std::find_if(values.begin(), values.end(), [&name](auto value) { return to_string(value) == name; });
}

DType read_dtype(const JsonValue& json) {
  static const std::vector<std::string> kNames{"fp64", "fp32", "fp16", "bf16", "int64", "int32", "uint8"};
  return *parse_dtype(json.one_of("dtype", kNames));
}

std::vector<std::string> operator_names() {
  std::vector<std::string> names;
  for (const Operator* op : operators()) names.emplace_back(op->name);
  return names;
}

RuleMatch read_match(const JsonValue& json) {
  json.allow_keys({"output", "op", "pass", "dtype", "numerics"});
  RuleMatch match;
  std::vector<std::string> outputs;
  for (const Operator* op : operators())
    for (const Pass& pass : op->passes)
      for (const OutputSpec& output : pass.outputs) outputs.emplace_back(output.tensor.name);
  if (const auto key = json.find("output")) match.output = key->one_of("output", outputs);
  if (const auto key = json.find("op")) match.op = key->one_of("operator", operator_names());
  if (const auto key = json.find("pass")) match.pass = key->one_of("pass", {"forward", "backward"});
  if (const auto key = json.find("numerics")) match.numerics = read_enum(*key, "numeric class", kNumerics);
  if (const auto key = json.find("dtype")) {
    if (!key->is_array()) {
      match.dtypes = {read_dtype(*key)};
    } else {
      for (const JsonValue& item : key->items()) match.dtypes.push_back(read_dtype(item));
      if (match.dtypes.empty()) key->fail("a dtype or a list of dtypes", "remove the key to match every dtype");
    }
  }
  const std::vector<JudgedOutput> targets = all_targets();
  if (std::none_of(targets.begin(), targets.end(), [&match](const JudgedOutput& t) { return match.fits(t); }))
    throw InputError(json.where(), "matches no output of any operator",
                     "'check_operator list' shows the operators; their specs stand in reference/");
  return match;
}

/// Reads what is there; whether a number is required depends on the caller.
GateNumbers read_numbers(const JsonValue& json, Metric metric, std::vector<std::string> other_keys) {
  std::vector<std::string> keys = std::move(other_keys);
  GateNumbers numbers{metric, {}};
  for (const GateKey& key : keys_of(metric)) {
    keys.emplace_back(key.name);
    const auto value = json.find(key.name);
    if (!value) continue;
    if (key.integer != nullptr) numbers.set.push_back({&key, 0, value->integer(static_cast<int64_t>(key.least))});
    if (key.real != nullptr) numbers.set.push_back({&key, value->number(key.least), 0});
  }
  json.allow_keys(keys);
  return numbers;
}

Gate read_gate(const JsonValue& json) {
  const Metric metric = read_enum(json.at("metric"), "metric", all_metrics());
  const GateNumbers numbers = read_numbers(json, metric, {"metric"});
  for (const GateKey& key : keys_of(metric)) {
    if (key.required) json.at(key.name);
  }
  Gate gate;
  numbers.apply(gate);
  gate.source = json.where();
  return gate;
}

/// Refuses gates that could judge nothing, or that lack what they need.
void check_gates(const JsonValue& json, const Rule& rule) {
  const std::vector<JudgedOutput> targets = all_targets();
  for (const Gate& gate : rule.gates) {
    const bool needs_bound = gate.metric == Metric::bias_t || gate.metric == Metric::identities;
    if (needs_bound && !has_gate(rule, Metric::bound_ratio))
      throw InputError(gate.source,
                       fmt::format("'{}' needs a bound_ratio gate in the same rule", to_string(gate.metric)),
                       "its numbers say what the computation may err by");
    bool any_identity = false;
    for (const JudgedOutput& t : targets) {
      if (!rule.match.fits(t)) continue;
      any_identity |= t.pass->identities != nullptr;
      if (is_of_tokens(gate.metric) && token_quantity(*t.output) == TokenQuantity::none)
        throw InputError(gate.source,
                         fmt::format("'{}' is for outputs 'logp' and 'ratio', and the rule matches {}",
                                     to_string(gate.metric), describe(t)),
                         R"(name the output: "match": {"output": "logp"})");
    }
    if (gate.metric == Metric::identities && !any_identity)
      throw InputError(gate.source, "no operator that the rule matches has identities",
                       fmt::format("remove the gate of {}", json.path()));
  }
}

Rule read_rule(const JsonValue& json) {
  json.allow_keys({"match", "gates", "nonfinite", "why"});
  Rule rule;
  rule.path = json.path();
  rule.match = read_match(json.at("match"));
  json.at("why").sentence();
  for (const JsonValue& item : json.at("gates").items()) {
    Gate gate = read_gate(item);
    if (has_gate(rule, gate.metric))
      throw InputError(item.where(), fmt::format("a second gate of metric '{}'", to_string(gate.metric)), "keep one");
    rule.gates.push_back(std::move(gate));
  }
  if (rule.gates.empty()) json.at("gates").fail("at least one gate", "a rule without gates would pass everything");
  if (std::none_of(rule.gates.begin(), rule.gates.end(), [](const Gate& g) { return is_elementwise(g.metric); }))
    json.at("gates").fail("at least one gate of single elements",
                          "add bound_ratio, atol_rtol, ulp or bits: what holds of an output as a whole hides elements");
  check_gates(json, rule);
  if (const auto nonfinite = json.find("nonfinite"))
    rule.nonfinite_may_match = nonfinite->one_of("policy", {"fail", "match"}) == "match";
  return rule;
}

ArchOverride read_override(const JsonValue& json, const std::string& arch, const std::vector<Rule>& rules) {
  json.allow_keys({"match", "set", "reason"});
  ArchOverride override{arch, read_match(json.at("match")), {}, json.path()};
  json.at("reason").sentence();
  const JsonValue set = json.at("set");
  set.allow_keys(names_of(all_metrics()));
  const std::vector<JudgedOutput> targets = all_targets();
  for (const Metric metric : all_metrics()) {
    const auto numbers = set.find(to_string(metric));
    if (!numbers) continue;
    if (numbers->members().empty() || keys_of(metric).empty())
      numbers->fail("a number to set", "remove the override or name what it changes");
    override.set.push_back(read_numbers(*numbers, metric, {}));
    const bool changes_something = std::any_of(targets.begin(), targets.end(), [&](const JudgedOutput& t) {
      const Rule* rule = override.match.fits(t) ? most_specific(rules, t, json.file()) : nullptr;
      return rule && has_gate(*rule, metric);
    });
    if (!changes_something)
      throw InputError(numbers->where(), "no rule that judges these outputs has such a gate",
                       "name a metric that a matching rule has");
  }
  if (override.set.empty()) set.fail("at least one metric with numbers", "remove the override or name what it changes");
  return override;
}

/// What `json` leaves out stays as it is. Keys beside those of Demands are for the caller.
void read_demands(const JsonValue& json, Demands& demands) {
  if (const auto key = json.find("determinism")) demands.determinism = key->boolean();
  if (const auto key = json.find("batch_invariance")) demands.batch_invariance = key->boolean();
}

void read_operator_demands(const JsonValue& json, RuleTable& table) {
  const std::vector<std::string> known = operator_names();
  for (const auto& [op, own] : json.members()) {
    if (std::find(known.begin(), known.end(), op) == known.end()) {
      const std::string hint = did_you_mean(op, known);
      throw InputError(json.where(), fmt::format("unknown operator '{}'", op),
                       hint.empty() ? fmt::format("known: {}", fmt::join(known, ", ")) : hint);
    }
    own.allow_keys({"determinism", "batch_invariance"});
    if (own.members().empty()) own.fail("a demand", "remove the operator or say what is demanded of it");
    read_demands(own, table.operator_demands.emplace(op, table.demands).first->second);
  }
}

void read_contract_2(const JsonValue& root, RuleTable& table) {
  root.allow_keys({"$schema", "format", "name", "rules", "demands", "gold", "arch_overrides"});
  root.at("name").sentence();
  for (const JsonValue& item : root.at("rules").items()) table.rules.push_back(read_rule(item));
  if (table.rules.empty()) root.at("rules").fail("at least one rule");
  if (const auto json = root.find("demands")) {
    json->allow_keys({"determinism", "batch_invariance", "operators"});
    read_demands(*json, table.demands);
    if (const auto own = json->find("operators")) read_operator_demands(*own, table);
  }
  if (const auto json = root.find("gold")) {
    json->allow_keys({"sample_above", "rows", "why"});
    table.sampling = {json->at("sample_above").number(0), json->at("rows").integer(1)};
    json->at("why").sentence();
  }
  if (const auto overrides = root.find("arch_overrides"))
    for (const auto& [arch, list] : overrides->members()) {
      require_known_arch(overrides->where(), arch);
      for (const JsonValue& item : list.items())
        table.overrides[arch].push_back(read_override(item, arch, table.rules));
    }
  // Ties come to light now, not at the first case that meets one.
  for (const JudgedOutput& target : all_targets()) {
    most_specific(table.rules, target, root.file());
    for (const auto& [arch, list] : table.overrides) most_specific(list, target, root.file());
  }
}

// --- the seed's format -----------------------------------------------------------------------------------------------

/// Both spellings are in use: "fp32" and "float32".
DType parse_seed_dtype(const JsonValue& json, const std::string& name) {
  static const std::map<std::string, DType> kNames{
      {"fp64", DType::f64}, {"float64", DType::f64}, {"fp32", DType::f32},  {"float32", DType::f32},
      {"fp16", DType::f16}, {"float16", DType::f16}, {"bf16", DType::bf16}, {"bfloat16", DType::bf16}};
  const auto found = kNames.find(name);
  if (found == kNames.end())
    throw InputError(json.where(), fmt::format("unknown dtype '{}'", name), "known: fp64, fp32, fp16, bf16");
  return found->second;
}

/// Calls body(match, cell) for every op_class -> dtype -> cell.
template <class Body>
void for_each_seed_cell(const JsonValue& json, const Body& body) {
  for (const auto& [op_class, row] : json.members()) {
    json.allow_keys(kSeedClasses);
    for (const auto& [dtype, cell] : row.members()) {
      RuleMatch match;
      match.op_class = op_class;
      match.case_dtype = parse_seed_dtype(row, dtype);
      body(match, cell);
    }
  }
}

auto same_cell(const RuleMatch& match) {
  return [&match](const auto& other) {
    return other.match.op_class == match.op_class && other.match.case_dtype == match.case_dtype;
  };
}

void require_bitwise(const JsonValue& cell) {
  cell.allow_keys({"atol", "rtol"});
  cell.at("atol");
  for (const auto& [key, number] : cell.members())
    if (number.number(0) != 0) number.fail("0", "batch invariance is judged bit by bit, there is no tolerance");
}

/// Either one cell for everything, or {"default": dtype -> cell}; "all" is the same as "default".
void read_seed_invariance(const JsonValue& json, const std::vector<Rule>& rules) {
  if (json.has("atol") || json.has("rtol")) return require_bitwise(json);
  json.allow_keys({"default", "all"});
  std::vector<DType> covered;
  for (const auto& [op_class, row] : json.members())
    for (const auto& [dtype, cell] : row.members()) {
      covered.push_back(parse_seed_dtype(row, dtype));
      require_bitwise(cell);
    }
  for (const Rule& rule : rules)
    if (std::find(covered.begin(), covered.end(), *rule.match.case_dtype) == covered.end())
      throw InputError(json.where(),
                       fmt::format("no cell for {}, which 'accuracy' has", info(*rule.match.case_dtype).name),
                       R"(add {"atol": 0, "rtol": 0})");
}

/// The format chooses cells by the dtype of the case, whose tolerances are for floating-point numbers: a
/// relative 1.6e-2 of an offset of 1000 is 16. Integers are counts and places, and only one is right.
Rule integers_by_bits(const JsonValue& root) {
  Rule rule;
  rule.match.dtypes = {DType::i64, DType::i32, DType::u8};
  Gate gate;
  gate.metric = Metric::bits;
  gate.source = root.where() + ": integers";
  rule.gates.push_back(std::move(gate));
  rule.path = "integers";
  return rule;
}

void read_seed(const JsonValue& root, RuleTable& table) {
  root.allow_keys({"batch_invariance", "accuracy"});
  const JsonValue accuracy = root.at("accuracy");
  accuracy.allow_keys({"default", "arch_overrides"});
  for_each_seed_cell(accuracy.at("default"), [&table](const RuleMatch& match, const JsonValue& cell) {
    if (std::any_of(table.rules.begin(), table.rules.end(), same_cell(match)))
      throw InputError(cell.where(), "the same dtype appears twice under two spellings", "keep one of the two");
    const GateNumbers numbers = read_numbers(cell, Metric::atol_rtol, {});
    cell.at("atol");  // a missing rtol is 0 in this format
    Gate gate;
    numbers.apply(gate);
    gate.source = cell.where();
    table.rules.push_back({match, {gate}, false, cell.path()});
  });
  if (table.rules.empty()) accuracy.at("default").fail("at least one op_class with a dtype");
  read_seed_invariance(root.at("batch_invariance"), table.rules);
  table.rules.push_back(integers_by_bits(root));
  table.demands.batch_invariance = true;
  const auto overrides = accuracy.find("arch_overrides");
  if (!overrides) return;
  for (const auto& [arch, classes] : overrides->members()) {
    require_known_arch(overrides->where(), arch);
    for_each_seed_cell(classes, [&, &arch_key = arch](const RuleMatch& match, const JsonValue& cell) {
      std::vector<ArchOverride>& list = table.overrides[arch_key];
      if (std::any_of(list.begin(), list.end(), same_cell(match)))
        throw InputError(cell.where(), "the same dtype appears twice under two spellings", "keep one of the two");
      if (std::none_of(table.rules.begin(), table.rules.end(), same_cell(match)))
        throw InputError(cell.where(), "overrides a cell that accuracy.default lacks", "add the cell there first");
      list.push_back({arch_key, match, {read_numbers(cell, Metric::atol_rtol, {})}, cell.path()});
    });
  }
}

}  // namespace

void read_contract(const JsonValue& root, RuleTable& table) {
  if (const auto format = root.find("format")) {
    format->one_of("format", {std::string(kFormat)});
    read_contract_2(root, table);
  } else if (root.has("accuracy") || root.has("batch_invariance")) {
    read_seed(root, table);
  } else {
    throw InputError(
        root.where(), root.members().empty() ? "the contract is empty" : "not a contract: no key 'format'",
        fmt::format(R"(write "format": "{}" and rules, or the keys 'accuracy' and 'batch_invariance')", kFormat));
  }
}

}  // namespace checkop
