// SPDX-License-Identifier: Apache-2.0
// Tests a contract: it must accept right computations and reject wrong ones. Needs no GPU.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "contract/contract.hpp"
#include "judge/verdict.hpp"

namespace checkop {

/// The gate that an answer violates most: the one with the highest ratio of achieved to limit.
struct WorstGate {
  std::string output, gate;  ///< "dlogits", "bound_ratio"; gate may be "nonfinite" or the name of an identity
  double ratio = 0;          ///< above 1: rejected; infinite if no limit would accept the answer
};

/// One right or wrong answer to one case, and its judgment.
struct Trial {
  enum class Kind : uint8_t {
    control,    ///< an order of addition without a fault; must not be rejected
    fault,      ///< must be rejected
    excluded,   ///< a control, rightly rejected: its chain of additions is longer than the contract allows
    unchanged,  ///< the fault changes no number of this case, and the contract accepts its zeros
  };
  Kind kind = Kind::control;
  std::string name, meaning, expected;  ///< `expected`: for a fault, the kinds of failure, one of which to find
  std::string output;                   ///< the only output with the fault; "" for all
  Judgment judgment;
  WorstGate worst_gate;
  std::string cause;  ///< what is said of the failing outputs first; "" unless asked for

  bool rejected() const { return judgment.verdict == Verdict::fail; }
};

/// Tries all controls and faults of `c` under `contract`: orders of addition and faults of the pass's emulation, result
/// faults for each output, and behaviour faults. The case's seed determines the result. Returns nothing for a case
/// without rows. Needs 24 bytes per element of the outputs. `diagnoses`: fills in Trial::cause. `wants`: whether to try
/// a fault with this name in this output ("" for all); without it, all are tried.
using WantsFault = std::function<bool(std::string_view name, std::string_view output)>;
std::vector<Trial> try_contract(const Case& c, const Contract& contract, std::string_view arch_key, unsigned threads,
                                bool diagnoses = false, WantsFault wants = {});

/// A trivial, wrong answer that `contract` would accept for an output of a case.
struct Vacuity {
  std::string rule;  ///< Gates::source
  std::string output;
  Trivial answer = Trivial::zeros;
};
std::vector<Vacuity> vacuities(const Case& c, const Contract& contract, const Subject& subject, unsigned threads);

/// Runs body(i, threads) for every case. Small cases run side by side with one thread each. Then the others run one
/// after the other with all threads, because each has enough work for them and needs much memory.
void for_each_case(const std::vector<Case>& cases, unsigned threads, const std::function<void(size_t, unsigned)>& body);

}  // namespace checkop
