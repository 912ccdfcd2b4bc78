// SPDX-License-Identifier: Apache-2.0
// Keeps the gold of a whole case in memory, so that many outputs can be judged against it.
#pragma once

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "judge/gold.hpp"
#include "operator/emulation.hpp"

namespace checkop {

class StoredGold {
 public:
  /// Computes the gold of every element. Takes 24 bytes per element of the outputs, 40 with recipes or
  /// saved inputs.
  StoredGold(const Case& c, const std::vector<Tensor>& inputs, unsigned threads, const ActiveRecipes& recipes = {});

  /// Hands all rows to `sink`, in blocks of judged rows, from several threads at once.
  void replay(unsigned threads, const GoldSink& sink) const;

  /// The exact results, row-major; empty for an absent output.
  const Values& values() const { return values_; }

 private:
  Values values_, magnitudes_, roundings_, spreads_, deviations_;
  std::vector<int64_t> columns_;  ///< columns of judged_view()
};

/// The gold of a case, and its golds under sets of recipes, each computed when it is first asked for.
class StoredGolds {
 public:
  /// The case and its inputs must outlive this object.
  StoredGolds(const Case& c, const std::vector<Tensor>& inputs, unsigned threads)
      : c_(c), inputs_(inputs), plain_(c, inputs, threads) {}

  const Values& values() const { return plain_.values(); }  ///< without recipes
  GoldReplay replay();                                      ///< refers to this object; not for several threads at once

 private:
  const Case& c_;
  const std::vector<Tensor>& inputs_;
  const StoredGold plain_;
  using Key = std::pair<std::vector<std::string_view>, std::vector<ActiveRecipes::Numbers>>;
  std::map<Key, StoredGold> by_recipes_;
};

}  // namespace checkop
