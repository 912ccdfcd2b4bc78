// SPDX-License-Identifier: Apache-2.0
// JSON -> RuleTable: the readers of both formats and what they share.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "contract/rule_table.hpp"

namespace checkop {

/// Reads a contract of either format. Throws InputError with file and path for whatever is wrong with it.
void read_contract(const JsonValue& root, RuleTable& table);

// --- parts, each with the errors of its part
// --------------------------------------------------------------------------

/// Files of the seed's format.
void read_seed(const JsonValue& root, RuleTable& table);

/// "overlays" of contract-2, on top of table.rules: ties, silent loosening and what changes nothing are errors.
void read_overlays(const JsonValue& list, RuleTable& table);

/// "known" of contract-2.
std::vector<KnownEntry> read_known(const JsonValue& list);

/// Keys of `match` that rules and overlays have in common; `more` are those for the caller to read.
RuleMatch read_match(const JsonValue& json, const std::vector<std::string>& more = {});
void read_dtypes(const JsonValue& json, RuleMatch& match);
void read_subject(const JsonValue& json, RuleMatch& match);  ///< "arch" and "candidate"

/// "reason", "owner" and "expires".
Grant read_grant(const JsonValue& json);

/// The numbers of `metric` that are there; whether one is required depends on the caller. `other_keys` are the caller's
/// own.
GateNumbers read_numbers(const JsonValue& json, Metric metric, std::vector<std::string> other_keys = {});
Gate make_gate(const GateNumbers& numbers, std::string source);
void read_gate(const JsonValue& json, GateList& list);
/// Refuses gates that could judge nothing of `targets`, which `rule` judges, or that lack what they need. `path` is of
/// the rule or the overlay that has them.
void check_gates(const GateList& list, const Rule& rule, const std::vector<JudgedOutput>& targets,
                 const std::string& path);

/// Throws InputError when the match fits no output of any operator.
void require_target(const JsonValue& json, const RuleMatch& match);

std::vector<std::string> operator_names();

template <class Array>
std::vector<std::string> names_of(const Array& values) {
  std::vector<std::string> names;
  for (const auto value : values) names.emplace_back(to_string(value));
  return names;
}

/// The one of `values` whose to_string() the JSON string is.
template <class Array>
auto read_enum(const JsonValue& json, std::string_view noun, const Array& values) {
  const std::string name = json.one_of(noun, names_of(values));
  return *std::find_if(values.begin(), values.end(), [&name](auto value) { return to_string(value) == name; });
}

}  // namespace checkop
