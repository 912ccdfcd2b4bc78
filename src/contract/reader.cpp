// SPDX-License-Identifier: Apache-2.0
// Reads contract-2 files into a RuleTable and validates them, before anything runs.
#include "contract/reader.hpp"

#include <array>
#include <filesystem>
#include <set>
#include <utility>

namespace checkop {
namespace {

constexpr std::string_view kFormat = "check_operator/contract-2";
constexpr std::array kNumerics{Numerics::exact,       Numerics::pointwise, Numerics::reduction,
                               Numerics::contraction, Numerics::logprob,   Numerics::composite};

DType read_dtype(const JsonValue& json) {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const DType dtype : kDTypes) names.emplace_back(info(dtype).name);
    return names;
  }();
  return *parse_dtype(json.one_of("dtype", kNames));
}

}  // namespace

std::vector<std::string> operator_names() {
  std::vector<std::string> names;
  for (const Operator* op : operators()) names.emplace_back(op->name);
  return names;
}

void read_dtypes(const JsonValue& json, RuleMatch& match) {
  if (!json.is_array()) {
    match.dtypes = {read_dtype(json)};
    return;
  }
  for (const JsonValue& item : json.items()) match.dtypes.push_back(read_dtype(item));
  if (match.dtypes.empty()) json.fail("a dtype or a list of dtypes", "remove the key to match every dtype");
}

RuleMatch read_match(const JsonValue& json, const std::vector<std::string>& more) {
  std::vector<std::string> keys{"output", "op", "pass", "dtype", "numerics"};
  keys.insert(keys.end(), more.begin(), more.end());
  json.allow_keys(keys);
  RuleMatch match;
  std::vector<std::string> outputs;
  for (const Operator* op : operators())
    for (const Pass& pass : op->passes)
      for (const OutputSpec& output : pass.outputs) outputs.emplace_back(output.tensor.name);
  std::sort(outputs.begin(), outputs.end());
  outputs.erase(std::unique(outputs.begin(), outputs.end()), outputs.end());
  if (const auto key = json.find("output")) match.output = key->one_of("output", outputs);
  if (const auto key = json.find("op")) match.op = key->one_of("operator", operator_names());
  if (const auto key = json.find("pass")) match.pass = key->one_of("pass", {"forward", "backward"});
  if (const auto key = json.find("numerics")) match.numerics = read_enum(*key, "numeric class", kNumerics);
  if (const auto key = json.find("dtype")) read_dtypes(*key, match);
  require_target(json, match);
  return match;
}

void require_target(const JsonValue& json, const RuleMatch& match) {
  if (match.may_fit_files()) return;
  const std::vector<JudgedOutput> targets = all_targets();
  if (std::none_of(targets.begin(), targets.end(), [&match](const JudgedOutput& t) { return match.fits(t); }))
    throw InputError(json.where(), "matches no output of any operator",
                     "'check_operator list' shows the operators; their specs stand in reference/");
}

GateNumbers read_numbers(const JsonValue& json, Metric metric, std::vector<std::string> other_keys) {
  std::vector<std::string> keys = std::move(other_keys);
  GateNumbers numbers{metric, {}};
  for (const GateKey& key : keys_of(metric)) {
    keys.emplace_back(key.name);
    const auto value = json.find(key.name);
    if (!value) continue;
    if (!key.words.empty()) {
      const std::vector<std::string> words(key.words.begin(), key.words.end());
      const auto found = std::find(words.begin(), words.end(), value->one_of(key.name, words));
      numbers.set.push_back({&key, 0, found - words.begin()});
      continue;
    }
    if (key.integer != nullptr) numbers.set.push_back({&key, 0, value->integer(static_cast<int64_t>(key.least))});
    if (key.real != nullptr) numbers.set.push_back({&key, value->number(key.least), 0});
  }
  json.allow_keys(keys);
  return numbers;
}

Gate make_gate(const GateNumbers& numbers, std::string source) {
  Gate gate;
  gate.metric = numbers.metric;
  gate.source = std::move(source);
  for (const GateNumbers::Number& number : numbers.set) number.apply(gate);
  return gate;
}

void read_gate(const JsonValue& json, GateList& list) {
  const Metric metric = read_enum(json.at("metric"), "metric", all_metrics());
  GateNumbers numbers = read_numbers(json, metric, {"metric"});
  for (const GateKey& key : keys_of(metric)) {
    if (key.required) json.at(key.name);
  }
  if (list.find(metric) != nullptr)
    throw InputError(json.where(), fmt::format("a second gate of metric '{}'", to_string(metric)), "keep one");
  list.gates.push_back(make_gate(numbers, json.where()));
  list.numbers.push_back(std::move(numbers));
  list.gate_paths.push_back(json.path());
}

/// `path` is that of the rule or overlay that has the gate.
void check_model(const Gate& gate, const JudgedOutput& t, const std::string& path) {
  if (!has_model(*t.pass, *t.output, t.dtype))
    throw InputError(
        gate.source, fmt::format("{} matches {}, of which there is no model", path, describe(t)),
        R"(products of matmul, det_gemm, lm_head and the grouped ones have one in bf16 and fp16, those of )"
        R"(fp8_block_gemm and its grouped ones also in fp32: name "op" and "dtype", of lm_head also )"
        R"("numerics": "contraction")");
  const ModelledArch& arch = modelled_arch(gate);
  const int64_t block = arch.block_of(*t.pass);
  if (gate.block != block)
    throw InputError(
        gate.source + ".block",
        fmt::format("{} adds {} products of {} at once, not {}, and {} matches {}", arch.key, block,
                    multiplies_codes(*t.pass) ? "e4m3 codes" : "16-bit operands", gate.block, path, describe(t)),
        fmt::format(R"(write "block": {})", block));
}

void check_gates(const GateList& list, const Rule& rule, const std::vector<JudgedOutput>& targets,
                 const std::string& path) {
  for (const Gate& gate : list.gates) {
    const bool needs_bound = gate.metric == Metric::bound_rms || gate.metric == Metric::noise_rms ||
                             gate.metric == Metric::bias_t || gate.metric == Metric::identities;
    if (needs_bound && rule.find(Metric::bound_ratio) == nullptr)
      throw InputError(gate.source,
                       fmt::format("'{}' needs a bound_ratio gate in the same rule", to_string(gate.metric)),
                       "its numbers say what the computation may err by");
    bool any_identity = false;
    for (const JudgedOutput& t : targets) {
      any_identity |= t.pass->identities != nullptr;
      if (is_of_tokens(gate.metric) && token_quantity(*t.output) == TokenQuantity::none)
        throw InputError(gate.source,
                         fmt::format("'{}' is for outputs 'logp' and 'ratio', and {} matches {}",
                                     to_string(gate.metric), path, describe(t)),
                         R"(name the output: "match": {"output": "logp"})");
      if (gate.metric == Metric::bits_of_model) check_model(gate, t, path);
    }
    if (gate.metric == Metric::identities && !any_identity)
      throw InputError(gate.source, fmt::format("no operator that {} matches has identities", path), "remove the gate");
  }
}

std::vector<std::string> read_recipes(const JsonValue& json, const RuleMatch& match) {
  std::set<std::string> known;
  for (const JudgedOutput& target : all_targets()) {
    if (!match.fits(target)) continue;
    for (const Recipe* recipe : recipes_of(*target.pass, target.output->tensor, target.case_dtype))
      known.emplace(recipe->name);
  }
  std::vector<std::string> names;
  for (const JsonValue& item : json.items()) {
    if (known.empty()) item.fail("no recipe", "the outputs that this matches have none; see 'check_operator show OP'");
    names.push_back(item.one_of("recipe", {known.begin(), known.end()}));
  }
  if (names.empty()) json.fail("at least one recipe", "leave the key out where none is granted");
  return names;
}

LeftOut read_left_out(const JsonValue& json, const RuleMatch& match) {
  const std::vector<JudgedOutput> targets = all_targets();
  if (std::none_of(targets.begin(), targets.end(),
                   [&](const JudgedOutput& t) { return match.fits(t) && !t.op->left_out.empty(); }))
    json.fail("no such key", "the operators that this matches leave nothing out");
  return read_enum(json, "content", kLeftOutContents);
}

namespace {

Rule read_rule(const JsonValue& json) {
  json.allow_keys({"match", "gates", "recipes", "left_out", "nonfinite", "elements", "why"});
  Rule rule;
  rule.path = json.path();
  rule.match = read_match(json.at("match"));
  rule.why = json.at("why").sentence();
  if (const auto recipes = json.find("recipes")) rule.recipes = read_recipes(*recipes, rule.match);
  if (const auto left_out = json.find("left_out")) rule.left_out = read_left_out(*left_out, rule.match);
  for (const JsonValue& item : json.at("gates").items()) read_gate(item, rule);
  std::vector<JudgedOutput> targets = all_targets();
  std::erase_if(targets, [&rule](const JudgedOutput& t) { return !rule.match.fits(t); });
  if (rule.gates.empty()) json.at("gates").fail("at least one gate", "a rule without gates would pass everything");
  const bool of_elements =
      std::any_of(rule.gates.begin(), rule.gates.end(), [](const Gate& g) { return is_elementwise(g.metric); });
  const auto elements = json.find("elements");
  if (elements) elements->one_of("policy", {"unjudged"});
  if (elements && of_elements)
    elements->fail("no gate of single elements", "remove the key, or the gate that judges them");
  if (!elements && !of_elements)
    json.at("gates").fail("at least one gate of single elements",
                          "add bound_ratio, atol_rtol, ulp or bits: what holds of an output as a whole hides elements; "
                          "to have it so all the same, write \"elements\": \"unjudged\"");
  if (rule.gates.size() == 1 && rule.gates.front().metric == Metric::bits_of_model)
    json.at("gates").fail("a gate beside bits_of_model", "on other architectures than its own nothing would be judged");
  check_gates(rule, rule, targets, rule.path);
  if (const auto nonfinite = json.find("nonfinite"))
    rule.nonfinite_may_match = nonfinite->one_of("policy", {"fail", "match"}) == "match";
  return rule;
}

/// Reads a list of axes: of invariance, or of determinism.
AxisSet read_axes(const JsonValue& json, bool invariance) {
  std::vector<std::string> known;
  for (const Axis axis : all_axes()) {
    if (is_of_invariance(axis) == invariance) known.emplace_back(to_string(axis));
  }
  AxisSet axes;
  for (const JsonValue& item : json.items()) axes.insert(*parse_axis(item.one_of("axis", known)));
  if (axes == AxisSet()) json.fail("at least one axis", fmt::format("known: {}", fmt::join(known, ", ")));
  return axes;
}

void read_determinism(const JsonValue& json, Demands& demands) {
  constexpr int64_t kMostRuns = 10000;
  json.allow_keys({"runs", "axes"});
  if (json.members().empty()) json.fail("runs or axes", "write true where both are as usual");
  if (const auto runs = json.find("runs")) demands.runs = static_cast<int>(runs->integer(2, kMostRuns));
  if (const auto axes = json.find("axes"))
    demands.axes = of_invariance(demands.axes) | read_axes(*axes, /*invariance=*/false);
}

/// Reads demands; missing keys leave `demands` unchanged. The caller checks for unknown keys.
void read_demands(const JsonValue& json, Demands& demands) {
  if (const auto key = json.find("determinism")) {
    demands.determinism = key->is_object() || key->boolean();
    if (key->is_object()) read_determinism(*key, demands);
  }
  if (const auto key = json.find("batch_invariance")) demands.batch_invariance = key->boolean();
  if (const auto key = json.find("invariance")) {
    if (!demands.batch_invariance) key->fail("no axes beside \"batch_invariance\": false", "remove one of them");
    key->allow_keys({"axes"});
    demands.axes = of_launches(demands.axes) | read_axes(key->at("axes"), /*invariance=*/true);
  }
}

void read_operator_demands(const JsonValue& json, RuleTable& table) {
  const std::vector<std::string> known = operator_names();
  for (const auto& [op, own] : json.members()) {
    if (std::find(known.begin(), known.end(), op) == known.end()) {
      const std::string hint = did_you_mean(op, known);
      throw InputError(json.where(), fmt::format("unknown operator '{}'", op),
                       hint.empty() ? fmt::format("known: {}", fmt::join(known, ", ")) : hint);
    }
    own.allow_keys({"determinism", "batch_invariance", "invariance"});
    if (own.members().empty()) own.fail("a demand", "remove the operator or say what is demanded of it");
    read_demands(own, table.operator_demands.emplace(op, table.demands).first->second);
  }
}

/// Reads the contract that "extends" names, relative to the file's own folder, into the empty `table`.
void extend(const JsonValue& json, RuleTable& table) {
  const std::string file = (std::filesystem::path(json.file()).parent_path() / json.sentence()).string();
  const std::string text = read_text_file(file, "a contract");
  const JsonValue base = JsonValue::parse(text, file);
  if (!base.is_object() || !base.has("format"))
    json.fail(fmt::format("a contract of format {}", kFormat), "other formats can't be extended");
  if (base.has("extends")) json.fail("a contract that extends no other", "name the one that it extends");
  read_contract(base, table);
  table.base_text = text;
  const std::string prefix = json.sentence() + ": ";
  for (Rule& rule : table.rules) rule.path.insert(0, prefix);
  for (Overlay& overlay : table.overlays) overlay.path.insert(0, prefix);
  for (KnownEntry& known : table.known) known.failure.path.insert(0, prefix);
}

void read_contract_2(const JsonValue& root, RuleTable& table) {
  root.allow_keys(
      {"$schema", "format", "name", "extends", "rules", "demands", "gold", kDeclaredRecipes, "overlays", "known"});
  root.at("name").sentence();
  if (const auto base = root.find("extends")) {
    extend(*base, table);
    if (const auto rules = root.find("rules"))
      throw InputError(rules->where(), "the rules are those of the contract that this one extends",
                       "remove the key; overlays change numbers");
  } else {
    for (const JsonValue& item : root.at("rules").items()) table.rules.push_back(read_rule(item));
    if (table.rules.empty()) root.at("rules").fail("at least one rule");
  }
  if (const auto json = root.find("demands")) {
    json->allow_keys({"determinism", "batch_invariance", "invariance", "operators"});
    read_demands(*json, table.demands);
    if (const auto own = json->find("operators")) read_operator_demands(*own, table);
  }
  if (const auto json = root.find("gold")) {
    json->allow_keys({"sample_above", "rows", "why"});
    table.sampling = {json->at("sample_above").number(0), json->at("rows").integer(1)};
    json->at("why").sentence();
  }
  if (const auto declared = root.find(kDeclaredRecipes)) table.declared_recipes = read_recipes(*declared, {});
  // Detect ties now, not at the first case that meets one.
  for (const JudgedOutput& target : all_targets()) most_specific(table.rules, target, root.file());
  if (const auto overlays = root.find("overlays")) read_overlays(*overlays, table);
  if (const auto known = root.find("known")) {
    const std::vector<KnownEntry> own = read_known(*known);
    table.known.insert(table.known.end(), own.begin(), own.end());
  }
}

}  // namespace

void read_contract(const JsonValue& root, RuleTable& table) {
  if (const auto format = root.find("format")) {
    format->require_format(kFormat);
    read_contract_2(root, table);
  } else if (root.has("accuracy") || root.has("batch_invariance")) {
    read_rl_kernel(root, table);
  } else {
    throw InputError(
        root.where(), root.members().empty() ? "the contract is empty" : "not a contract: no key 'format'",
        fmt::format(R"(write "format": "{}" and rules, or the keys 'accuracy' and 'batch_invariance')", kFormat));
  }
}

}  // namespace checkop
