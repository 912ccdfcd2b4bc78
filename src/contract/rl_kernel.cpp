// SPDX-License-Identifier: Apache-2.0
// Reads files of the RL-Kernel format into a RuleTable.
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "contract/reader.hpp"

namespace checkop {
namespace {

const std::vector<std::string> kRlKernelClasses{"elementwise", "reduction", "logprob", "attention"};

/// Accepts both spellings in use: "fp32" and "float32".
DType parse_dtype_of_row(const JsonValue& json, const std::string& name) {
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
void for_each_rl_kernel_cell(const JsonValue& json, const Body& body) {
  for (const auto& [op_class, row] : json.members()) {
    json.allow_keys(kRlKernelClasses);
    for (const auto& [dtype, cell] : row.members()) {
      RuleMatch match;
      match.op_class = op_class;
      match.case_dtype = parse_dtype_of_row(row, dtype);
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

/// Reads "batch_invariance": either one cell for everything, or {"default": dtype -> cell}; "all" is a synonym of
/// "default".
void read_rl_kernel_invariance(const JsonValue& json, const std::vector<Rule>& rules) {
  if (json.has("atol") || json.has("rtol")) return require_bitwise(json);
  json.allow_keys({"default", "all"});
  std::vector<DType> covered;
  for (const auto& [op_class, row] : json.members())
    for (const auto& [dtype, cell] : row.members()) {
      covered.push_back(parse_dtype_of_row(row, dtype));
      require_bitwise(cell);
    }
  for (const Rule& rule : rules)
    if (std::find(covered.begin(), covered.end(), *rule.match.case_dtype) == covered.end())
      throw InputError(json.where(),
                       fmt::format("no cell for {}, which 'accuracy' has", info(*rule.match.case_dtype).name),
                       R"(add {"atol": 0, "rtol": 0})");
}

/// Judges integers, and numbers of 8 and 4 bits, bitwise. The format chooses cells by the dtype of the case, and their
/// tolerances are meant for floating-point numbers: a relative tolerance of 1.6e-2 allows an offset of 1000 to be off
/// by 16. Integers are counts and positions, with one correct value.
Rule integers_by_bits(const JsonValue& root) {
  Rule rule;
  std::copy_if(kDTypes.begin(), kDTypes.end(), std::back_inserter(rule.match.dtypes), [](DType dtype) {
    return std::find(kCaseDTypes.begin(), kCaseDTypes.end(), dtype) == kCaseDTypes.end();
  });
  rule.numbers = {{Metric::bits, {}}};
  rule.gates = {make_gate(rule.numbers[0], root.where() + ": integers")};
  rule.path = "integers";
  rule.gate_paths = {rule.path};
  return rule;
}

}  // namespace

void read_rl_kernel(const JsonValue& root, RuleTable& table) {
  root.allow_keys({"batch_invariance", "accuracy"});
  const JsonValue accuracy = root.at("accuracy");
  accuracy.allow_keys({"default", "arch_overrides"});
  for_each_rl_kernel_cell(accuracy.at("default"), [&table](const RuleMatch& match, const JsonValue& cell) {
    if (std::any_of(table.rules.begin(), table.rules.end(), same_cell(match)))
      throw InputError(cell.where(), "the same dtype appears twice under two spellings", "keep one of the two");
    const GateNumbers numbers = read_numbers(cell, Metric::atol_rtol);
    cell.at("atol");  // a missing rtol is 0 in this format
    table.rules.push_back(
        {{{make_gate(numbers, cell.where())}, {numbers}, {cell.path()}}, match, {}, {}, false, cell.path(), ""});
  });
  if (table.rules.empty()) accuracy.at("default").fail("at least one op_class with a dtype");
  read_rl_kernel_invariance(root.at("batch_invariance"), table.rules);
  table.rules.push_back(integers_by_bits(root));
  table.demands.batch_invariance = true;
  const auto overrides = accuracy.find("arch_overrides");
  if (!overrides) return;
  for (const auto& [arch, classes] : overrides->members()) {
    require_known_arch(overrides->where(), arch);
    for_each_rl_kernel_cell(classes, [&, &arch_key = arch](const RuleMatch& match, const JsonValue& cell) {
      const auto same = [&](const Overlay& other) { return other.match.arch == arch_key && same_cell(match)(other); };
      if (std::any_of(table.overlays.begin(), table.overlays.end(), same))
        throw InputError(cell.where(), "the same dtype appears twice under two spellings", "keep one of the two");
      if (std::none_of(table.rules.begin(), table.rules.end(), same_cell(match)))
        throw InputError(cell.where(), "overrides a cell that accuracy.default lacks", "add the cell there first");
      Overlay overlay;
      overlay.match = match;
      overlay.match.arch = arch_key;
      overlay.set = {read_numbers(cell, Metric::atol_rtol)};
      overlay.loosen = true;  // the format has no "loosen" key
      overlay.path = cell.path();
      table.overlays.push_back(std::move(overlay));
    });
  }
}

}  // namespace checkop
