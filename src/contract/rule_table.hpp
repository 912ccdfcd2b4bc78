// SPDX-License-Identifier: Apache-2.0
// The rule table, which the contract readers fill and contract.cpp searches: rules, overlays and what they match.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "contract/contract.hpp"

namespace checkop {

/// One output of one pass with the dtypes of a case; rules match it.
struct JudgedOutput {
  const Operator* op;
  const Pass* pass;
  const OutputSpec* output;
  DType dtype;  ///< dtype of the output
  DType case_dtype;
};

std::string describe(const JudgedOutput& target);  ///< "logp/forward logp fp32 (case bf16)"
std::vector<JudgedOutput> all_targets();           ///< every output of every operator

/// The keys of a "match". An unset key matches everything.
struct RuleMatch {
  std::string output, op, pass;
  std::vector<DType> dtypes;  ///< dtypes of the output
  std::optional<Numerics> numerics;
  std::string arch, candidate;      ///< for overlays; the candidate is a glob
  std::string op_class;             ///< RL-Kernel format
  std::optional<DType> case_dtype;  ///< RL-Kernel format

  bool fits(const JudgedOutput& t) const {
    return (output.empty() || output == t.output->tensor.name) && (op.empty() || op == t.op->name) &&
           (dtypes.empty() || std::find(dtypes.begin(), dtypes.end(), t.dtype) != dtypes.end()) &&
           (pass.empty() || pass == t.pass->name) && (!numerics || *numerics == t.output->numerics) &&
           (op_class.empty() || op_class == t.op->op_class) && (!case_dtype || *case_dtype == t.case_dtype);
  }
  /// Whether this can match tensors from files, which may have any numerics and any floating dtype.
  bool may_fit_files() const {
    const auto is_float = [](DType dtype) { return info(dtype).is_float; };
    return output.empty() && op.empty() && numerics &&
           (dtypes.empty() || std::any_of(dtypes.begin(), dtypes.end(), is_float));
  }
  bool fits(const Subject& s) const {
    return (arch.empty() || arch == s.arch_key) &&
           (candidate.empty() || (!s.candidate.empty() && glob_matches(candidate, s.candidate)));
  }
  /// Whether some subject fits both.
  bool meets(const RuleMatch& other) const {
    return (arch.empty() || other.arch.empty() || arch == other.arch) &&
           (candidate.empty() || other.candidate.empty() || globs_overlap(candidate, other.candidate));
  }
  /// Whether this fits every subject that `other` fits. Wrongly false for a few pairs of globs.
  bool covers(const RuleMatch& other) const {
    return (arch.empty() || arch == other.arch) &&
           (candidate.empty() || (!other.candidate.empty() && glob_covers(candidate, other.candidate)));
  }
  /// One binary digit per key, so that equal values mean equal sets of keys. A candidate's name counts more than a
  /// glob.
  int specificity() const {
    const int by_candidate = candidate.empty() ? 0 : is_glob(candidate) ? 1 : 2;
    return 64 * by_candidate + 32 * !arch.empty() + 16 * !output.empty() + 8 * !op.empty() + 4 * !dtypes.empty() +
           2 * !pass.empty() + 1 * numerics.has_value();
  }
};

/// The numbers of a gate that a file sets.
struct GateNumbers {
  struct Number {
    const GateKey* key;
    double real;
    int64_t integer;

    double value() const { return key->real != nullptr ? real : static_cast<double>(integer); }
    void apply(Gate& gate) const {
      if (key->real != nullptr) gate.*key->real = real;
      if (key->integer != nullptr) gate.*key->integer = integer;
    }
  };
  Metric metric = Metric::bound_ratio;
  std::vector<Number> set;

  const Number* find(const GateKey* key) const {
    const auto found = std::find_if(set.begin(), set.end(), [key](const Number& n) { return n.key == key; });
    return found == set.end() ? nullptr : &*found;
  }
};

struct GateList {
  std::vector<Gate> gates;
  std::vector<GateNumbers> numbers;     ///< numbers in the file, in the order of the gates; the rest are defaults
  std::vector<std::string> gate_paths;  ///< "rules[3].gates[0]", in the same order

  const Gate* find(Metric metric) const {
    const auto found = std::find_if(gates.begin(), gates.end(), [metric](const Gate& g) { return g.metric == metric; });
    return found == gates.end() ? nullptr : &*found;
  }
};

struct Rule : GateList {
  RuleMatch match;
  std::vector<std::string> recipes;  ///< granted to every candidate
  std::optional<LeftOut> left_out;
  bool nonfinite_may_match = false;
  std::string path;  ///< "rules[3]"
  std::string why;
};

/// Reason and owner of an exception, and its expiry date.
struct Grant {
  std::string reason, owner;
  std::optional<Date> expires;  ///< the last valid day; none: "never"

  bool expired(Date today) const { return expires && today > *expires; }
};

struct Overlay {
  RuleMatch match;
  std::vector<GateNumbers> set;
  GateList added;                    ///< gates of metrics that the matching rules lack
  std::vector<std::string> recipes;  ///< granted beside those of the rule; "loosen" must say so
  std::optional<LeftOut> left_out;   ///< in place of the rule's; for finite, "loosen" must say so
  bool loosen = false;
  Grant grant;
  std::string path;  ///< "overlays[0]", "accuracy.arch_overrides.sm90.logprob.fp32"

  /// Whether it accepts what the rule may reject, other than by numbers.
  bool permits() const { return !recipes.empty() || left_out == LeftOut::finite; }

  const GateNumbers::Number* find(Metric metric, const GateKey* key) const {
    for (const GateNumbers& numbers : set)
      if (numbers.metric == metric) return numbers.find(key);
    return nullptr;
  }
};

struct KnownEntry {
  RuleMatch match;    ///< op, pass, arch and candidate; dtypes are those of the case
  std::string cases;  ///< a glob for the case's name; "" for all
  KnownFailure failure;
  Grant grant;

  bool fits(const Case& c, const Subject& subject) const {
    return fits_all_but_name(c) && match.fits(subject) && (cases.empty() || glob_matches(cases, case_name(c)));
  }
  bool fits_all_but_name(const Case& c) const {
    return (match.op.empty() || match.op == c.op->name) && (match.pass.empty() || match.pass == c.pass->name) &&
           (match.dtypes.empty() || std::find(match.dtypes.begin(), match.dtypes.end(), c.dtype) != match.dtypes.end());
  }
};

struct RuleTable {
  std::vector<Rule> rules;
  std::vector<KnownEntry> known;
  std::vector<Overlay> overlays;              ///< from the least to the most specific
  std::string base_text;                      ///< of the file that the contract extends; "" for none
  std::vector<std::string> declared_recipes;  ///< granted to kernels that declare them; see Subject::declared
  Sampling sampling;
  Demands demands;                                               ///< for operators without an entry in operator_demands
  std::map<std::string, Demands, std::less<>> operator_demands;  ///< complete demands, by operator
};

/// The most specific rule that fits; nullptr when none does. Throws InputError for a tie.
const Rule* most_specific(const std::vector<Rule>& rules, const JudgedOutput& target, const std::string& file);

/// Calls body(target, rule, gate, numbers) for every output that `overlay` fits, and for every gate whose numbers it
/// sets.
template <class Body>
void for_each_gate(const Overlay& overlay, const RuleTable& table, const std::string& file, const Body& body) {
  for (const JudgedOutput& target : all_targets()) {
    if (!overlay.match.fits(target)) continue;
    const Rule* rule = most_specific(table.rules, target, file);
    if (rule == nullptr) continue;
    for (const GateNumbers& numbers : overlay.set)
      if (const Gate* gate = rule->find(numbers.metric)) body(target, *rule, *gate, numbers);
  }
}

/// A number that an overlay replaces.
struct Underneath {
  std::string path;  ///< path of a rule or of a less specific overlay
  double value;
};

/// The values that the number `key` of `overlay` may replace at `target`: the rule's, and those of all less specific
/// overlays of `all` that can fit the same subject. Throws InputError for an equally specific overlay.
std::vector<Underneath> what_lies_below(const Overlay& overlay, const std::vector<Overlay>& all,
                                        const JudgedOutput& target, const Rule& rule, const Gate& gate,
                                        const GateKey& key, const std::string& file);

/// Throws InputError for an unknown architecture.
void require_known_arch(const std::string& where, std::string_view key);
const std::vector<std::string>& all_archs();

}  // namespace checkop
