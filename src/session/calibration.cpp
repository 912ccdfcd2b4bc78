// SPDX-License-Identifier: Apache-2.0
// Collects the largest achieved values by rule and gate.
#include "session/calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace checkop {

std::optional<double> propose_limit(double achieved, double limit) {
  if (achieved == 0 || !std::isfinite(achieved)) return {};
  const double twice = round_up(2 * achieved, 1);
  return achieved <= limit ? std::min(twice, limit) : twice;
}

std::string proposal_text(const GateResult& worst) {
  const bool exceeded = !(worst.achieved <= worst.limit);
  const std::string_view look = exceeded ? ", EXCEEDED: look at the candidate first" : "";
  if (is_of_bits(worst.metric)) return fmt::format("unchanged{}", look);
  const std::optional<double> proposed = propose_limit(worst.achieved, worst.limit);
  if (!proposed) return worst.achieved == 0 ? "unchanged: nothing was off" : fmt::format("no limit passes{}", look);
  if (*proposed == worst.limit) return "unchanged";
  if (worst.metric != Metric::atol_rtol) return fmt::format("{:g}{}", *proposed, look);
  const auto scaled = [&](double number) {
    const double up = round_up(*proposed * number, 1);
    return exceeded ? up : std::min(up, number);
  };
  return fmt::format("atol {:g}, rtol {:g}{}", scaled(worst.atol), scaled(worst.rtol), look);
}

void Calibration::add(const CaseRecord& record) {
  for (size_t i = 0; i < record.comparisons.size(); ++i) {
    const Comparison& comparison = record.comparisons[i];
    if (comparison.count == 0) continue;
    ++outputs_;
    for (const GateResult& result : comparison.gates) {
      CalibratedGate& gate = gates_[result.source];
      ++gate.outputs;
      // A NaN is worse than everything else, and stays.
      const bool worse = !(result.achieved <= gate.worst.achieved) && !std::isnan(gate.worst.achieved);
      if (gate.outputs > 1 && !worse) continue;
      gate.worst = result;
      gate.where = fmt::format("{}/{} {} of {}", record.c.op->name, record.c.pass->name,
                               record.c.pass->outputs[i].tensor.name, record.candidate);
      gate.case_name = case_name(record.c);
    }
  }
}

bool Calibration::exceeded() const {
  return std::any_of(gates_.begin(), gates_.end(),
                     [](const auto& gate) { return !(gate.second.worst.achieved <= gate.second.worst.limit); });
}

}  // namespace checkop
