// SPDX-License-Identifier: Apache-2.0
// Presets: the sizes of published models, and what an operator's sizes are in terms of them.
//   cases/models.json   {"format": "check_operator/models-1", "models": {"qwen3-8b": {"hidden": 4096, ..., "source":
//   [...]}}} cases/<op>.json     "presets": [{"k_dim": "hidden", "n_dim": "2*inter"}, ...], or the name of an operator
//   with the same
// An operator without "presets" takes each dimension that is named like a field from that field.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "operator/operator.hpp"

namespace checkop {

struct Preset {
  std::string name;
  std::map<std::string, double, std::less<>>
      fields;                ///< "hidden", "vocab", "eps", ...; what the model lacks is missing
  std::optional<bool> tied;  ///< whether lm_head is the embedding
};

/// The names of a preset's fields, in the order in which they are shown.
const std::vector<std::string>& preset_fields();
/// Throws InputError with file and path for anything but known fields with positive numbers and a source.
std::vector<Preset> parse_models(const JsonValue& root);
/// Those of the shipped cases/models.json.
const std::vector<Preset>& shipped_models();
/// Presets by name; "all" is every one. Throws InputError with a suggestion for an unknown name.
std::vector<Preset> parse_presets(const std::string& where, const std::vector<std::string>& names);

/// What dimensions and attributes of an operator are: dimensions extents in terms of fields,
/// "q_heads*head_dim+2*inter", attributes one field. One operator may have several: the projections of a layer.
using PresetMapping = std::map<std::string, std::string, std::less<>>;

/// The mappings of `op` in `root`, a case file; without "presets" there, the fields named like dimensions.
/// Throws InputError for a name that `op` lacks and a formula of unknown fields.
std::vector<PresetMapping> parse_mappings(const Operator& op, const JsonValue& root);
/// As the shipped cases/<op>.json has them.
std::vector<PresetMapping> shipped_mappings(const Operator& op);

/// Sizes and attributes that a model gives an operator.
struct PresetSizes {
  std::map<std::string, int64_t, std::less<>> dims;
  std::map<std::string, double, std::less<>> attrs;
  bool operator==(const PresetSizes&) const = default;
};

/// What `presets` give `op`, each set of sizes once; a mapping is left out where the model lacks a field of it. `where`
/// names the flag or entry. When nothing is left, the answer is empty, or an InputError when the operator is
/// `required`.
std::vector<PresetSizes> sizes_of(const std::string& where, const Operator& op, const std::vector<Preset>& presets,
                                  const std::vector<PresetMapping>& mappings, bool required);

}  // namespace checkop
