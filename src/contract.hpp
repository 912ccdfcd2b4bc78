// SPDX-License-Identifier: Apache-2.0
// JSON -> Contract: which gates judge an output of a case, and where each number came from.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "case.hpp"
#include "gate.hpp"

namespace checkop {

struct Gates {
  std::vector<Gate> all;             ///< never empty
  bool nonfinite_may_match = false;  ///< a non-finite gold may be answered by the same kind of non-finite
  std::string source;                ///< the rule that was chosen
};

/// Bitwise conditions on repetition and on the batch.
struct Demands {
  bool determinism = true;       ///< two runs give the same bits
  bool batch_invariance = true;  ///< a per-row output's bits do not depend on the other rows
};

/// When the gold is computed for a sample of rows only.
struct Sampling {
  double above = std::numeric_limits<double>::infinity();  ///< of gold_work()
  int64_t rows = 0;                                        ///< of each output; see sample_rows()

  int64_t rows_for(double work) const { return work > above ? rows : 0; }  ///< 0: all
};

/// For the growth of a sum of `terms` terms in arithmetic of unit roundoff `u` under `gate`:
///   h = ceil(terms/step), at most max_chain;   growth = lambda*sqrt(h)*u
/// Probabilistic rounding error bound: Higham & Mary, SIAM J. Sci. Comput. 41 (2019) A2815; Ipsen & Zhou, arXiv
/// 1906.10465.
double sum_growth(const Gate& gate, int64_t terms, double u);

struct RuleTable;  // contract.cpp

/// Rules, of which exactly one judges an output: the most specific that matches. Order, from what weighs most: output,
/// op, dtype, pass, numerics; a rule that names the output beats all rules that do not, whatever else they name. Two
/// rules that name the same keys and match the same output are a tie, and an error. On an architecture the most
/// specific override of that architecture, in the same order, replaces the numbers that it sets and inherits the rest.
/// Files of the seed's format have one rule per op_class and dtype of the *case*, for both passes; they judge integers
/// by their bits.
class Contract {
 public:
  /// Reads contract-2 files and files of the seed's format. Throws InputError with file and JSON path for an unknown
  /// key, a negative or non-finite number, an unknown architecture or operator, an empty contract or a rule that
  /// matches no operator's output.
  static Contract load(const std::string& path);
  static Contract parse(std::string_view text, const std::string& path);

  /// The gates for `output` of `c` on `arch_key` ("sm90"; "" for none).
  /// Throws InputError when no rule matches or when two rules match equally well.
  Gates gates_for(const Case& c, const OutputSpec& output, std::string_view arch_key) const;
  /// What `demands` says, and of it what `demands.operators` says otherwise of the operator.
  Demands demands_for(const Case& c, const OutputSpec& output) const;

  /// From the key `gold`; without it every row is computed.
  const Sampling& sampling() const;

  const std::string& path() const { return path_; }
  const std::string& hash() const { return hash_; }  ///< FNV-1a 64 of the text, 16 hex digits

 private:
  std::string path_, hash_;
  std::shared_ptr<const RuleTable> table_;
};

/// "sm80" ... that contracts and --arch-key may name.
bool is_known_arch(std::string_view key);
std::string known_archs();  ///< "sm80, sm86, ..." for messages

}  // namespace checkop
