// SPDX-License-Identifier: Apache-2.0
// check_operator contract lint: finds mistakes in contracts before they are used.
#include <fmt/format.h>

#include <map>
#include <set>
#include <tuple>

#include "base/error.hpp"
#include "cli/commands.hpp"
#include "contract/diff.hpp"
#include "contract/lint.hpp"
#include "mutate/mutation.hpp"
#include "session/selection.hpp"

namespace checkop {
namespace {

/// Rules that would accept a trivial answer in a case: their limits are looser than the vacuity floor.
std::vector<Finding> below_floor(const Contract& contract, const RunOptions& options) {
  const std::vector<Case> cases = select_cases(options);
  std::map<std::tuple<std::string, std::string, Trivial>, std::set<std::string>> found;  // cases by rule and answer
  for (const std::string& arch : archs_named(contract, contract)) {
    std::vector<std::vector<Vacuity>> of_case(cases.size());
    for_each_case(cases, thread_count(options), [&](size_t i, unsigned threads) {
      of_case[i] = vacuities(cases[i], contract, {arch, {}}, threads);
    });
    for (size_t i = 0; i < cases.size(); ++i) {
      for (const Vacuity& v : of_case[i])
        found[{v.rule, fmt::format("{}/{} {}", cases[i].op->name, cases[i].pass->name, v.output), v.answer}].insert(
            case_name(cases[i]));
    }
  }
  std::vector<Finding> findings;
  for (const auto& [key, names] : found) {
    const auto& [rule, output, answer] = key;
    const std::string path = rule.starts_with(contract.path() + ": ") ? rule.substr(contract.path().size() + 2) : rule;
    findings.push_back(
        {path, fmt::format("looser than the vacuity floor: {} would pass as {} of {}{}", describe(answer), output,
                           *names.begin(), names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : "")});
  }
  return findings;
}

}  // namespace

int lint_command(const Options& options) {
  bool unreadable = false, found_any = false;
  for (const std::string& file : options.contracts) {
    try {
      const Contract contract = Contract::load(file, today());
      std::vector<Finding> findings = lint(contract);
      for (Finding& finding : below_floor(contract, options.run)) findings.push_back(std::move(finding));
      for (const Finding& finding : findings) fmt::print("{}: {}: {}\n", file, finding.path, finding.what);
      if (findings.empty()) fmt::print("{}: clean\n", file);
      found_any |= !findings.empty();
    } catch (const InputError& error) {
      fmt::print(stderr, "check_operator: {}\n", error.what());
      unreadable = true;
    }
  }
  return unreadable ? 2 : found_any ? 1 : 0;
}

}  // namespace checkop
