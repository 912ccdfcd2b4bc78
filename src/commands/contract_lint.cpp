// SPDX-License-Identifier: Apache-2.0
// check_operator contract lint: what is wrong with contracts, before anything is judged by them.
#include "contract_lint.hpp"

#include <fmt/format.h>

#include "commands/commands.hpp"
#include "error.hpp"

namespace checkop {

int lint_command(const Options& options) {
  bool unreadable = false, found_any = false;
  for (const std::string& file : options.contracts) {
    try {
      const Contract contract = Contract::load(file, today());
      const std::vector<Finding> findings = lint(contract);
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
