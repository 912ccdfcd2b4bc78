// SPDX-License-Identifier: Apache-2.0
// Flags or JSON -> cases: every knob takes several values, and all combinations become cases.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "case/case.hpp"
#include "case/preset.hpp"

namespace checkop {

/// The cross product of these lists, for one operator.
struct Sweep {
  const Operator* op = nullptr;
  std::vector<const Pass*> passes;
  std::vector<DType> dtypes;
  std::map<std::string, std::vector<int64_t>, std::less<>> dims;  ///< what is missing is a preset's or default_size()
  std::map<std::string, double, std::less<>> attrs;           ///< what is missing is a preset's or the operator's own
  std::vector<PresetSizes> presets;                           ///< of these each; may be empty
  std::vector<std::set<std::string, std::less<>>> optionals;  ///< at least one; {} for none present
  Case data;                                                  ///< input mode, seeds and the like
};

/// Parts of the sharded dimension that are given: as many ranks as there are parts. Throws InputError at `where` for an
/// operator that is not sharded, and where the sweep has other numbers of ranks.
void set_bounds(const std::string& where, const std::vector<int64_t>& bounds, Sweep& sweep);

/// Appends the sweep's cases in a fixed order, sizes fastest. What two presets have in common is there once.
/// Throws InputError as validate() does, and for more than kMaxCases before any is made.
void expand(const Sweep& sweep, std::vector<Case>& cases);

/// Size of a dimension that nobody gave: batch 2, seq 16, vocab 257, one rank, most others 4096.
int64_t default_size(std::string_view dim);

/// A list of sizes or of cases that is longer is a slip.
constexpr size_t kMaxSizes = 100'000, kMaxCases = 100'000;

/// "7", "1,7,64", "1:4096:x2" (1, 2, 4, ... 4096), "1:10:3" (1, 4, 7, 10). `where` names the flag in errors. `least` is
/// 0 for extents: whether one may be 0 is the case's to say, for only rows may.
std::vector<int64_t> parse_sizes(const std::string& where, std::string_view text, int64_t least = 1);

bool is_all(const std::vector<std::string>& names);  ///< "all" alone

/// Operators by name; "all" is every one. Throws InputError with a suggestion for an unknown name.
std::vector<const Operator*> parse_operators(const std::string& where, const std::vector<std::string>& names);
/// Passes of `op`; "all" is every one.
std::vector<const Pass*> parse_passes(const std::string& where, const Operator& op,
                                      const std::vector<std::string>& names);
/// Floating-point dtypes; "all" is fp32, bf16 and fp16.
std::vector<DType> parse_dtypes(const std::string& where, const std::vector<std::string>& names);
InputMode parse_input_mode(const std::string& where, const std::string& name);
GradMode parse_grad_mode(const std::string& where, const std::string& name);
/// "none" or optional inputs joined by '+', "bias". Throws InputError for a name that none of `known` has; what only
/// other operators than `op` have is left out.
std::vector<std::set<std::string, std::less<>>> parse_optionals(const std::string& where, const Operator& op,
                                                                const std::vector<const Operator*>& known,
                                                                const std::vector<std::string>& settings);

/// Reads a case file, or every *.json of a folder in the order of their names, and expands it. An entry with "suites"
/// is taken when `suite` is empty or one of them. Throws InputError with file and JSON path.
std::vector<Case> load_cases(const std::string& path, std::string_view suite);

/// Suites that the shipped case files know, for hints.
const std::vector<std::string>& shipped_suites();

}  // namespace checkop
