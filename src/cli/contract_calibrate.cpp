// SPDX-License-Identifier: Apache-2.0
// check_operator contract calibrate: how far candidates stay within the limits of a contract. Writes no file: limits
// are changed by hand, one at a time, with a reason.
#include <fmt/format.h>

#include <cmath>

#include "cli/commands.hpp"
#include "session/calibration.hpp"
#include "session/session.hpp"

namespace checkop {
namespace {

void print(const Calibration& calibration) {
  for (const auto& [source, gate] : calibration.gates()) {
    const GateResult& worst = gate.worst;
    fmt::print("{}  {}\n  limit {}, achieved {:.4g}, headroom {}, proposed {}\n", source, to_string(worst.metric),
               gate.has_limit() ? fmt::format("{:.4g}", worst.limit) : "-", worst.achieved,
               std::isinf(worst.headroom) ? "inf" : fmt::format("{:.3g}x", worst.headroom), proposal_text(worst));
    fmt::print("  by {} in {}; {} output{} held to it\n", gate.where, gate.case_name, gate.outputs,
               gate.outputs == 1 ? "" : "s");
  }
}

}  // namespace

int calibrate_command(const Options& options) {
  const Contract contract = load_contract(options.run);
  const Session session(options.run, select_checks(options.run));
  session.require_judgeable(contract);
  Calibration calibration;
  bool crashed = false;
  session.run_all([&](Attempt& attempt) {
    session.judge_by(contract, attempt);
    const CaseRecord& record = attempt.record;
    if (record.run.status == RunStatus::ok) return calibration.add(record);
    crashed |= record.judgment.verdict == Verdict::error || record.judgment.verdict == Verdict::timeout;
    fmt::print("{}  {}: {}\n", to_string(record.judgment.verdict), check_name(*attempt.check), record.judgment.reason);
  });
  fmt::print("{} ({}): {} output{} compared\n", contract.path(), contract.hash(), calibration.outputs(),
             calibration.outputs() == 1 ? "" : "s");
  print(calibration);
  if (crashed) return 4;
  if (calibration.outputs() == 0) return 3;
  return calibration.exceeded() ? 1 : 0;
}

}  // namespace checkop
