// SPDX-License-Identifier: Apache-2.0
// Finds the known faults of the operator that explain wrong outputs: the emulation of such a fault must reproduce both
// the elements that pass and the elements that fail.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "case/case.hpp"
#include "judge/compare.hpp"
#include "operator/emulation.hpp"

namespace checkop {

/// The candidate's outputs of a failing check, and what they were compared with.
struct JudgedOutputs {
  const Case& c;
  const std::vector<Tensor>& inputs;
  const std::vector<Tensor>& outputs;                            ///< an absent one has no name
  const std::vector<std::optional<OutputComparison>>& compared;  ///< by output
  const std::vector<RowSet>& rows;                               ///< by output: the rows that were compared
  unsigned threads;
  KeptResults* kept = nullptr;  ///< of golds of these inputs
};

/// The known faults, and the rounding points of recipes, that explain an output.
struct KnownFaults {
  std::vector<FaultSpec> faults;  ///< of a recipe: its name and formula
  /// One fault alone explains every compared element of every output.
  bool certain = false;
};

/// Outputs of emulated faults, each computed when it is first asked for. Several judgments of one case may share it.
class EmulatedFaults {
 public:
  /// All of a case, or `n` rows of the batch.
  struct Part {
    int64_t first = 0, n = 0;
    bool whole = true;
    auto operator<=>(const Part&) const = default;
  };
  /// Gold of a part, by output; empty for one that the part does not hold.
  struct Gold {
    Values value, magnitude, rounding;
  };

  /// The case and its inputs must outlive this object.
  EmulatedFaults(const Case& c, const std::vector<Tensor>& inputs, unsigned threads)
      : c_(c), inputs_(inputs), threads_(threads) {}

  const Gold& gold(const Part& part);
  /// The stored values, by output. `fault` may also be a recipe of the pass.
  const Values& values(const Part& part, std::string_view fault, const Plan& plan);

 private:
  struct Sliced {
    Case c;
    std::vector<Tensor> tensors;        ///< the rows of per-row inputs
    std::vector<const Tensor*> inputs;  ///< nullptr for an absent one
    KeptResults kept = {};
  };
  Sliced& slice(const Part& part);

  const Case& c_;
  const std::vector<Tensor>& inputs_;
  const unsigned threads_;
  std::map<Part, Sliced> slices_;
  std::map<Part, Gold> golds_;
  std::map<std::tuple<Part, std::string, std::string>, Values> values_;
};

/// Whether the gold of the whole case costs no more than any diagnosis may.
bool has_cheap_gold(const JudgedOutputs& judged);

/// For each output, the known faults that explain it. The work is limited to about that of the check itself, counted in
/// operations: for a large case, only some rows of the batch are emulated, or none if even those take too long.
std::vector<KnownFaults> known_faults(const JudgedOutputs& judged, EmulatedFaults& emulated);

/// "is as where the last tile of a sum is left out (last_tile_skipped)", "looks like that of a kernel where ...", for
/// one fault or for several; "" for none.
std::string describe(const KnownFaults& found);

}  // namespace checkop
