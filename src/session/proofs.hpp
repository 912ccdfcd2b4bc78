// SPDX-License-Identifier: Apache-2.0
// Which case of a run proves that its data would show a violation, for every pass and dtype.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "judge/sensitivity.hpp"
#include "run/invariance/contexts.hpp"
#include "session/own_data.hpp"
#include "session/selection.hpp"

namespace checkop {

class Proofs {
 public:
  Proofs();
  /// Cases with own data are measured with that data alone: no rows are added, nothing is generated. Other cases are
  /// searched in a child process, one operator after the other in the order of `checks`, while this process goes on.
  /// `checks` must stay where they are.
  Proofs(const std::vector<Check>& checks, const OwnInputs& own_inputs, unsigned threads);

  struct Entry {
    Case c;  ///< whose launches are compared in place of the case's own
    std::vector<Sensitivity> sensitivity;
  };
  struct Batch;  ///< cases of one operator, which are proven together; in proofs.cpp
  Proofs(Proofs&&) noexcept;
  Proofs& operator=(Proofs&&) noexcept;
  ~Proofs();

  /// nullptr where nothing was to be proven. Waits until it is known.
  const Entry* find(const Case& c) const;

 private:
  class Process;
  struct Source;
  std::unique_ptr<Source> source_;
};

/// Sets in `sensitivity` how many elements of `c`'s rows were compared, each element counted once. Of the row axes that
/// the candidate supports, the one that compared the fewest elements counts.
void count_compared(const Case& c, const std::vector<Context>& contexts, const RunResult& run,
                    std::vector<Sensitivity>& sensitivity);

}  // namespace checkop
