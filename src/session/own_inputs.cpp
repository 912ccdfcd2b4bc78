// SPDX-License-Identifier: Apache-2.0
// Checks captured tensors against the case that uses them.
#include "session/own_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "base/text.hpp"
#include "case/inputs.hpp"
#include "session/saved_case.hpp"

namespace checkop {
namespace {

const TensorSpec* find_input(const Pass& pass, std::string_view name) {
  const auto found =
      std::find_if(pass.inputs.begin(), pass.inputs.end(), [&](const TensorSpec& spec) { return spec.name == name; });
  return found == pass.inputs.end() ? nullptr : &*found;
}

std::string where_of(const SafetensorsReader& file, const std::string& tensor) {
  return fmt::format("{}: tensor '{}'", file.path(), tensor);
}

/// Throws InputError for an input that no case uses: it belongs to the other pass, or to no checked operator.
[[noreturn]] void refuse_name(const std::string& name, const std::vector<const Case*>& cases) {
  const std::string where = fmt::format("--input {}", name);
  std::vector<std::string> known;
  for (const Case* c : cases) {
    for (const Pass& pass : c->op->passes) {
      if (find_input(pass, name) != nullptr)
        throw InputError(where, fmt::format("is an input of {}/{}, which is not checked", c->op->name, pass.name),
                         fmt::format("leave it out, or add --pass {}", pass.name));
      for (const TensorSpec& spec : pass.inputs) known.emplace_back(spec.name);
    }
  }
  const Operator& op = *cases.front()->op;
  const std::string nearest = did_you_mean(name, known);
  throw InputError(where, fmt::format("{} has no input '{}'", op.name, name),
                   nearest.empty() ? fmt::format("see 'check_operator show {}'", op.name) : nearest);
}

std::optional<int64_t> ignored_id(const Case& c) {
  for (size_t i = 0; i < c.attrs.size(); ++i) {
    if (c.op->attrs[i].name == "ignore_index") return static_cast<int64_t>(c.attrs[i]);
  }
  return {};
}

/// Ids must be as valid as generated ones, because a kernel may index with them.
void require_ids(const Case& c, const TensorSpec& spec, const Tensor& ids, const std::string& where) {
  if (spec.fill != Fill::ids || spec.fan_in.empty()) return;
  const int64_t n = extent_of(c, spec.fan_in);
  const auto ignored = ignored_id(c);
  const size_t width = info(ids.dtype).bytes;
  for (int64_t i = 0; i < ids.count(); ++i) {
    int64_t id = 0;
    decode_int(ids.dtype, ids.bytes.data() + static_cast<size_t>(i) * width, &id, 1);
    if ((id >= 0 && id < n) || id == ignored) continue;
    throw InputError(where,
                     fmt::format("holds id {} at index {}, expected 0 to {}{}", id, i, n - 1,
                                 ignored ? fmt::format(" or {}", *ignored) : ""),
                     fmt::format("give ids below {}", spec.fan_in));
  }
}

}  // namespace

GivenInputs::GivenInputs(const std::vector<std::string>& settings, const std::string& file) {
  if (!file.empty()) {
    const auto all = std::make_shared<const SafetensorsReader>(file);
    for (const SafetensorsEntry& entry : all->entries()) sources_[entry.name] = {all, entry.name, true};
  }
  std::map<std::string, std::shared_ptr<const SafetensorsReader>> files;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('='), colon = setting.rfind(':');
    if (equals == std::string::npos || equals == 0 || colon == std::string::npos || colon <= equals + 1 ||
        colon + 1 == setting.size()) {
      throw InputError("--input", fmt::format("expected NAME=FILE:TENSOR, got '{}'", setting),
                       "write --input logits=captured.safetensors:lm_head.out");
    }
    const std::string path = setting.substr(equals + 1, colon - equals - 1), tensor = setting.substr(colon + 1);
    auto& reader = files[path];
    if (!reader) reader = std::make_shared<const SafetensorsReader>(path);
    reader->at(tensor);
    sources_[setting.substr(0, equals)] = {reader, tensor, false};
  }
}

void GivenInputs::require_fit(const std::vector<const Case*>& cases) const {
  for (const Case* c : cases) require_fit(*c);
  for (const auto& entry : sources_) {
    const auto has = [&](const Case* c) { return find_input(*c->pass, entry.first) != nullptr; };
    if (!entry.second.by_name && !cases.empty() && std::none_of(cases.begin(), cases.end(), has))
      refuse_name(entry.first, cases);
  }
}

void GivenInputs::require_fit(const Case& c) const {
  for (const auto& [name, source] : sources_) {
    const TensorSpec* spec = find_input(*c.pass, name);
    if (spec == nullptr) continue;  // belongs to another pass or operator
    const std::string where = where_of(*source.file, source.tensor);
    if (!is_present(c, *spec)) {
      throw InputError(where, fmt::format("is for '{}', which the case {} lacks", name, case_name(c)),
                       fmt::format("add --with {}", name));
    }
    const SafetensorsEntry& entry = source.file->at(source.tensor);
    if (entry.dtype != dtype_of(c, *spec)) {
      throw InputError(
          where,
          fmt::format("is {}, '{}' of {} is {}", info(entry.dtype).name, name, case_name(c),
                      info(dtype_of(c, *spec)).name),
          source.by_name ? "give all such inputs in one dtype" : "give a tensor of that dtype, or another --dtype");
    }
    if (const Shape shape = shape_of(c, *spec); entry.shape != shape) {
      throw InputError(
          where,
          fmt::format("has shape {}, '{}' of {} has {}", to_string(entry.shape), name, case_name(c), to_string(shape)),
          "give a tensor of that shape, or other sizes");
    }
  }
}

std::map<std::string, std::string> GivenInputs::origins(const Case& c) const {
  std::map<std::string, std::string> found;
  for (const auto& [name, source] : sources_) {
    if (find_input(*c.pass, name) != nullptr) found[name] = fmt::format("{}:{}", source.file->path(), source.tensor);
  }
  return found;
}

std::vector<std::string> GivenInputs::left_over(const Case& c) const {
  std::vector<std::string> names;
  for (const auto& [name, source] : sources_) {
    if (source.by_name && find_input(*c.pass, name) == nullptr) names.push_back(name);
  }
  return names;
}

std::vector<Tensor> GivenInputs::make(const Case& c, unsigned threads) const {
  std::vector<Tensor> inputs = make_inputs(c, threads);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto found = sources_.find(c.pass->inputs[i].name);
    if (found == sources_.end() || inputs[i].name.empty()) continue;
    const Source& source = found->second;
    source.file->read(source.file->at(source.tensor), inputs[i].bytes.data());
    require_ids(c, c.pass->inputs[i], inputs[i], where_of(*source.file, source.tensor));
  }
  return inputs;
}

Case case_of_inputs(const SafetensorsReader& file, const Operator& op, const Pass& pass,
                    const std::map<std::string, double, std::less<>>& attrs, const std::vector<int64_t>& bounds) {
  Case c;
  c.op = &op;
  c.pass = &pass;
  if (!op.parallel_dim.empty()) c.dims[std::string(kWorldSize)] = bounds.empty() ? 1 : std::ssize(bounds) - 1;
  if (op.parallel_dim.empty() && !bounds.empty())
    throw InputError("--shard-bounds", fmt::format("{} is not tensor-parallel", op.name), "leave it out");
  c.part_bounds = bounds;
  for (const auto& [name, value] : attrs) {
    if (!has_attr(op, name))
      throw InputError(fmt::format("attribute '{}'", name), fmt::format("{} has no such attribute", op.name),
                       fmt::format("see 'check_operator show {}'", op.name));
  }
  for (const AttrSpec& attr : op.attrs) {
    const auto given = attrs.find(attr.name);
    c.attrs.push_back(given == attrs.end() ? attr.fallback : given->second);
  }
  for (const TensorSpec& spec : pass.inputs) {
    const std::string name(spec.name);
    const SafetensorsEntry* entry = file.find(name);
    if (entry == nullptr && spec.optional) continue;
    if (entry == nullptr) entry = &file.at(name);  // throws
    learn_dims(where_of(file, name), spec, entry->dtype, entry->shape, c);
    if (spec.optional) c.optionals.insert(name);
  }
  validate(c);
  return c;
}

}  // namespace checkop
