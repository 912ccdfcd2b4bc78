// SPDX-License-Identifier: Apache-2.0
// Contracts: the choice of the rule and the override that judge an output.
#include "contract.hpp"

#include <array>
#include <cmath>
#include <utility>

#include "rule_table.hpp"
#include "text.hpp"

namespace checkop {
namespace {

constexpr std::array kCaseDTypes{DType::f64, DType::f32, DType::f16, DType::bf16};
const std::vector<std::string> kArchs{"sm70", "sm75",  "sm80",  "sm86",  "sm87",  "sm89",
                                      "sm90", "sm100", "sm103", "sm110", "sm120", "sm121"};

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
        for (const DType dtype : kCaseDTypes)
          all.push_back({op, &pass, &output, output.tensor.dtype.value_or(dtype), dtype});
  return all;
}

bool has_gate(const Rule& rule, Metric metric) {
  return std::any_of(rule.gates.begin(), rule.gates.end(), [metric](const Gate& g) { return g.metric == metric; });
}

void require_known_arch(const std::string& where, std::string_view key) {
  if (is_known_arch(key)) return;
  const std::string hint = did_you_mean(key, kArchs);
  throw InputError(where, fmt::format("unknown architecture '{}'", key),
                   hint.empty() ? "known: " + known_archs() : hint);
}

double sum_growth(const Gate& gate, int64_t terms, double u) {
  int64_t chain = terms / gate.step + (terms % gate.step != 0);
  if (gate.max_chain > 0) chain = std::min(chain, gate.max_chain);
  return gate.lambda * std::sqrt(static_cast<double>(chain)) * u;
}

Contract Contract::load(const std::string& path) { return parse(read_text_file(path, "a contract"), path); }

Contract Contract::parse(std::string_view text, const std::string& path) {
  const JsonValue root = JsonValue::parse(text, path);
  Contract contract;
  contract.path_ = path;
  contract.hash_ = fnv1a_hex(text);
  RuleTable table;
  read_contract(root, table);
  contract.table_ = std::make_shared<const RuleTable>(std::move(table));
  return contract;
}

Gates Contract::gates_for(const Case& c, const OutputSpec& output, std::string_view arch_key) const {
  const JudgedOutput target{c.op, c.pass, &output, dtype_of(c, output.tensor), c.dtype};
  if (!arch_key.empty()) require_known_arch("", arch_key);
  const Rule* rule = most_specific(table_->rules, target, path_);
  if (!rule)
    throw InputError(path_, "no rule matches " + describe(target),
                     fmt::format("add one, or choose another dtype than {} or another contract", info(c.dtype).name));
  Gates gates{rule->gates, rule->nonfinite_may_match, path_ + ": " + rule->path};
  const auto overrides = table_->overrides.find(arch_key);
  if (overrides == table_->overrides.end()) return gates;
  if (const ArchOverride* override = most_specific(overrides->second, target, path_))
    for (const GateNumbers& numbers : override->set)
      for (Gate& gate : gates.all)
        if (gate.metric == numbers.metric) {
          numbers.apply(gate);
          gate.source += " + " + override->path;
        }
  return gates;
}

Demands Contract::demands_for(const Case& c, const OutputSpec& output) const {
  const auto own = table_->operator_demands.find(c.op->name);
  const Demands& demands = own == table_->operator_demands.end() ? table_->demands : own->second;
  return {demands.determinism, demands.batch_invariance && is_per_row(*c.op, output.tensor)};
}

const Sampling& Contract::sampling() const { return table_->sampling; }

bool is_known_arch(std::string_view key) { return std::find(kArchs.begin(), kArchs.end(), key) != kArchs.end(); }

std::string known_archs() { return fmt::format("{}", fmt::join(kArchs, ", ")); }

}  // namespace checkop
