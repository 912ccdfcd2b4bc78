// SPDX-License-Identifier: Apache-2.0
// Saves and loads a case as one safetensors file.
#include "session/saved_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "base/json.hpp"
#include "case/rank_parts.hpp"
#include "case/sweep.hpp"
#include "device/plugin.hpp"
#include "judge/gold.hpp"
#include "tensor/safetensors.hpp"

namespace checkop {
namespace {

/// Takes tensor GROUP/NAME out of the file; returns an empty tensor for an absent optional one.
Tensor take(const std::string& path, SafetensorsFile& file, const std::string& group, const TensorSpec& spec, Case& c) {
  const std::string name = fmt::format("{}/{}", group, spec.name);
  for (Tensor& tensor : file.tensors) {
    if (tensor.name != name) continue;
    learn_dims(fmt::format("{}: tensor '{}'", path, name), spec, tensor.dtype, tensor.shape, c);
    const std::vector<std::string_view> optionals = optionals_of(*c.pass);
    if (std::find(optionals.begin(), optionals.end(), spec.name) != optionals.end())
      c.optionals.insert(std::string(spec.name));
    tensor.name = spec.name;
    return std::move(tensor);
  }
  if (!spec.optional)
    throw InputError(path, fmt::format("holds no tensor '{}'", name), "save the case again with --save-tensors");
  return {};
}

uint64_t parse_seed(const std::string& where, const std::string& text) {
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc{} || end != text.data() + text.size())
    throw InputError(where, fmt::format("expected an integer from 0 to 2^64 - 1, got '{}'", text),
                     "save the case again");
  return seed;
}

void require_type_and_shape(const std::string& path, const Case& c, const TensorSpec& spec, const Tensor& tensor) {
  if (tensor.name.empty()) return;
  const std::string where = fmt::format("{}: tensor '{}'", path, tensor.name);
  if (tensor.dtype != dtype_of(c, spec)) {
    throw InputError(where, fmt::format("is {}, expected {}", info(tensor.dtype).name, info(dtype_of(c, spec)).name),
                     "save the case again");
  }
  if (const Shape expected = shape_of(c, spec); tensor.shape != expected) {
    throw InputError(where, fmt::format("has shape {}, expected {}", to_string(tensor.shape), to_string(expected)),
                     "save the case again");
  }
}

/// The number that is added to the only name of an extent: 1 for "seqs+1", 0 for "seqs" and "numel/world_size", nullopt
/// for "batch*seq", "hidden/32" or "3".
std::optional<int64_t> summand(std::string_view extent) {
  if (!dim_over_ranks(extent).empty()) return 0;
  const std::vector<std::string_view> names = names_in(extent);
  if (names.size() != 1 || extent.find_first_of("*/") != std::string_view::npos) return {};
  return evaluate_extent(extent, [](std::string_view) { return 0; });
}

/// The sizes of `c` that no tensor gives, from {"experts": 4}.
void read_sizes(const std::string& path, const std::string& text, Case& c) {
  const JsonValue sizes = JsonValue::parse(text, path + ": sizes");
  for (const std::string_view dim : dims_of(*c.op)) {
    if (c.dims.contains(dim) || dim == kWorldSize || !usual_size_of(dim).empty()) continue;
    const auto size = sizes.find(dim);
    if (!size)
      throw InputError(path, fmt::format("neither a tensor nor 'sizes' in its metadata tells {}", dim),
                       "save the case again");
    c.dims.emplace(dim, size->integer(0));
  }
}

/// Parses {"dlogits": [0, 7, 4095]}: the sampled rows of each output; outputs not named have all rows.
std::vector<RowSet> read_rows(const std::string& path, const std::string& text, const Case& c) {
  const JsonValue json = JsonValue::parse(text, path + ": rows");
  std::vector<RowSet> sets(c.pass->outputs.size());
  for (size_t i = 0; i < sets.size(); ++i) {
    const OutputSpec& spec = c.pass->outputs[i];
    const auto list = json.find(spec.tensor.name);
    if (!list || !spec.sampled || !is_present(c, spec.tensor)) continue;
    const int64_t total = judged_view(*c.op, spec.tensor, shape_of(c, spec.tensor)).rows;
    sets[i].all = false;
    for (const JsonValue& item : list->items()) {
      const int64_t row = item.integer(sets[i].chosen.empty() ? 0 : sets[i].chosen.back() + 1);
      if (row >= total) item.fail(fmt::format("a row below {}", total), "save the case again");
      sets[i].chosen.push_back(row);
    }
    if (sets[i].chosen.empty()) list->fail("at least one row", "save the case again");
  }
  return sets;
}

/// Parses [0, 8, 16], the bounds of tensor-parallel parts. An empty list, for a foreign file, means one rank.
void read_bounds(const std::string& path, const std::string& text, Case& c) {
  c.dims[std::string(kWorldSize)] = 1;
  for (const JsonValue& bound : JsonValue::parse(text, path + ": shard_bounds").items())
    c.part_bounds.push_back(bound.integer(0));
  if (c.part_bounds.empty()) return;
  c.dims[std::string(kWorldSize)] = std::ssize(c.part_bounds) - 1;
  Case usual = c;
  usual.part_bounds.clear();
  if (part_bounds(usual) == c.part_bounds) c = usual;
}

}  // namespace

void learn_dims(const std::string& where, const TensorSpec& spec, DType dtype, const Shape& shape, Case& c) {
  const auto names = split_dims(spec.dims);
  if (names.size() != shape.size()) {
    throw InputError(where, fmt::format("has shape {}, expected [{}]", to_string(shape), fmt::join(names, ", ")),
                     "give tensors of one case");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const std::optional<int64_t> more = summand(names[i]);
    if (!more) continue;
    const std::string_view name = names_in(names[i]).front();
    const int64_t size = shape[i] - *more;
    if (size < 0) {
      throw InputError(where, fmt::format("has shape {}, expected [{}]", to_string(shape), fmt::join(names, ", ")),
                       fmt::format("give at least {} for {}", *more, names[i]));
    }
    const auto [place, is_new] = c.dims.emplace(name, size);
    if (!is_new && place->second != size) {
      throw InputError(where, fmt::format("has {} = {}, another tensor has {}", name, size, place->second),
                       "give tensors of one case");
    }
  }
  if (spec.dtype || is_carried(c, spec)) return;
  if (std::find(kCaseDTypes.begin(), kCaseDTypes.end(), dtype) == kCaseDTypes.end()) {
    throw InputError(where, fmt::format("is {}, expected floating-point numbers", info(dtype).name),
                     "give fp64, fp32, fp16 or bf16");
  }
  c.dtype = dtype;
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw InputError(folder, fmt::format("cannot be created: {}", error.message()),
                     "give a folder that can be written");
  }
}

std::string save_case(const std::string& folder, const Case& c, const std::string& candidate,
                      const std::string& arch_key, const std::vector<Tensor>& inputs,
                      const std::vector<Tensor>& outputs, unsigned threads, const std::vector<RowSet>& sampled_rows,
                      const std::vector<std::string>& declared_recipes, LeftOut left_out) {
  const std::vector<RowSet> rows = sampled_rows.empty() ? std::vector<RowSet>(outputs.size()) : sampled_rows;
  make_folder(folder);
  std::vector<SafetensorsEntry> entries;
  const auto add = [&](const std::string& group, const Tensor& tensor, DType dtype) {
    if (!tensor.name.empty()) entries.push_back({group + "/" + tensor.name, dtype, tensor.shape});
  };
  for (const Tensor& tensor : inputs) add("input", tensor, tensor.dtype);
  nlohmann::json sampled = nlohmann::json::object();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& tensor = outputs[i];
    if (tensor.name.empty()) continue;
    add("output", tensor, tensor.dtype);
    Shape shape = tensor.shape;
    if (!rows[i].all) {
      shape = {rows[i].count(0), judged_view(*c.op, c.pass->outputs[i].tensor, tensor.shape).columns};
      sampled[tensor.name] = rows[i].chosen;
    }
    for (const char* group : {"gold/", "magnitude/"}) entries.push_back({group + tensor.name, DType::f64, shape});
  }
  nlohmann::json attrs = nlohmann::json::object();
  for (size_t i = 0; i < c.attrs.size(); ++i) attrs[std::string(c.op->attrs[i].name)] = c.attrs[i];
  nlohmann::json sizes = nlohmann::json::object();
  for (const auto& [name, size] : c.dims) sizes[name] = size;
  std::string path = fmt::format("{}/{}-{}-{}.safetensors", folder, candidate, c.pass->name, case_name(c));
  SafetensorsWriter file(path, entries,
                         {{"op", std::string(c.op->name)},
                          {"pass", std::string(c.pass->name)},
                          {"case", case_name(c)},
                          {"candidate", candidate},
                          {"recipes", fmt::format("{}", fmt::join(declared_recipes, " "))},
                          {"attrs", attrs.dump()},
                          {"sizes", sizes.dump()},
                          {"seed", std::to_string(c.seed)},
                          {"grad_seed", std::to_string(c.grad_seed)},
                          {"arch_key", arch_key},
                          {"shard_bounds", nlohmann::json(part_bounds(c)).dump()},
                          {"rows", sampled.dump()},
                          {"left_out", std::string(to_string(left_out))}});
  for (const Tensor& tensor : inputs) {
    if (!tensor.name.empty()) file.write("input/" + tensor.name, 0, tensor.bytes.data(), tensor.bytes.size());
  }
  for (const Tensor& tensor : outputs) {
    if (!tensor.name.empty()) file.write("output/" + tensor.name, 0, tensor.bytes.data(), tensor.bytes.size());
  }
  const auto write_gold = [&](const GoldRows& block) {
    const auto output = static_cast<size_t>(block.output);
    if (outputs[output].name.empty()) return;
    const std::vector<int64_t>& chosen = rows[output].chosen;  // a block of sampled rows is one row
    const int64_t row = rows[output].all
                            ? block.first_row
                            : std::lower_bound(chosen.begin(), chosen.end(), block.first_row) - chosen.begin();
    const auto offset = static_cast<uint64_t>(row * block.columns) * sizeof(double);
    const auto bytes = static_cast<size_t>(block.n_rows * block.columns) * sizeof(double);
    file.write("gold/" + outputs[output].name, offset, block.value, bytes);
    file.write("magnitude/" + outputs[output].name, offset, block.magnitude, bytes);
  };
  run_gold(c, inputs, threads, write_gold, rows);
  return path;
}

SavedCase load_case(const std::string& path) {
  SafetensorsFile file = read_safetensors(path, {"input/", "output/"}, "give a file that --save-tensors wrote");
  const auto meta = [&](const std::string& key) {
    const auto found = file.metadata.find(key);
    if (found == file.metadata.end())
      throw InputError(path, fmt::format("has no '{}' in its metadata", key), "give a file that --save-tensors wrote");
    return found->second;
  };
  SavedCase saved;
  Case& c = saved.c;
  c.op = parse_operators(path + ": op", {meta("op")}).front();
  c.pass = parse_passes(path + ": pass", *c.op, {meta("pass")}).front();
  saved.candidate = meta("candidate");
  const JsonValue attrs = JsonValue::parse(meta("attrs"), path + ": attrs");
  std::vector<std::string> known;
  for (const AttrSpec& attr : c.op->attrs) known.emplace_back(attr.name);
  attrs.allow_keys(known);
  for (const AttrSpec& attr : c.op->attrs) {
    const auto value = attrs.find(attr.name);
    c.attrs.push_back(value ? value->number() : attr.fallback);
  }
  c.seed = parse_seed(path + ": seed", meta("seed"));
  // Files from other programs may lack these.
  const auto optional_meta = [&](const std::string& key, const std::string& fallback) {
    return file.metadata.contains(key) ? file.metadata.at(key) : fallback;
  };
  c.grad_seed = parse_seed(path + ": grad_seed", optional_meta("grad_seed", meta("seed")));
  saved.arch_key = optional_meta("arch_key", "");
  const std::string declared = optional_meta("recipes", "");
  for (const std::string_view name : split_dims(declared)) saved.declared_recipes.emplace_back(name);
  require_recipes(path + ": recipes", *c.op, saved.declared_recipes);
  if (optional_meta("left_out", "") == to_string(LeftOut::finite)) saved.left_out = LeftOut::finite;
  for (const TensorSpec& spec : c.pass->inputs) saved.inputs.push_back(take(path, file, "input", spec, c));
  for (const OutputSpec& spec : c.pass->outputs) saved.outputs.push_back(take(path, file, "output", spec.tensor, c));
  read_sizes(path, optional_meta("sizes", "{}"), c);
  drop_usual_sizes(c);
  for (size_t i = 0; i < saved.inputs.size(); ++i) {
    require_type_and_shape(path, c, c.pass->inputs[i], saved.inputs[i]);
  }
  for (size_t i = 0; i < saved.outputs.size(); ++i) {
    require_type_and_shape(path, c, c.pass->outputs[i].tensor, saved.outputs[i]);
  }
  if (is_tensor_parallel(c)) read_bounds(path, optional_meta("shard_bounds", "[]"), c);
  validate(c);
  saved.rows = read_rows(path, optional_meta("rows", "{}"), c);
  return saved;
}

}  // namespace checkop
