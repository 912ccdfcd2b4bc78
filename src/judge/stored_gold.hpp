// SPDX-License-Identifier: Apache-2.0
// Keeps the gold of a whole case in memory, so that many outputs can be judged against it.
#pragma once

#include <vector>

#include "judge/gold.hpp"
#include "operator/emulation.hpp"

namespace checkop {

class StoredGold {
 public:
  /// Computes the gold of every element. Takes 24 bytes per element of the outputs.
  StoredGold(const Case& c, const std::vector<Tensor>& inputs, unsigned threads);

  /// Hands all rows to `sink`, in blocks of judged rows, from several threads at once.
  void replay(unsigned threads, const GoldSink& sink) const;

  /// The exact results, row-major; empty for an absent output.
  const Values& values() const { return values_; }

 private:
  Values values_, magnitudes_, roundings_;
  std::vector<int64_t> columns_;  ///< columns of judged_view()
};

/// A GoldReplay of `gold`, which must outlive it.
inline GoldReplay replay_of(const StoredGold& gold) {
  return [&gold](unsigned threads, const GoldSink& sink) { gold.replay(threads, sink); };
}

}  // namespace checkop
