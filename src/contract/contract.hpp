// SPDX-License-Identifier: Apache-2.0
// JSON -> Contract: which gates judge an output of a case, and where each number came from.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/date.hpp"
#include "case/axes.hpp"
#include "case/case.hpp"
#include "contract/gate.hpp"

namespace checkop {

/// Where a number of a gate came from.
struct NumberSource {
  Metric metric;
  const GateKey* key;
  std::string path;         ///< "rules[3].gates[0]", "overlays[1]"; "" for a default
  std::string reason = {};  ///< of an overlay
};

struct Gates {
  std::vector<Gate> all;                   ///< never empty
  bool nonfinite_may_match = false;        ///< a non-finite gold may be answered by the same kind of non-finite
  std::string source;                      ///< the rule that was chosen
  std::string why = {};                    ///< the rule's; "" in the seed's format
  std::vector<NumberSource> numbers = {};  ///< of every number of every gate
  std::vector<std::string> withheld = {};  ///< what overlays that have expired no longer loosen, a sentence each
};

/// Whose outputs are judged, as overlays match it.
struct Subject {
  std::string_view arch_key = {};   ///< of the device, "sm90"; "" for none
  std::string_view candidate = {};  ///< its name; "" for one without a name, which no overlay names
};

/// A failure that the contract expects of a check. It hides the kinds that it names and nothing else; a check that
/// passes all the same fails the run, so that an entry goes when its cause has gone.
struct KnownFailure {
  std::string path;                ///< "known[0]"
  std::vector<std::string> kinds;  ///< of Judgment::kind; all of known_kinds() where the file names none
  std::string reason, owner;
  std::string issue;    ///< "" for none
  std::string expires;  ///< "2027-01-31" or "never"
};
/// Kinds of failure that may be expected. What a candidate does to memory that is not its own is not among them, nor
/// are crashes and time-outs: after these nothing else that was seen can be relied on.
const std::vector<std::string>& known_kinds();

/// Bitwise conditions on repetition and on the batch.
struct Demands {
  bool determinism = true;        ///< two runs give the same bits
  bool batch_invariance = true;   ///< a per-row output's bits do not depend on the other rows
  int runs = 20;                  ///< launches that must agree where repetition is looked at by name
  AxisSet axes = AxisSet::all();  ///< of both: those that count
};

/// When the gold is computed for a sample of rows only.
struct Sampling {
  double above = std::numeric_limits<double>::infinity();  ///< of gold_work()
  int64_t rows = 0;                                        ///< of each output; see sample_rows()

  int64_t rows_for(double work) const { return work > above ? rows : 0; }  ///< 0: all
};

/// Additions, one after the other, that a sum of `terms` terms may take under `gate`: ceil(terms/step), at most
/// max_chain.
int64_t chain_length(const Gate& gate, int64_t terms);

/// For the growth of a sum of `terms` terms in arithmetic of unit roundoff `u` under `gate`:
///   growth = lambda*sqrt(h)*u,  h = chain_length()
/// Probabilistic rounding error bound: Higham & Mary, SIAM J. Sci. Comput. 41 (2019) A2815; Ipsen & Zhou, arXiv
/// 1906.10465.
double sum_growth(const Gate& gate, int64_t terms, double u);

struct RuleTable;  // rule_table.hpp

/// Rules, of which exactly one judges an output: the most specific that matches. Order, from what weighs most: output,
/// op, dtype, pass, numerics; a rule that names the output beats all rules that do not, whatever else they name. Two
/// rules that name the same keys and match the same output are a tie, and an error.
///
/// Over the rule lie all overlays that match, each for an architecture, a candidate or both. A number is that of the
/// most specific overlay that sets it: a candidate by its name beats a glob, a glob an architecture, an architecture
/// everything that rules name. So an overlay that tightens one number does not undo another's tightening of a second.
/// Two equally specific overlays that set the same number are an error of the file. An overlay may set a number to a
/// looser one, than the rule has or an overlay below it, only when it says so. An overlay may also add gates, of
/// metrics that neither the rule nor another overlay has there; numbers that overlays set are those of rules.
///
/// Past its date an overlay no longer loosens anything, but what it tightens or adds stays: what runs out is a
/// permission, and no check may turn green because a day has gone by.
///
/// Files of the seed's format have one rule per op_class and dtype of the *case*, for both passes; they judge integers
/// by their bits.
class Contract {
 public:
  /// Reads contract-2 files and files of the seed's format. Throws InputError with file and JSON path for an unknown
  /// key, a negative or non-finite number, an unknown architecture or operator, an empty contract or a rule that
  /// matches no operator's output; for overlays that tie, loosen in silence or change nothing there is.
  /// `today` decides what has expired; without it everything has that can.
  static Contract load(const std::string& path, Date today = kEndOfTime);
  static Contract parse(std::string_view text, const std::string& path, Date today = kEndOfTime);

  /// The gates for `output` of `c`. Throws InputError when no rule matches or when two rules match equally well.
  Gates gates_for(const Case& c, const OutputSpec& output, const Subject& subject) const;
  /// What `demands` says, and of it what `demands.operators` says otherwise of the operator.
  Demands demands_for(const Case& c, const OutputSpec& output) const;

  /// From the key `gold`; without it every row is computed.
  const Sampling& sampling() const;

  /// Failures that are expected of `subject` on `c`, in the order of the file. An entry that has expired expects
  /// nothing.
  std::vector<KnownFailure> known_for(const Case& c, const Subject& subject) const;

  /// What has expired, a sentence each: "overlays[2] expired on 2026-01-01: what it loosens no longer holds".
  std::vector<std::string> warnings() const;

  const RuleTable& table() const { return *table_; }
  Date date() const { return today_; }  ///< on which it was decided what has expired
  const std::string& path() const { return path_; }
  const std::string& hash() const { return hash_; }  ///< FNV-1a 64 of the text, 16 hex digits

 private:
  std::string path_, hash_;
  Date today_ = kEndOfTime;
  std::shared_ptr<const RuleTable> table_;
};

/// "sm80" ... that contracts and --arch-key may name.
bool is_known_arch(std::string_view key);
std::string known_archs();  ///< "sm80, sm86, ..." for messages

}  // namespace checkop
