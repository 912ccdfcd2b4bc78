// SPDX-License-Identifier: Apache-2.0
// What contract_reader.cpp fills and contract.cpp chooses from: rules, overrides and what they match.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contract.hpp"
#include "error.hpp"
#include "json.hpp"

namespace checkop {

/// One output of one pass, with the dtypes of a case: what a rule matches.
struct JudgedOutput {
  const Operator* op;
  const Pass* pass;
  const OutputSpec* output;
  DType dtype;  ///< of the output
  DType case_dtype;
};

std::string describe(const JudgedOutput& target);  ///< "logp/forward logp fp32 (case bf16)"
std::vector<JudgedOutput> all_targets();           ///< every one there is

/// A key that is not set matches everything.
struct RuleMatch {
  std::string output, op, pass;
  std::vector<DType> dtypes;  ///< of the output
  std::optional<Numerics> numerics;
  std::string op_class;             ///< seed's format
  std::optional<DType> case_dtype;  ///< seed's format

  bool fits(const JudgedOutput& t) const {
    return (output.empty() || output == t.output->tensor.name) && (op.empty() || op == t.op->name) &&
           (dtypes.empty() || std::find(dtypes.begin(), dtypes.end(), t.dtype) != dtypes.end()) &&
           (pass.empty() || pass == t.pass->name) && (!numerics || *numerics == t.output->numerics) &&
           (op_class.empty() || op_class == t.op->op_class) && (!case_dtype || *case_dtype == t.case_dtype);
  }
  /// A binary digit per key, so that equal values mean equal sets of keys.
  int specificity() const {
    return 16 * !output.empty() + 8 * !op.empty() + 4 * !dtypes.empty() + 2 * !pass.empty() + 1 * numerics.has_value();
  }
};

/// The numbers of a gate that a file sets.
struct GateNumbers {
  struct Number {
    const GateKey* key;
    double real;
    int64_t integer;
  };
  Metric metric = Metric::bound_ratio;
  std::vector<Number> set;

  void apply(Gate& gate) const {
    gate.metric = metric;
    for (const Number& number : set) {
      if (number.key->real != nullptr) gate.*number.key->real = number.real;
      if (number.key->integer != nullptr) gate.*number.key->integer = number.integer;
    }
  }
};

struct Rule {
  RuleMatch match;
  std::vector<Gate> gates;
  bool nonfinite_may_match = false;
  std::string path;  ///< "rules[3]"
};

struct ArchOverride {
  std::string arch;
  RuleMatch match;
  std::vector<GateNumbers> set;
  std::string path;  ///< "arch_overrides.sm90[0]"
};

struct RuleTable {
  std::vector<Rule> rules;
  std::map<std::string, std::vector<ArchOverride>, std::less<>> overrides;  ///< by architecture
  Sampling sampling;
  Demands demands;                                               ///< of operators that have none of their own
  std::map<std::string, Demands, std::less<>> operator_demands;  ///< complete, by operator
};

/// The most specific of `all` that fits; nullptr when none does. Throws InputError for a tie.
template <class T>
const T* most_specific(const std::vector<T>& all, const JudgedOutput& target, const std::string& file) {
  const T *best = nullptr, *equal = nullptr;
  for (const T& candidate : all) {
    if (!candidate.match.fits(target)) continue;
    const int order = best ? candidate.match.specificity() - best->match.specificity() : 1;
    if (order > 0) {
      best = &candidate;
      equal = nullptr;
    } else if (order == 0) {
      equal = &candidate;
    }
  }
  if (equal)
    throw InputError(
        file,
        fmt::format("{} and {} both match {} and are equally specific", best->path, equal->path, describe(target)),
        "remove one or let one name more keys");
  return best;
}

bool has_gate(const Rule& rule, Metric metric);

/// Throws InputError for a key that is not an architecture.
void require_known_arch(const std::string& where, std::string_view key);

/// Reads a contract of either format. Throws InputError with file and path for whatever is wrong with it.
void read_contract(const JsonValue& root, RuleTable& table);

}  // namespace checkop
