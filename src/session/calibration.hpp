// SPDX-License-Identifier: Apache-2.0
// The largest achieved value of each gate of a contract, and a proposed limit for it.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "judge/compare.hpp"
#include "report/report.hpp"

namespace checkop {

/// Proposes a limit: twice the largest achieved value, rounded up to one significant digit, because another GPU, seed
/// or order of addition may do worse than those measured. Never above the present limit, since headroom is no reason to
/// loosen it. Only if that limit is exceeded is the proposal above it; then check first whether the candidate is right.
/// nullopt if the achieved value is 0, which is no measure, or if no limit would pass. For atol_rtol, the proposal is a
/// factor of atol and rtol.
std::optional<double> propose_limit(double achieved, double limit);

/// "0.3"; "unchanged"; "20, EXCEEDED: look at the candidate first"; for atol_rtol "atol 2e-3, rtol 0".
std::string proposal_text(const GateResult& worst);

/// The results of one gate of one rule, with its overlays.
struct CalibratedGate {
  GateResult worst;              ///< the result with the largest achieved value
  std::string where, case_name;  ///< "logp/forward logp of native", "logp-fp32-2x16x257"
  int64_t outputs = 0;           ///< outputs that the gate judged

  bool has_limit() const { return !is_of_bits(worst.metric) && worst.metric != Metric::atol_rtol; }
};

class Calibration {
 public:
  /// Adds every gate of every compared output.
  void add(const CaseRecord& record);

  /// Puts rules[10] behind rules[9].
  struct ShortFirst {
    bool operator()(const std::string& a, const std::string& b) const {
      return a.size() != b.size() ? a.size() < b.size() : a < b;
    }
  };
  /// By GateResult::source: "c.json: rules[3].gates[0] + overlays[1]".
  using Gates = std::map<std::string, CalibratedGate, ShortFirst>;
  const Gates& gates() const { return gates_; }
  int64_t outputs() const { return outputs_; }
  bool exceeded() const;  ///< whether any limit was exceeded

 private:
  Gates gates_;
  int64_t outputs_ = 0;
};

}  // namespace checkop
