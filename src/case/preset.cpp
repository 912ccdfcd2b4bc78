// SPDX-License-Identifier: Apache-2.0
// Reads cases/models.json and the "presets" of case files.
#include "case/preset.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/paths.hpp"
#include "base/text.hpp"
#include "case/case.hpp"

namespace checkop {
namespace {

constexpr int64_t kMaxField = 1'000'000'000;  // largest field of a model

bool is_fraction(const std::string& field) { return field == "eps" || field == "theta"; }

/// Parses a formula: for a dimension an extent made of fields, for an attribute one field.
std::string parse_formula(const JsonValue& value, bool of_dim) {
  std::string formula = value.sentence();
  std::erase(formula, ' ');
  std::vector<std::string> known = preset_fields();
  if (of_dim) std::erase_if(known, is_fraction);
  const auto is_operation = [](char c) { return c == '*' || c == '+'; };
  const bool gap = formula.find_first_of("/()") != std::string::npos || is_operation(formula.front()) ||
                   is_operation(formula.back()) ||
                   std::adjacent_find(formula.begin(), formula.end(), [&](char a, char b) {
                     return is_operation(a) && is_operation(b);
                   }) != formula.end();
  const std::string expected = of_dim ? "sums of products of digits and fields" : "one field";
  if (gap || (!of_dim && names_in(formula) != std::vector<std::string_view>{formula})) value.fail(expected);
  for (const std::string_view name : names_in(formula)) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = did_you_mean(name, known);
    throw InputError(value.where(), fmt::format("unknown field '{}'", name),
                     fmt::format("{}fields: {}", nearest.empty() ? nearest : nearest + " ", fmt::join(known, ", ")));
  }
  return formula;
}

PresetMapping parse_mapping(const Operator& op, const JsonValue& value) {
  const auto dims = dims_of(op);
  std::vector<std::string> known(dims.begin(), dims.end());
  for (const AttrSpec& attr : op.attrs) known.emplace_back(attr.name);
  known.emplace_back("why");
  value.allow_keys(known);
  PresetMapping mapping;
  for (const auto& [name, formula] : value.members()) {
    if (name == "why") {
      formula.sentence();
    } else {
      mapping[name] = parse_formula(formula, !has_attr(op, name));
    }
  }
  return mapping;
}

bool has_fields(const Preset& preset, const PresetMapping& mapping) {
  return std::all_of(mapping.begin(), mapping.end(), [&](const auto& entry) {
    const auto names = names_in(entry.second);
    return std::all_of(names.begin(), names.end(), [&](std::string_view name) { return preset.fields.contains(name); });
  });
}

/// Maps each unmapped dimension that has the name of a field to this field, unless it has a usual size.
void add_dims_named_like_fields(const Operator& op, PresetMapping& mapping) {
  const auto& fields = preset_fields();
  for (const std::string_view dim : dims_of(op)) {
    if (std::find(fields.begin(), fields.end(), dim) == fields.end() || !usual_size_of(dim).empty()) continue;
    mapping.try_emplace(std::string(dim), dim);
  }
}

/// Resolves "presets": "matmul" to the "presets" of cases/matmul.json.
JsonValue mappings_of_another(const Operator& op, const JsonValue& name) {
  const Operator* other = find_operator(name.string());
  if (other == nullptr || other == &op) name.fail("a list of mappings, or another operator that has one");
  return JsonValue::load(find_shipped(fmt::format("cases/{}.json", other->name)), "a case file").at("presets");
}

Preset parse_model(const std::string& name, const JsonValue& model) {
  std::vector<std::string> known = preset_fields();
  for (const char* more : {"tied", "why", "source"}) known.emplace_back(more);
  model.allow_keys(known);
  Preset preset;
  preset.name = name;
  for (const std::string& field : preset_fields()) {
    const auto value = model.find(field);
    if (!value) continue;
    preset.fields[field] =
        is_fraction(field) ? value->number(0, kMaxField) : static_cast<double>(value->integer(1, kMaxField));
    if (!(preset.fields[field] > 0)) value->fail("a number > 0");
  }
  if (preset.fields.empty()) model.fail(fmt::format("at least one of {}", fmt::join(preset_fields(), ", ")));
  if (const auto tied = model.find("tied")) preset.tied = tied->boolean();
  if (const auto why = model.find("why")) why->sentence();
  const JsonValue source = model.at("source");
  const auto sources = source.items();
  for (const JsonValue& each : sources) each.sentence();
  if (sources.empty()) source.fail("at least one source", "say which public file has these numbers");
  return preset;
}

}  // namespace

const std::vector<std::string>& preset_fields() {
  static const std::vector<std::string> fields{"hidden",   "inter",  "dense_inter", "experts",  "q_heads",  "kv_heads",
                                               "head_dim", "q_rank", "kv_rank",     "nope_dim", "rope_dim", "v_dim",
                                               "qk_norm",  "layers", "vocab",       "eps",      "theta"};
  return fields;
}

std::vector<Preset> parse_models(const JsonValue& root) {
  root.allow_keys({"format", "why", "models"});
  root.at("format").require_format("check_operator/models-1");
  if (const auto why = root.find("why")) why->sentence();
  std::vector<Preset> presets;
  for (const auto& [name, model] : root.at("models").members()) {
    if (name == "all" || name.empty() || name.find(',') != std::string::npos) {
      throw InputError(root.at("models").where(), fmt::format("'{}' can't be the name of a preset", name),
                       "choose another name");
    }
    presets.push_back(parse_model(name, model));
  }
  return presets;
}

const std::vector<Preset>& shipped_models() {
  static const std::vector<Preset> models =
      parse_models(JsonValue::load(find_shipped("cases/models.json"), "a file of presets"));
  return models;
}

std::vector<Preset> parse_presets(const std::string& where, const std::vector<std::string>& names) {
  const std::vector<Preset>& known = shipped_models();
  if (names.size() == 1 && names.front() == "all") return known;
  std::vector<Preset> found;
  for (const std::string& name : names) {
    const auto preset = std::find_if(known.begin(), known.end(), [&](const Preset& p) { return p.name == name; });
    if (preset == known.end()) {
      std::vector<std::string> all;
      for (const Preset& each : known) all.push_back(each.name);
      const std::string nearest = did_you_mean(name, all);
      throw InputError(where, fmt::format("unknown preset '{}'", name),
                       fmt::format("{}known: {}", nearest.empty() ? nearest : nearest + " ", fmt::join(all, ", ")));
    }
    found.push_back(*preset);
  }
  return found;
}

std::vector<PresetMapping> parse_mappings(const Operator& op, const JsonValue& root) {
  std::vector<PresetMapping> mappings;
  if (const auto section = root.find("presets")) {
    const JsonValue list = section->is_string() ? mappings_of_another(op, *section) : *section;
    for (const JsonValue& each : list.items()) mappings.push_back(parse_mapping(op, each));
    if (mappings.empty()) section->fail("at least one mapping");
  } else {
    mappings.emplace_back();
  }
  for (PresetMapping& mapping : mappings) add_dims_named_like_fields(op, mapping);
  std::erase_if(mappings, [](const PresetMapping& mapping) { return mapping.empty(); });
  return mappings;
}

std::vector<PresetMapping> shipped_mappings(const Operator& op) {
  return parse_mappings(op, JsonValue::load(find_shipped(fmt::format("cases/{}.json", op.name)), "a case file"));
}

std::vector<PresetSizes> sizes_of(const std::string& where, const Operator& op, const std::vector<Preset>& presets,
                                  const std::vector<PresetMapping>& mappings, bool required) {
  std::vector<PresetSizes> all;
  for (const Preset& preset : presets) {
    for (const PresetMapping& mapping : mappings) {
      if (!has_fields(preset, mapping)) continue;
      PresetSizes sizes;
      const auto size_of = [&](std::string_view name) {
        return static_cast<int64_t>(preset.fields.find(name)->second);
      };
      for (const auto& [name, formula] : mapping) {
        if (has_attr(op, name)) {
          sizes.attrs[name] = preset.fields.at(formula);
        } else {
          sizes.dims[name] = evaluate_extent(formula, size_of);
        }
      }
      if (std::find(all.begin(), all.end(), sizes) == all.end()) all.push_back(std::move(sizes));
    }
  }
  if (all.empty() && required) {
    std::vector<std::string> names;
    for (const Preset& preset : presets) names.push_back(preset.name);
    throw InputError(where, fmt::format("{} lacks fields that the sizes of {} need", fmt::join(names, ", "), op.name),
                     "choose another preset, or leave the operator out");
  }
  return all;
}

}  // namespace checkop
