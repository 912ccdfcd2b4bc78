// SPDX-License-Identifier: Apache-2.0
// A case as one safetensors file.
#include "saved_case.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "error.hpp"
#include "gold.hpp"
#include "json.hpp"
#include "safetensors.hpp"
#include "sweep.hpp"

namespace checkop {
namespace {

/// Infers the sizes from the shapes of stored tensors. Throws when two tensors disagree.
void learn_dims(const std::string& path, const TensorSpec& spec, const Tensor& tensor, Case& c) {
  const auto names = split_dims(spec.dims);
  if (names.size() != tensor.shape.size()) {
    throw InputError(fmt::format("{}: tensor '{}'", path, tensor.name),
                     fmt::format("has shape {}, expected [{}]", to_string(tensor.shape), fmt::join(names, ", ")),
                     "save the case again");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const auto [place, is_new] = c.dims.emplace(names[i], tensor.shape[i]);
    if (!is_new && place->second != tensor.shape[i]) {
      throw InputError(fmt::format("{}: tensor '{}'", path, tensor.name),
                       fmt::format("has {} = {}, another tensor has {}", names[i], tensor.shape[i], place->second),
                       "save the case again");
    }
  }
  if (!spec.dtype) c.dtype = tensor.dtype;
}

/// Takes tensor GROUP/NAME out of the file; an absent optional one gives an empty tensor.
Tensor take(const std::string& path, SafetensorsFile& file, const std::string& group, const TensorSpec& spec, Case& c) {
  const std::string name = fmt::format("{}/{}", group, spec.name);
  for (Tensor& tensor : file.tensors) {
    if (tensor.name != name) continue;
    learn_dims(path, spec, tensor, c);
    if (spec.optional && group == "input") c.optionals.insert(std::string(spec.name));
    tensor.name = spec.name;
    return std::move(tensor);
  }
  if (!spec.optional)
    throw InputError(path, fmt::format("holds no tensor '{}'", name), "save the case again with --save-tensors");
  return {};
}

void require_types(const std::string& path, const Case& c, const TensorSpec& spec, const Tensor& tensor) {
  if (tensor.name.empty() || tensor.dtype == dtype_of(c, spec)) return;
  throw InputError(fmt::format("{}: tensor '{}'", path, tensor.name),
                   fmt::format("is {}, expected {}", info(tensor.dtype).name, info(dtype_of(c, spec)).name),
                   "save the case again");
}

}  // namespace

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
                      const std::vector<Tensor>& outputs, unsigned threads) {
  make_folder(folder);
  std::vector<SafetensorsEntry> entries;
  const auto add = [&](const std::string& group, const Tensor& tensor, DType dtype) {
    if (!tensor.name.empty()) entries.push_back({group + "/" + tensor.name, dtype, tensor.shape});
  };
  for (const Tensor& tensor : inputs) add("input", tensor, tensor.dtype);
  for (const Tensor& tensor : outputs) {
    add("output", tensor, tensor.dtype);
    add("gold", tensor, DType::f64);
    add("magnitude", tensor, DType::f64);
  }
  nlohmann::json attrs = nlohmann::json::object();
  for (size_t i = 0; i < c.attrs.size(); ++i) attrs[std::string(c.op->attrs[i].name)] = c.attrs[i];
  std::string path = fmt::format("{}/{}-{}-{}.safetensors", folder, candidate, c.pass->name, case_name(c));
  SafetensorsWriter file(path, entries,
                         {{"op", std::string(c.op->name)},
                          {"pass", std::string(c.pass->name)},
                          {"case", case_name(c)},
                          {"candidate", candidate},
                          {"attrs", attrs.dump()},
                          {"seed", std::to_string(c.seed)},
                          {"grad_seed", std::to_string(c.grad_seed)},
                          {"arch_key", arch_key}});
  for (const Tensor& tensor : inputs) {
    if (!tensor.name.empty()) file.write("input/" + tensor.name, 0, tensor.bytes.data(), tensor.bytes.size());
  }
  for (const Tensor& tensor : outputs) {
    if (!tensor.name.empty()) file.write("output/" + tensor.name, 0, tensor.bytes.data(), tensor.bytes.size());
  }
  run_gold(c, inputs, threads, [&](const GoldRows& rows) {
    const Tensor& tensor = outputs[static_cast<size_t>(rows.output)];
    if (tensor.name.empty()) return;
    const auto offset = static_cast<uint64_t>(rows.first_row * rows.columns) * sizeof(double);
    const auto bytes = static_cast<size_t>(rows.n_rows * rows.columns) * sizeof(double);
    file.write("gold/" + tensor.name, offset, rows.value, bytes);
    file.write("magnitude/" + tensor.name, offset, rows.magnitude, bytes);
  });
  return path;
}

SavedCase load_case(const std::string& path) {
  SafetensorsFile file = read_safetensors(path, {"input/", "output/"});
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
  for (const AttrSpec& attr : c.op->attrs) {
    const auto value = attrs.find(attr.name);
    c.attrs.push_back(value ? value->number() : attr.fallback);
  }
  c.seed = std::strtoull(meta("seed").c_str(), nullptr, 10);
  // Files from elsewhere may lack these two.
  const auto optional_meta = [&](const std::string& key, const std::string& fallback) {
    return file.metadata.contains(key) ? file.metadata.at(key) : fallback;
  };
  c.grad_seed = std::strtoull(optional_meta("grad_seed", meta("seed")).c_str(), nullptr, 10);
  saved.arch_key = optional_meta("arch_key", "");
  for (const TensorSpec& spec : c.pass->inputs) saved.inputs.push_back(take(path, file, "input", spec, c));
  for (const OutputSpec& spec : c.pass->outputs) saved.outputs.push_back(take(path, file, "output", spec.tensor, c));
  for (size_t i = 0; i < saved.inputs.size(); ++i) require_types(path, c, c.pass->inputs[i], saved.inputs[i]);
  for (size_t i = 0; i < saved.outputs.size(); ++i) require_types(path, c, c.pass->outputs[i].tensor, saved.outputs[i]);
  validate(c);
  return saved;
}

}  // namespace checkop
