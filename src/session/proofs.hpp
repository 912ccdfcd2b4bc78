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
  /// Where inputs are own data, a case is measured by them alone: no rows are added, nothing is generated in their
  /// place. A process of their own works the others out, one operator after the other in the order of `checks`, which
  /// stay where they are; this one goes on.
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

/// Enters into `sensitivity` how many elements of the rows of `c` the contexts of each axis compared, each element
/// counted once and of axes of rows that the candidate supports: those of the axis that compared the fewest.
void count_compared(const Case& c, const std::vector<Context>& contexts, const RunResult& run,
                    std::vector<Sensitivity>& sensitivity);

}  // namespace checkop
