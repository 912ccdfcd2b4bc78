// SPDX-License-Identifier: Apache-2.0
// The largest value that each gate of a contract has met, and a limit that would do.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "judge/compare.hpp"
#include "report/report.hpp"

namespace checkop {

/// A limit for what was achieved. The policy: twice the largest value, rounded up to one significant digit, for another
/// GPU, another seed and another order of summation may do worse than those that were seen; never above the limit that
/// holds, since headroom is no reason to loosen. Only where that limit is exceeded the proposal is above it, and then
/// the first question is whether the candidate is right. Nothing where nothing was off, which is no measure, and where
/// no limit passes. Of atol_rtol it is a factor of both.
std::optional<double> propose_limit(double achieved, double limit);

/// "0.3"; "unchanged"; "20, EXCEEDED: look at the candidate first"; of atol_rtol "atol 2e-3, rtol 0".
std::string proposal_text(const GateResult& worst);

/// What one gate of one rule, with the overlays over it, has met.
struct CalibratedGate {
  GateResult worst;              ///< the largest achieved
  std::string where, case_name;  ///< "logp/forward logp of native", "logp-fp32-2x16x257"
  int64_t outputs = 0;           ///< that were held to it

  bool has_limit() const { return !is_of_bits(worst.metric) && worst.metric != Metric::atol_rtol; }
};

class Calibration {
 public:
  /// Every gate of every output that was compared.
  void add(const CaseRecord& record);

  /// rules[10] after rules[9].
  struct ShortFirst {
    bool operator()(const std::string& a, const std::string& b) const {
      return a.size() != b.size() ? a.size() < b.size() : a < b;
    }
  };
  /// By GateResult::source: "c.json: rules[3].gates[0] + overlays[1]".
  using Gates = std::map<std::string, CalibratedGate, ShortFirst>;
  const Gates& gates() const { return gates_; }
  int64_t outputs() const { return outputs_; }
  bool exceeded() const;  ///< whether any limit is

 private:
  Gates gates_;
  int64_t outputs_ = 0;
};

}  // namespace checkop
