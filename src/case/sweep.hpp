// SPDX-License-Identifier: Apache-2.0
// Expands flags or JSON to cases: every parameter takes several values, and all combinations become cases.
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
  std::map<std::string, std::vector<int64_t>, std::less<>> dims;  ///< a missing size is the preset's, or default_size()
  /// a missing attribute is the preset's, or the operator's default
  std::map<std::string, double, std::less<>> attrs;
  std::vector<PresetSizes> presets;                           ///< each of these; may be empty
  std::vector<std::set<std::string, std::less<>>> optionals;  ///< at least one set; {}: none present
  Case data;                                                  ///< input mode, seeds and the like
};

/// Sets the bounds of the ranks' parts, and with them the number of ranks. Throws InputError at `where` if the operator
/// is not tensor-parallel, or the sweep has another number of ranks.
void set_bounds(const std::string& where, const std::vector<int64_t>& bounds, Sweep& sweep);

/// Appends the sweep's cases in a fixed order; sizes vary fastest. Equal sizes from two presets appear once. Throws
/// InputError as validate() does; throws before creating any case when there would be more than kMaxCases.
void expand(const Sweep& sweep, std::vector<Case>& cases);

/// Default size of a dimension: batch 2, seq 16, vocab 257, one rank, most others 4096.
int64_t default_size(std::string_view dim);

/// Longer lists of sizes or cases are refused as mistakes.
constexpr size_t kMaxSizes = 100'000, kMaxCases = 100'000;

/// Parses "7", "1,7,64", "1:4096:x2" (1, 2, 4, ... 4096), "1:10:3" (1, 4, 7, 10). `where` names the flag in errors.
/// `least` is 0 for extents: validate() decides which of them may be 0, because only row dimensions may.
std::vector<int64_t> parse_sizes(const std::string& where, std::string_view text, int64_t least = 1);

bool is_all(const std::vector<std::string>& names);  ///< whether the list is just "all"

/// Operators by name; "all" selects every operator. Throws InputError with a suggestion for an unknown name.
std::vector<const Operator*> parse_operators(const std::string& where, const std::vector<std::string>& names);
/// Whether `op` has none of the passes `names`, each of which another operator has.
bool lacks_pass(const Operator& op, const std::vector<std::string>& names);
/// The passes of `names` that `op` has; "all" selects every pass. Throws InputError if there are none, or for a name
/// that no operator has.
std::vector<const Pass*> parse_passes(const std::string& where, const Operator& op,
                                      const std::vector<std::string>& names);
/// Floating-point dtypes; "all" selects fp32, bf16 and fp16.
std::vector<DType> parse_dtypes(const std::string& where, const std::vector<std::string>& names);
InputMode parse_input_mode(const std::string& where, const std::string& name);
GradMode parse_grad_mode(const std::string& where, const std::string& name);
/// "none", or optional tensors joined by '+'. Throws InputError for a name that no operator of `known` has; ignores
/// names that `op` lacks but another operator has.
std::vector<std::set<std::string, std::less<>>> parse_optionals(const std::string& where, const Operator& op,
                                                                const std::vector<const Operator*>& known,
                                                                const std::vector<std::string>& settings);

/// Reads and expands a case file, or every *.json of a folder in the order of names. A non-empty `suite` selects the
/// entries that list it under "suites". Throws InputError with file and JSON path.
std::vector<Case> load_cases(const std::string& path, std::string_view suite);

/// Names of the suites in the shipped case files, for hints.
const std::vector<std::string>& shipped_suites();

}  // namespace checkop
