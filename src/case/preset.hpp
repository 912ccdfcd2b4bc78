// SPDX-License-Identifier: Apache-2.0
// Presets: the sizes of published models, and an operator's sizes in terms of them.
//   cases/models.json  {"format": "check_operator/models-1",
//                       "models": {"qwen3-8b": {"hidden": 4096, ..., "source": [...]}}}
//   cases/<op>.json    "presets": [{"k_dim": "hidden", "n_dim": "2*inter"}, ...], or the name of an operator whose
//                      "presets" to use
// Without "presets", each dimension that has the name of a field takes this field's value.
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
  std::map<std::string, double, std::less<>> fields;  ///< "hidden", "vocab", "eps", ...; only fields that the model has
  std::optional<bool> tied;                           ///< whether lm_head shares the embedding's weight
};

/// The names of a preset's fields, in display order.
const std::vector<std::string>& preset_fields();
/// Reads models. Throws InputError with file and path unless every model has only known fields with positive numbers,
/// and a source.
std::vector<Preset> parse_models(const JsonValue& root);
/// The models of the shipped cases/models.json.
const std::vector<Preset>& shipped_models();
/// Presets by name; "all" selects every preset. Throws InputError with a suggestion for an unknown name.
std::vector<Preset> parse_presets(const std::string& where, const std::vector<std::string>& names);

/// Formulas for an operator's dimensions and attributes: for a dimension an extent in terms of fields,
/// "q_heads*head_dim+2*inter", for an attribute one field. An operator may have several mappings, such as one for each
/// projection of a layer.
using PresetMapping = std::map<std::string, std::string, std::less<>>;

/// The mappings of `op` in the case file `root`. Without "presets" there, dimensions take the fields of the same name.
/// Throws InputError for a name that `op` lacks and for a formula with unknown fields.
std::vector<PresetMapping> parse_mappings(const Operator& op, const JsonValue& root);
/// The mappings of the shipped cases/<op>.json.
std::vector<PresetMapping> shipped_mappings(const Operator& op);

/// Sizes and attributes that one model gives an operator.
struct PresetSizes {
  std::map<std::string, int64_t, std::less<>> dims;
  std::map<std::string, double, std::less<>> attrs;
  bool operator==(const PresetSizes&) const = default;
};

/// The distinct sizes that `presets` give `op`. Skips a mapping when the model lacks one of its fields. Without any
/// sizes, returns an empty list, or throws InputError at `where`, the flag or entry, if the operator is `required`.
std::vector<PresetSizes> sizes_of(const std::string& where, const Operator& op, const std::vector<Preset>& presets,
                                  const std::vector<PresetMapping>& mappings, bool required);

}  // namespace checkop
