// SPDX-License-Identifier: Apache-2.0
// Reads cases/*.json. Format: {"format": "check_operator/cases-1", "cases": [ENTRY, ...]}, where an ENTRY is
//   {"op": "logp", "dims": {"vocab": [1, 257], "seq": 16}, "dtype": ["fp32", "bf16"], "pass": "all",
//    "with": ["none", "bias"], "input_mode": "peaked", "seed": 7, "preset": ["qwen3-8b"], "suites": ["smoke"]}
// Only "op" is required; missing keys have the defaults of the command line. The file of an operator, cases/<op>.json,
// may define under "presets" the operator's sizes in terms of a preset's fields: see preset.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/json.hpp"
#include "case/sweep.hpp"

namespace checkop {
namespace {

/// A string, or an array of strings.
std::vector<std::string> strings(const JsonValue& value) {
  if (!value.is_array()) return {value.sentence()};
  std::vector<std::string> list;
  for (const JsonValue& item : value.items()) list.push_back(item.sentence());
  if (list.empty()) value.fail("at least one name");
  return list;
}

std::vector<int64_t> sizes(const JsonValue& value) {
  if (value.is_string()) return parse_sizes(value.where(), value.string(), 0);
  if (!value.is_array()) return {value.integer(0)};
  std::vector<int64_t> list;
  for (const JsonValue& item : value.items()) list.push_back(item.integer(0));
  if (list.empty()) value.fail("at least one size");
  return list;
}

struct CaseFile {
  JsonValue root;
  const Operator* op;  ///< the operator that the file is named after; nullptr: not named after one
};

std::vector<PresetMapping> mappings_of(const CaseFile& file, const Operator& op) {
  return file.op == &op && file.root.has("presets") ? parse_mappings(op, file.root) : shipped_mappings(op);
}

void append_entry(const CaseFile& file, const JsonValue& entry, std::string_view suite, std::vector<Case>& cases) {
  entry.allow_keys({"op", "pass", "dtype", "dims", "attrs", "preset", "with", "input_mode", "constant_value",
                    "token_value", "ignored_every", "ignored_run", "shard_bounds", "seed", "grad_mode", "grad_seed",
                    "suites", "why"});
  if (const auto why = entry.find("why")) why->sentence();
  if (!suite.empty()) {
    const auto suites = entry.find("suites");
    if (!suites) return;
    const auto listed = strings(*suites);
    if (std::find(listed.begin(), listed.end(), suite) == listed.end()) return;
  }
  const auto names = [&](std::string_view key, const std::vector<std::string>& fallback) {
    const auto value = entry.find(key);
    return value ? strings(*value) : fallback;
  };
  const auto where = [&](std::string_view key) { return fmt::format("{}.{}", entry.where(), key); };
  const auto op_names = strings(entry.at("op"));
  const auto ops = parse_operators(where("op"), op_names);
  const auto presets =
      entry.has("preset") ? parse_presets(where("preset"), names("preset", {})) : std::vector<Preset>{};
  for (const Operator* op : ops) {
    Sweep sweep;
    sweep.op = op;
    if (!presets.empty()) {
      sweep.presets = sizes_of(where("preset"), *op, presets, mappings_of(file, *op), !is_all(op_names));
      if (sweep.presets.empty()) continue;
    }
    sweep.passes = parse_passes(where("pass"), *sweep.op, names("pass", {"all"}));
    sweep.dtypes = parse_dtypes(where("dtype"), names("dtype", {"all"}));
    sweep.optionals = parse_optionals(where("with"), *sweep.op, ops, names("with", {"none"}));
    if (const auto dims = entry.find("dims")) {
      const auto known = dims_of(*sweep.op);
      dims->allow_keys({known.begin(), known.end()});
      for (const auto& [name, value] : dims->members()) sweep.dims[name] = sizes(value);
    }
    if (const auto bounds = entry.find("shard_bounds")) set_bounds(bounds->where(), sizes(*bounds), sweep);
    if (const auto attrs = entry.find("attrs")) {
      std::vector<std::string> known;
      for (const AttrSpec& attr : sweep.op->attrs) known.emplace_back(attr.name);
      attrs->allow_keys(known);
      for (const auto& [name, value] : attrs->members()) sweep.attrs[name] = value.number();
    }
    if (const auto v = entry.find("input_mode")) sweep.data.input_mode = parse_input_mode(v->where(), v->sentence());
    if (const auto v = entry.find("constant_value")) sweep.data.constant_value = v->number();
    if (const auto v = entry.find("token_value")) sweep.data.token_value = v->integer();
    for (const char* value : {"constant_value", "token_value"}) {
      if (entry.has(value) && sweep.data.input_mode != InputMode::constant)
        throw InputError(where(value), "has no effect without \"input_mode\": \"constant\"",
                         "add it, or leave the value out");
    }
    if (const auto v = entry.find("ignored_every")) sweep.data.ignored_every = v->integer(0);
    if (const auto v = entry.find("ignored_run")) sweep.data.ignored_run = v->integer(1);
    if (const auto v = entry.find("seed")) sweep.data.seed = static_cast<uint64_t>(v->integer(0));
    if (const auto v = entry.find("grad_mode")) sweep.data.grad_mode = parse_grad_mode(v->where(), v->sentence());
    if (const auto v = entry.find("grad_seed")) sweep.data.grad_seed = static_cast<uint64_t>(v->integer(0));
    try {
      expand(sweep, cases);
    } catch (const InputError& e) {  // add the place in the file
      throw InputError(entry.where(), e.what());
    }
  }
}

void append_file(const JsonValue& root, std::string_view suite, std::vector<Case>& cases) {
  root.at("format").require_format("check_operator/cases-1");  // before the keys: it may be a file of another kind
  root.allow_keys({"format", "why", "presets", "cases"});
  if (const auto why = root.find("why")) why->sentence();
  const CaseFile file{root, find_operator(std::filesystem::path(root.file()).stem().string())};
  if (const auto section = root.find("presets")) {
    if (file.op == nullptr) {
      throw InputError(section->where(), "the name of the file is not an operator's",
                       "say in cases/<op>.json how presets give the sizes of an operator");
    }
    parse_mappings(*file.op, root);
  }
  for (const JsonValue& entry : root.at("cases").items()) append_entry(file, entry, suite, cases);
}

}  // namespace

std::vector<Case> load_cases(const std::string& path, std::string_view suite) {
  std::vector<std::string> files{path};
  const bool is_folder = std::filesystem::is_directory(path);
  if (is_folder) {
    files.clear();
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == ".json") files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
    if (files.empty()) throw InputError(path, "holds no *.json", "give a case file or a folder of them");
  }
  std::vector<Case> cases;
  for (const std::string& file : files) {
    const JsonValue root = JsonValue::load(file, "a case file");
    if (is_folder && std::filesystem::path(file).filename() == "models.json") {  // presets, not cases
      parse_models(root);
    } else {
      append_file(root, suite, cases);
    }
  }
  return cases;
}

const std::vector<std::string>& shipped_suites() {
  static const std::vector<std::string> kSuites{"smoke",    "ci",         "nightly", "large",
                                                "captured", "invariance", "mutation"};
  return kSuites;
}

}  // namespace checkop
