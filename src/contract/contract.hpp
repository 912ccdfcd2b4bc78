// SPDX-License-Identifier: Apache-2.0
// Contracts, read from JSON: the gates that judge an output of a case, and the source of each number.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/date.hpp"
#include "case/axes.hpp"
#include "case/case.hpp"
#include "contract/gate.hpp"

namespace checkop {

/// The source of one number of a gate.
struct NumberSource {
  Metric metric;
  const GateKey* key;
  std::string path;         ///< "rules[3].gates[0]", "overlays[1]"; "" for a default
  std::string reason = {};  ///< the overlay's reason
};

/// RecipeGrant::path of a recipe that the contract grants to kernels that declare it.
inline constexpr const char* kDeclaredRecipes = "declared_recipes";

/// A recipe that an output may be judged by; see Recipe.
struct RecipeGrant {
  std::string name;
  std::string path;         ///< "rules[3]", "overlays[1]", "--recipe" or kDeclaredRecipes
  std::string reason = {};  ///< the overlay's reason
};

/// What generated inputs may hold where the operator leaves elements out; see LeftOut.
struct LeftOutDemand {
  LeftOut content = LeftOut::nonfinite;
  std::string path = {};    ///< "rules[3]", "overlays[1]"; "" for the default
  std::string reason = {};  ///< the overlay's reason
};

struct Gates {
  std::vector<Gate> all;  ///< never empty
  /// An output element may be non-finite where the gold is non-finite in the same way.
  bool nonfinite_may_match = false;
  std::string source;                      ///< the selected rule
  std::string why = {};                    ///< the rule's reason; "" in the RL-Kernel format
  std::vector<NumberSource> numbers = {};  ///< the source of every number of every gate
  std::vector<RecipeGrant> recipes = {};   ///< those that the output has in this case, in the order of the pass
  /// How many errors of an output's elements count as independent: one per row, and at most this many; 0: all of them.
  int64_t independent = 0;
  LeftOutDemand left_out = {};
  std::vector<std::string> withheld = {};  ///< one sentence for each number that an expired overlay no longer loosens
};

/// The device and candidate under test, which overlays match.
struct Subject {
  std::string_view arch_key = {};              ///< architecture of the device, "sm90"; "" for none
  std::string_view candidate = {};             ///< name of the candidate; "" matches no overlay that names candidates
  std::span<const std::string> declared = {};  ///< recipes that the kernel declares; the contract may grant these
  bool copies_outputs = false;  ///< its outputs come from a file or other memory, without the poison of unwritten ones
};

/// A failure that the contract expects of a check. It excuses only the kinds that it names. A check that passes
/// nevertheless fails the run, so that the entry is removed with its cause.
struct KnownFailure {
  std::string path;                ///< "known[0]"
  std::vector<std::string> kinds;  ///< values of Judgment::kind; all known_kinds() if the file names none
  std::string reason, owner;
  std::string issue;    ///< "" for none
  std::string expires;  ///< "2027-01-31" or "never"
};
/// Kinds of failure that a contract may expect. Writes outside the candidate's own memory, crashes and time-outs are
/// not among them: after these, no other result of the check is reliable.
const std::vector<std::string>& known_kinds();

/// Bitwise requirements on repeated launches and on the batch.
struct Demands {
  bool determinism = true;        ///< repeated launches give the same bits
  bool batch_invariance = true;   ///< a per-row output's bits do not depend on the other rows
  int runs = 20;                  ///< launches that must agree when the axis `repetition` is checked
  AxisSet axes = AxisSet::all();  ///< axes that count, of both requirements
};

/// When to compute the gold only for a sample of rows.
struct Sampling {
  double above = std::numeric_limits<double>::infinity();  ///< sample if gold_work() exceeds this
  int64_t rows = 0;                                        ///< rows per output; see sample_rows()

  int64_t rows_for(double work) const { return work > above ? rows : 0; }  ///< 0: all rows
};

/// Longest chain of additions in a sum of `terms` terms under `gate`: ceil(terms/step), at most max_chain.
int64_t chain_length(const Gate& gate, int64_t terms);

/// Growth of the rounding error of a sum of `terms` terms in arithmetic of unit roundoff `u` under `gate`:
///   growth = lambda*sqrt(h)*u,  h = chain_length()
/// Probabilistic rounding error bound: Higham & Mary, SIAM J. Sci. Comput. 41 (2019) A2815; Ipsen & Zhou, arXiv
/// 1906.10465.
double sum_growth(const Gate& gate, int64_t terms, double u);

struct RuleTable;  // rule_table.hpp

/// The rules and overlays of a contract. Exactly one rule judges an output: the most specific match. Keys count in this
/// order: output, op, dtype, pass, numerics; a rule that names the output beats all rules that do not. Two rules that
/// name the same keys and match the same output are a tie, which is an error.
///
/// All matching overlays, each for an architecture, a candidate or both, apply on top of the rule. Each number comes
/// from the most specific overlay that sets it: a candidate's name beats a glob, a glob beats an architecture, an
/// architecture beats all keys of rules. So overlays that tighten different numbers do not undo each other. Two equally
/// specific overlays that set the same number are an error. An overlay may set a number looser than the rule or a less
/// specific overlay only with "loosen": true. An overlay may also add gates of metrics that neither the rule nor
/// another overlay has there; overlays can set only the numbers of a rule's gates.
///
/// After its expiry date an overlay no longer loosens anything, but it still tightens and adds: only the permission
/// expires, and the passing of a day must not make a check pass.
///
/// Files of the RL-Kernel format have one rule per op_class and dtype of the *case*, for both passes. They judge
/// integers bitwise.
class Contract {
 public:
  /// Reads contract-2 files and files of the RL-Kernel format. Throws InputError with file and JSON path for: an
  /// unknown key, a negative or non-finite number, an unknown architecture or operator, an empty contract, a rule that
  /// matches no operator's output, and overlays that tie, loosen without saying so, or have no effect. `today` decides
  /// which entries have expired; by default every entry with an expiry date has.
  static Contract load(const std::string& path, Date today = kEndOfTime);
  static Contract parse(std::string_view text, const std::string& path, Date today = kEndOfTime);

  /// Grants recipes to every candidate, beside those of the contract: --recipe. Throws InputError for an unknown name.
  void grant(std::vector<std::string> recipes);

  /// The gates for `output` of `c`. Throws InputError when no rule matches or when two rules match equally well.
  Gates gates_for(const Case& c, const OutputSpec& output, const Subject& subject) const;
  /// The "demands" of the contract, overridden by the operator's entry in "demands.operators".
  Demands demands_for(const Case& c, const OutputSpec& output) const;

  /// The key `gold`; without it, every row is computed.
  const Sampling& sampling() const;

  /// The failures expected of `subject` on `c`, in the order of the file. Expired entries do not count.
  std::vector<KnownFailure> known_for(const Case& c, const Subject& subject) const;

  /// One sentence for each expired entry: "overlays[2] expired on 2026-01-01: what it loosens no longer holds".
  std::vector<std::string> warnings() const;

  const RuleTable& table() const { return *table_; }
  Date date() const { return today_; }  ///< the date that decides which entries have expired
  const std::string& path() const { return path_; }
  const std::string& hash() const { return hash_; }  ///< FNV-1a 64 of the text, 16 hex digits

 private:
  std::string path_, hash_;
  std::vector<std::string> granted_;  ///< by grant()
  Date today_ = kEndOfTime;
  std::shared_ptr<const RuleTable> table_;
};

/// Whether contracts and --arch-key may name this architecture ("sm80" ...).
bool is_known_arch(std::string_view key);
std::string known_archs();  ///< "sm80, sm86, ..." for messages

}  // namespace checkop
