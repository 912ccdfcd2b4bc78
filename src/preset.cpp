// SPDX-License-Identifier: Apache-2.0
// cases/models.json and the "presets" of case files.
#include "preset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "case.hpp"
#include "error.hpp"
#include "paths.hpp"
#include "text.hpp"

namespace checkop {
namespace {

constexpr double kMaxSize = 1e12;             // of a dimension: beyond it no case is valid
constexpr int64_t kMaxField = 1'000'000'000;  // of a field of a model

bool is_fraction(const std::string& field) { return field == "eps" || field == "theta"; }

std::string_view trim(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos; text.remove_prefix(end + 1)) {
    parts.push_back(trim(text.substr(0, end)));
  }
  parts.push_back(trim(text));
  return parts;
}

bool is_integer(std::string_view factor) {
  return !factor.empty() && factor.size() <= 9 &&
         std::all_of(factor.begin(), factor.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Formula parse_formula(const JsonValue& value) {
  const auto& fields = preset_fields();
  const std::string text = value.sentence();
  Formula formula;
  for (const std::string_view term : split(text, '+')) {
    formula.emplace_back();
    for (const std::string_view part : split(term, '*')) {
      std::string factor(part);
      if (!is_integer(factor) && std::find(fields.begin(), fields.end(), factor) == fields.end()) {
        const std::string nearest = did_you_mean(factor, fields);
        throw InputError(value.where(), fmt::format("unknown field '{}' in '{}'", factor, text),
                         fmt::format("{}write sums of products of integers and: {}",
                                     nearest.empty() ? nearest : nearest + " ", fmt::join(fields, ", ")));
      }
      formula.back().push_back(std::move(factor));
    }
  }
  return formula;
}

/// Nothing when the model lacks a field.
std::optional<double> evaluate(const Formula& formula, const Preset& preset) {
  double sum = 0;
  for (const auto& term : formula) {
    double product = 1;
    for (const std::string& factor : term) {
      const auto field = preset.fields.find(factor);
      if (field == preset.fields.end() && !is_integer(factor)) return {};
      product *= field == preset.fields.end() ? std::stod(factor) : field->second;
    }
    sum += product;
  }
  return sum;
}

PresetMapping parse_mapping(const Operator& op, const JsonValue& value) {
  const auto dims = dims_of(op);
  std::vector<std::string> known(dims.begin(), dims.end());
  for (const AttrSpec& attr : op.attrs) known.emplace_back(attr.name);
  known.emplace_back("why");
  value.allow_keys(known);
  PresetMapping mapping;
  for (const auto& [name, formula] : value.members()) {
    if (name != "why") mapping[name] = parse_formula(formula);
  }
  return mapping;
}

/// A dimension that is named like a field is that field.
void add_dims_named_like_fields(const Operator& op, PresetMapping& mapping) {
  const auto& fields = preset_fields();
  for (const std::string_view dim : dims_of(op)) {
    if (std::find(fields.begin(), fields.end(), dim) == fields.end()) continue;
    mapping.try_emplace(std::string(dim), Formula{{std::string(dim)}});
  }
}

/// "presets": "matmul" stands for what cases/matmul.json has under "presets".
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
  root.at("format").one_of("format", {"check_operator/models-1"});
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

std::string to_string(const Formula& formula) {
  std::vector<std::string> terms;
  for (const auto& term : formula) terms.push_back(fmt::format("{}", fmt::join(term, "*")));
  return fmt::format("{}", fmt::join(terms, " + "));
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
  const auto dims = dims_of(op);
  std::vector<PresetSizes> all;
  for (const Preset& preset : presets) {
    for (const PresetMapping& mapping : mappings) {
      PresetSizes sizes;
      const bool complete = std::all_of(mapping.begin(), mapping.end(), [&](const auto& entry) {
        const auto& [name, formula] = entry;
        const auto value = evaluate(formula, preset);
        if (!value) return false;
        if (std::find(dims.begin(), dims.end(), name) == dims.end()) {
          sizes.attrs[name] = *value;
          return true;
        }
        if (!(*value >= 1 && *value <= kMaxSize && *value == std::floor(*value))) {
          throw InputError(
              where,
              fmt::format("preset {} makes {} of {} {} ({})", preset.name, name, op.name, *value, to_string(formula)),
              "mend the formula in \"presets\"");
        }
        sizes.dims[name] = static_cast<int64_t>(*value);
        return true;
      });
      if (complete && std::find(all.begin(), all.end(), sizes) == all.end()) all.push_back(std::move(sizes));
    }
  }
  if (all.empty() && required) {
    std::vector<std::string> names;
    for (const Preset& preset : presets) names.push_back(preset.name);
    throw InputError(where, fmt::format("{} lacks what the sizes of {} are made of", fmt::join(names, ", "), op.name),
                     "choose another preset, or leave the operator out");
  }
  return all;
}

}  // namespace checkop
