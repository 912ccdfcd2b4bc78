// SPDX-License-Identifier: Apache-2.0
// Tries a contract: right computations that it must accept, wrong ones that it must reject. No GPU is needed.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "contract/contract.hpp"
#include "judge/verdict.hpp"

namespace checkop {

/// The gate that speaks loudest against an answer: achieved over limit.
struct Loudest {
  std::string output, gate;  ///< "dlogits", "bound_ratio"; gate may be "nonfinite" or the name of an identity
  double ratio = 0;          ///< above 1: rejected; infinite where no limit would do
};

/// One right or wrong answer to one case.
struct Trial {
  enum class Kind : uint8_t {
    control,    ///< a plan without a fault: must not be rejected
    fault,      ///< must fail
    excluded,   ///< rejected, and rightly: a plan with a longer chain of additions than the contract allows
    unchanged,  ///< the fault changes no bit of this case
  };
  Kind kind = Kind::control;
  std::string name, meaning, expected;  ///< of a fault: the kind of judgment that it should get
  std::string output;                   ///< that alone is spoiled; "" for all
  Judgment judgment;
  Loudest loudest;

  bool rejected() const { return judgment.verdict == Verdict::fail; }
};

/// All controls and faults of `c` under `contract`: plans and faults of the pass's emulation, faults of results, output
/// by output, and faults of behaviour. Deterministic by the case's seed; none for a case without rows. Needs 24 bytes
/// per element of the outputs.
std::vector<Trial> try_contract(const Case& c, const Contract& contract, std::string_view arch_key, unsigned threads);

/// A trivial answer that `contract` would accept for an output of a case although it is wrong.
struct Vacuity {
  std::string rule;  ///< Gates::source
  std::string output;
  Trivial answer = Trivial::zeros;
};
std::vector<Vacuity> vacuities(const Case& c, const Contract& contract, const Subject& subject, unsigned threads);

/// Runs body(i, threads) for every case: small ones side by side on a thread each, then the others, which have work for
/// all threads and the memory to match, one after the other.
void for_each_case(const std::vector<Case>& cases, unsigned threads, const std::function<void(size_t, unsigned)>& body);

}  // namespace checkop
