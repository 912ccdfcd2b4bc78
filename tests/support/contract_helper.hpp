// SPDX-License-Identifier: Apache-2.0
// Helpers for tests: contracts in one line, and the outputs that they judge.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "contract/contract.hpp"

namespace checkop::contract_test {

struct Judged {
  Case c;
  const OutputSpec* output;
};

/// The output of a pass, such as "logp/backward dlogits", in a case of `dtype`.
inline Judged judged(std::string_view op, std::string_view pass, std::string_view output, DType dtype = DType::f32) {
  Judged j{};
  j.c.op = find_operator(op);
  j.c.pass = find_pass(*j.c.op, pass);
  j.c.dtype = dtype;
  for (const OutputSpec& spec : j.c.pass->outputs)
    if (spec.tensor.name == output) j.output = &spec;
  return j;
}

inline Gates gates(const Contract& contract, const Judged& j, std::string_view arch = "",
                   std::string_view candidate = "") {
  return contract.gates_for(j.c, *j.output, {arch, candidate});
}

/// The message of the InputError thrown by `body`.
template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

constexpr std::string_view kGate = R"({"metric": "bound_ratio", "limit": 1, "lambda": 6, "max_chain": 1024})";

/// A rule with one bound_ratio gate of the given lambda.
inline std::string rule(std::string_view match, double lambda = 6) {
  return fmt::format(
      R"({{"match": {}, "gates": [{{"metric": "bound_ratio", "limit": 1, "lambda": {}, "max_chain": 1024}}], "why": "w"}})",
      match, lambda);
}

inline std::string rule_with_gates(std::string_view list) {
  return fmt::format(R"({{"match": {{"op": "logp"}}, "gates": {}, "why": "w"}})", list);
}

inline std::string document(const std::vector<std::string>& rules, std::string_view more = "") {
  return fmt::format(R"({{"format": "check_operator/contract-2", "name": "n", "rules": [{}]{}}})",
                     fmt::join(rules, ", "), more);
}

inline Contract parse(const std::vector<std::string>& rules, std::string_view more = "", Date today = kEndOfTime) {
  return Contract::parse(document(rules, more), "c.json", today);
}

inline std::string parse_error(const std::string& text) {
  return error_of([&] { Contract::parse(text, "c.json"); });
}

inline std::string rules_error(const std::vector<std::string>& rules, std::string_view more = "") {
  return parse_error(document(rules, more));
}

inline std::string gate_error(std::string_view gate) {
  return rules_error({rule_with_gates(fmt::format("[{}]", gate))});
}

inline std::string overlays(const std::vector<std::string>& list) {
  return fmt::format(R"(, "overlays": [{}])", fmt::join(list, ", "));
}

/// An overlay that never expires and may loosen; `set` is the content of its "set".
inline std::string overlay(std::string_view match, std::string_view set,
                           std::string_view more = R"("expires": "never", "loosen": true)") {
  return fmt::format(R"({{"match": {}, "set": {{{}}}, "reason": "r", "owner": "o", {}}})", match, set, more);
}

}  // namespace checkop::contract_test
