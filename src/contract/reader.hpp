// SPDX-License-Identifier: Apache-2.0
// The readers of both contract formats, and the functions that they share.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "contract/rule_table.hpp"

namespace checkop {

/// Reads a contract of either format. Throws InputError with file and path for every error in it.
void read_contract(const JsonValue& root, RuleTable& table);

// --- Parts of a contract; each reader throws the errors of its part ---

/// Reads a file of the RL-Kernel format.
void read_rl_kernel(const JsonValue& root, RuleTable& table);

/// Reads "overlays" of contract-2, which apply on top of table.rules. Refuses ties, silent loosening and overlays
/// without effect.
void read_overlays(const JsonValue& list, RuleTable& table);

/// Reads "known" of contract-2.
std::vector<KnownEntry> read_known(const JsonValue& list);

/// Reads the keys of `match` that rules and overlays share; `more` names keys that the caller reads.
RuleMatch read_match(const JsonValue& json, const std::vector<std::string>& more = {});
void read_dtypes(const JsonValue& json, RuleMatch& match);
void read_subject(const JsonValue& json, RuleMatch& match);  ///< reads "arch" and "candidate"

/// Reads "reason", "owner" and "expires".
Grant read_grant(const JsonValue& json);

/// Reads the numbers of `metric` that are present; the caller decides which are required. `other_keys` names keys that
/// the caller reads.
GateNumbers read_numbers(const JsonValue& json, Metric metric, std::vector<std::string> other_keys = {});
Gate make_gate(const GateNumbers& numbers, std::string source);
void read_gate(const JsonValue& json, GateList& list);
/// Refuses gates that judge nothing of `targets` (the outputs that `rule` judges) or lack a gate that they need. `path`
/// names the rule or overlay that has the gates.
void check_gates(const GateList& list, const Rule& rule, const std::vector<JudgedOutput>& targets,
                 const std::string& path);

/// Reads a list of recipes. Throws InputError for a name that is no recipe of any output that `match` fits.
std::vector<std::string> read_recipes(const JsonValue& json, const RuleMatch& match);

/// Reads "left_out". Throws InputError if no operator that `match` fits leaves anything out.
LeftOut read_left_out(const JsonValue& json, const RuleMatch& match);

/// Throws InputError when the match fits no output of any operator.
void require_target(const JsonValue& json, const RuleMatch& match);

std::vector<std::string> operator_names();

template <class Array>
std::vector<std::string> names_of(const Array& values) {
  std::vector<std::string> names;
  for (const auto value : values) names.emplace_back(to_string(value));
  return names;
}

/// Reads the element of `values` whose to_string() equals the JSON string.
template <class Array>
auto read_enum(const JsonValue& json, std::string_view noun, const Array& values) {
  const std::string name = json.one_of(noun, names_of(values));
  return *std::find_if(values.begin(), values.end(), [&name](auto value) { return to_string(value) == name; });
}

}  // namespace checkop
