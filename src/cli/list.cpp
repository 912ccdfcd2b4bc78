// SPDX-License-Identifier: Apache-2.0
// check_operator list and show: the available operators, and one operator's tensors.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "base/output_file.hpp"
#include "base/paths.hpp"
#include "base/version.hpp"
#include "case/sweep.hpp"
#include "cli/commands.hpp"
#include "session/selection.hpp"

namespace checkop {
namespace {

using json = nlohmann::ordered_json;

/// An operator's candidates with their devices and passes: "native (cpu: forward, backward)".
std::string candidates_of(const WorkerInfo& known, std::string_view op) {
  std::map<std::string, std::vector<std::string>> passes;
  for (size_t i = 0; i < known.candidates.size(); ++i) {
    const Candidate& candidate = known.candidates[i];
    if (candidate.op != op) continue;
    const char* device = known.candidate_device[i] == CHECKOP_CPU ? "cpu" : "cuda";
    passes[fmt::format("{} ({}", candidate.name, device)].push_back(candidate.pass);
  }
  std::vector<std::string> words;
  for (const auto& [name, list] : passes) words.push_back(fmt::format("{}: {})", name, fmt::join(list, ", ")));
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, "; "));
}

void print_tensor(const char* kind, const TensorSpec& spec, const std::string& more) {
  std::string dims(spec.dims);
  std::replace(dims.begin(), dims.end(), ' ', ',');
  const std::string carried = spec.carry.empty() ? "" : fmt::format(", fp32 with {}", spec.carry);
  fmt::print("    {:<7} {:<18} [{}]  {}{}{}{}\n", kind, spec.name, dims,
             spec.dtype ? info(*spec.dtype).name : "dtype of the case", carried, spec.optional ? "  optional" : "",
             more);
}

void print_recipe(const Pass& pass, const Recipe& recipe) {
  std::vector<std::string_view> outputs;
  for (const std::string_view name : split_dims(recipe.outputs)) {
    const auto is_it = [&](const OutputSpec& spec) { return spec.tensor.name == name; };
    if (std::any_of(pass.outputs.begin(), pass.outputs.end(), is_it)) outputs.push_back(name);
  }
  fmt::print("    recipe  {:<18} {}: {}\n            {}; {}; {}\n", recipe.name, fmt::join(outputs, ", "),
             recipe.formula, fmt::join(split_dims(recipe.dtypes), ", "),
             recipe.exact ? "the gold rounds there, too" : "the gold allows for the roundings", recipe.source);
}

json describe(const TensorSpec& spec) {
  json dims = json::array();
  for (const std::string_view dim : split_dims(spec.dims)) dims.push_back(dim);
  return {{"name", spec.name},
          {"dims", dims},
          {"dtype", spec.dtype ? json(info(*spec.dtype).name) : json()},
          {"optional", spec.optional}};
}

json describe(const Operator& op) {
  json passes = json::array(), attributes = json::array();
  for (const AttrSpec& attr : op.attrs)
    attributes.push_back({{"name", attr.name}, {"default", attr.fallback}, {"meaning", attr.meaning}});
  for (const Pass& pass : op.passes) {
    json inputs = json::array(), outputs = json::array(), recipes = json::array();
    for (const TensorSpec& spec : pass.inputs) inputs.push_back(describe(spec));
    for (const OutputSpec& spec : pass.outputs) {
      outputs.push_back(describe(spec.tensor));
      outputs.back()["class"] = to_string(spec.numerics);
    }
    for (const Recipe& recipe : pass.recipes) recipes.push_back(recipe.name);
    passes.push_back({{"name", pass.name}, {"inputs", inputs}, {"outputs", outputs}, {"recipes", recipes}});
  }
  return {{"name", op.name}, {"formula", op.formula}, {"attributes", attributes}, {"passes", passes}};
}

/// The values that flags take, and the operators, as JSON. scripts/python_types.py makes types of them.
std::string describe_all(std::span<const Operator* const> chosen) {
  std::vector<std::string> policies;
  for (const auto& file : std::filesystem::directory_iterator(find_shipped("contracts/policies")))
    policies.push_back(file.path().stem().string());
  std::sort(policies.begin(), policies.end());
  json all{{"version", kVersion},        {"dtypes", {"fp32", "bf16", "fp16", "fp64"}},
           {"classes", class_names()},   {"checks", {"accuracy", "invariance", "determinism", "memory"}},
           {"suites", shipped_suites()}, {"policies", policies},
           {"operators", json::array()}};
  for (const Operator* op : chosen) all["operators"].push_back(describe(*op));
  return all.dump(1) + "\n";
}

}  // namespace

int list_command(const Options& options) {
  const WorkerInfo known = probe_candidates({}, options.run.plugins);
  for (const Operator* op : operators()) {
    fmt::print("{:<18} {}\n{:<18} candidates: {}\n", op->name, op->formula, "", candidates_of(known, op->name));
  }
  fmt::print("\npresets, for --preset:\n");
  for (const Preset& preset : shipped_models()) {
    std::string sizes;
    for (const std::string& field : preset_fields()) {
      const auto value = preset.fields.find(field);
      if (value != preset.fields.end()) sizes += fmt::format("  {} {}", field, value->second);
    }
    if (preset.tied) sizes += *preset.tied ? "  tied" : "  untied";
    fmt::print("{:<14}{}\n", preset.name, sizes);
  }
  return 0;
}

int show_command(const Options& options) {
  if (options.run.has("--json")) {
    std::vector<const Operator*> one;
    if (!options.show_op.empty()) one = parse_operators("show", {options.show_op});
    const std::string text = describe_all(one.empty() ? operators() : one);
    if (options.run.json_to_stdout) {
      fmt::print("{}", text);
    } else {
      write_file(options.run.json_file, text);
    }
    return 0;
  }
  const Operator& op = *parse_operators("show", {options.show_op}).front();
  const WorkerInfo known = probe_candidates({std::string(op.name)}, options.run.plugins);
  fmt::print("{}: {}\n  class: {}; rows: {}\n", op.name, op.formula, op.op_class, op.row_dims);
  if (!op.parallel_dim.empty()) {
    fmt::print("  ranks share: {} (--world-size, --shard-bounds); tensors are shown whole, a rank gets its part\n",
               op.parallel_dim);
  }
  for (const std::string_view dim : dims_of(op))
    if (const std::string_view usual = usual_size_of(dim); !usual.empty())
      fmt::print("  size {} (default {})\n", dim, usual);
  for (const AttrSpec& attr : op.attrs)
    fmt::print("  attribute {} (default {}): {}\n", attr.name, attr.fallback, attr.meaning);
  for (const Pass& pass : op.passes) {
    fmt::print("  {}\n", pass.name);
    for (const TensorSpec& spec : pass.inputs) print_tensor("input", spec, "");
    for (const OutputSpec& spec : pass.outputs) {
      print_tensor("output", spec.tensor,
                   fmt::format("  {}{}", to_string(spec.numerics), is_per_row(op, spec.tensor) ? ", row-wise" : ""));
    }
    for (const Recipe& recipe : pass.recipes) print_recipe(pass, recipe);
  }
  for (const PresetMapping& mapping : shipped_mappings(op)) {
    std::vector<std::string> words;
    for (const auto& [name, formula] : mapping) words.push_back(fmt::format("{} = {}", name, formula));
    fmt::print("  of a preset: {}\n", fmt::join(words, ", "));
  }
  fmt::print("  candidates: {}\n", candidates_of(known, op.name));
  return 0;
}

}  // namespace checkop
