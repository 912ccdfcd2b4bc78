// SPDX-License-Identifier: Apache-2.0
// Reads own data. In this order: inputs; operators and golds; the case that files describe.
#include "session/own_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "case/inputs.hpp"
#include "case/sweep.hpp"
#include "device/plugin.hpp"
#include "operator/operator_added.hpp"
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

OwnInputs::OwnInputs(const std::vector<std::string>& settings, const std::string& file) {
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

void OwnInputs::require_fit(const std::vector<const Case*>& cases) const {
  for (const Case* c : cases) require_fit(*c);
  for (const auto& entry : sources_) {
    const auto has = [&](const Case* c) { return find_input(*c->pass, entry.first) != nullptr; };
    if (!entry.second.by_name && !cases.empty() && std::none_of(cases.begin(), cases.end(), has))
      refuse_name(entry.first, cases);
  }
}

void OwnInputs::require_fit(const Case& c) const {
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

std::map<std::string, std::string> OwnInputs::origins(const Case& c) const {
  std::map<std::string, std::string> found;
  for (const auto& [name, source] : sources_) {
    if (find_input(*c.pass, name) != nullptr) found[name] = fmt::format("{}:{}", source.file->path(), source.tensor);
  }
  return found;
}

std::vector<std::string> OwnInputs::left_over(const Case& c) const {
  std::vector<std::string> names;
  for (const auto& [name, source] : sources_) {
    if (source.by_name && find_input(*c.pass, name) == nullptr) names.push_back(name);
  }
  return names;
}

std::vector<Tensor> OwnInputs::make(const Case& c, unsigned threads, LeftOut left_out) const {
  const auto read = [&](bool saved, std::vector<Tensor>& inputs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const TensorSpec& spec = c.pass->inputs[i];
      const auto found = sources_.find(spec.name);
      if (found == sources_.end() || inputs[i].name.empty() || (spec.fill == Fill::saved) != saved) continue;
      const Source& source = found->second;
      source.file->read(source.file->at(source.tensor), inputs[i].bytes.data());
      require_ids(c, spec, inputs[i], where_of(*source.file, source.tensor));
    }
  };
  // Elements that given masks leave out get payloads. No other elements are left out: given masks and ids stay as they
  // are.
  Case generated = c;
  for (const TensorSpec& spec : c.pass->inputs)
    if ((spec.fill == Fill::mask || spec.fill == Fill::ids) && sources_.contains(spec.name))
      generated.ignored_every = 0;
  std::vector<Tensor> inputs =
      make_inputs(generated, threads, left_out, [&](std::vector<Tensor>& all) { read(/*saved=*/false, all); });
  read(/*saved=*/true, inputs);
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
  for (const std::string_view dim : dims_of(op)) {
    if (c.dims.contains(dim) || !usual_size_of(dim).empty()) continue;
    throw InputError(file.path(), fmt::format("no input of {}/{} tells the size {}", op.name, pass.name, dim),
                     "name each tensor with --input, and give the sizes with flags");
  }
  drop_usual_sizes(c);
  validate(c);
  return c;
}

namespace {

/// The op class in RL-Kernel contracts.
std::string_view op_class_of(Numerics numerics) {
  switch (numerics) {
    case Numerics::exact:
    case Numerics::pointwise:
      return "elementwise";
    case Numerics::reduction:
    case Numerics::contraction:
      return "reduction";
    case Numerics::logprob:
    case Numerics::composite:
      return "logprob";
  }
  return "";
}

void require_fit(const SafetensorsReader& file, const SafetensorsEntry& entry, const Shape& shape) {
  if (entry.shape == shape) return;
  throw InputError(fmt::format("{}: tensor '{}'", file.path(), entry.name),
                   fmt::format("has shape {}, expected {}", to_string(entry.shape), to_string(shape)),
                   "give one number for each element of this output");
}

/// Doubles represent all integers only below 2^53.
void require_exact(const SafetensorsReader& file, const Tensor& tensor) {
  constexpr int64_t kMost = int64_t{1} << 53;
  if (tensor.dtype != DType::i64) return;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    int64_t value = 0;
    decode_int(tensor.dtype, tensor.bytes.data() + i * 8, &value, 1);
    if (value > -kMost && value < kMost) continue;
    throw InputError(fmt::format("{}: tensor '{}'", file.path(), tensor.name), fmt::format("holds {}", value),
                     "integers of 2^53 and beyond can't be compared");
  }
}

constexpr const char* kReference = "reference";

/// A reference may hold any number, the other companions are limits of errors.
Tensor companion(const SafetensorsReader& file, const std::string& group, const std::string& name, const Shape& shape) {
  const SafetensorsEntry* entry = file.find(group + "/" + name);
  if (entry == nullptr) return {};
  require_fit(file, *entry, shape);
  if (group == kReference) return file.read(*entry);
  if (!info(entry->dtype).is_float)
    throw InputError(fmt::format("{}: tensor '{}'", file.path(), entry->name),
                     fmt::format("is {}", info(entry->dtype).name), "give floating-point numbers");
  Tensor tensor = file.read(*entry);
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const double value = tensor.at(i);
    if (value >= 0 && std::isfinite(value)) continue;
    throw InputError(fmt::format("{}: tensor '{}'", file.path(), entry->name),
                     fmt::format("holds {} at index {}, which is no limit for an error", value, i),
                     "give finite numbers of at least 0");
  }
  return tensor;
}

void decode(const Tensor& tensor, int64_t first, size_t n, double* to) {
  const DTypeInfo& type = info(tensor.dtype);
  type.decode(tensor.bytes.data() + static_cast<size_t>(first) * type.bytes, to, n);
}

bool needs_magnitude(Metric metric) {
  return metric == Metric::bound_ratio || metric == Metric::bound_rms || metric == Metric::bias_t;
}

bool needs_finer_gold(Metric metric) {
  return metric == Metric::vs_baseline || metric == Metric::max_vs_baseline || metric == Metric::vs_reference;
}

constexpr const char* kSoundGates =
    "give a contract whose class has atol_rtol, ulp, bits, rel_l2, block_rel_l2 or cosine";

}  // namespace

OwnOperator::OwnOperator(const std::string& name, const std::string& pass, Numerics numerics, int64_t terms,
                         const std::vector<SafetensorsEntry>& inputs, const std::vector<SafetensorsEntry>& outputs) {
  for (const SafetensorsEntry& entry : inputs) inputs_.push_back(spec_of(entry));
  case_.dims["terms"] = terms;
  for (const SafetensorsEntry& entry : outputs) {
    outputs_.push_back({spec_of(entry), info(entry.dtype).is_float ? numerics : Numerics::exact, "terms"});
  }
  passes_.push_back({keep(pass), inputs_, outputs_, nullptr});
  op_.name = keep(name);
  op_.op_class = op_class_of(numerics);
  op_.formula = "given by files";
  op_.row_dims = "";
  op_.passes = passes_;
  case_.op = &op_;
  case_.pass = &passes_.front();
  for (const SafetensorsEntry& entry : outputs) {  // the case has the dtype of its first floating-point output
    if (info(entry.dtype).is_float || &entry == &outputs.back()) {
      case_.dtype = entry.dtype;
      break;
    }
  }
}

std::string_view OwnOperator::keep(std::string text) { return texts_.emplace_back(std::move(text)); }

TensorSpec OwnOperator::spec_of(const SafetensorsEntry& entry) {
  std::string dims;
  for (const int64_t extent : entry.shape) {
    const auto [named, is_new] = names_.emplace(extent, fmt::format("n{}", names_.size()));
    if (is_new) case_.dims[named->second] = extent;
    dims += (dims.empty() ? "" : " ") + named->second;
  }
  TensorSpec spec{keep(entry.name), keep(dims)};
  spec.dtype = entry.dtype;
  return spec;
}

OwnGold::OwnGold(const SafetensorsReader& file, const Case& c) {
  for (const OutputSpec& spec : c.pass->outputs) {
    Output& output = outputs_.emplace_back();
    if (!is_present(c, spec.tensor)) continue;
    const std::string name(spec.tensor.name);
    const Shape shape = shape_of(c, spec.tensor);
    const DType dtype = dtype_of(c, spec.tensor);
    const SafetensorsEntry& entry = file.at(name);
    require_fit(file, entry, shape);
    if (info(entry.dtype).is_float != info(dtype).is_float || (!info(dtype).is_float && entry.dtype != dtype)) {
      throw InputError(fmt::format("{}: tensor '{}'", file.path(), name),
                       fmt::format("is {}, the output is {}", info(entry.dtype).name, info(dtype).name),
                       "give floating-point numbers for such, and integers in their own dtype");
    }
    output.value = file.read(entry);
    require_exact(file, output.value);
    output.magnitude = companion(file, "magnitude", name, shape);
    output.rounding = companion(file, "rounding", name, shape);
    output.reference = companion(file, kReference, name, shape);
    output.columns = std::max<int64_t>(1, judged_view(*c.op, spec.tensor, shape).columns);
  }
}

GoldReplay OwnGold::replay() const {
  return [this](unsigned threads, const ActiveRecipes& recipes, const GoldSink& sink) {
    // A file has no gold with roundings, so nothing passes by a recipe.
    if (!recipes.none()) return;
    constexpr int64_t kElements = 1 << 14;  // per block: enough work for a task
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Output& output = outputs_[i];
      const int64_t rows = output.value.count() / output.columns,
                    of_block = std::max<int64_t>(1, kElements / output.columns);
      if (output.value.name.empty()) continue;
      parallel_for(threads, (rows + of_block - 1) / of_block, [&](int64_t block) {
        const int64_t first = block * of_block, n_rows = std::min(of_block, rows - first), at = first * output.columns;
        const auto n = static_cast<size_t>(n_rows * output.columns);
        std::vector<double> value(n), magnitude(n), rounding(n), reference(n);
        decode(output.value, at, n, value.data());
        if (!output.magnitude.name.empty()) decode(output.magnitude, at, n, magnitude.data());
        if (!output.rounding.name.empty()) {
          decode(output.rounding, at, n, rounding.data());
        } else {
          std::transform(value.begin(), value.end(), rounding.begin(), [](double x) { return std::abs(x); });
        }
        const bool has_reference = !output.reference.name.empty();
        if (has_reference) decode(output.reference, at, n, reference.data());
        sink({static_cast<int>(i), first, n_rows, output.columns, value.data(), magnitude.data(), rounding.data(),
              nullptr, nullptr, has_reference ? reference.data() : nullptr});
      });
    }
  };
}

std::vector<DType> OwnGold::dtypes() const {
  std::vector<DType> all;
  for (const Output& output : outputs_) all.push_back(output.value.dtype);
  return all;
}

bool OwnGold::is_companion(const SafetensorsReader& file, const std::string& name) {
  for (const std::string_view group : {"magnitude/", "rounding/", "reference/"}) {
    if (name.starts_with(group) && file.find(name.substr(group.size())) != nullptr) return true;
  }
  return false;
}

void OwnGold::require_sound(const SafetensorsReader& file, const Case& c, const Contract& contract,
                            const Subject& subject) {
  for (const OutputSpec& spec : c.pass->outputs) {
    if (!is_present(c, spec.tensor)) continue;
    const std::string name(spec.tensor.name);
    const SafetensorsEntry& gold = file.at(name);
    const Gates gates = contract.gates_for(c, spec, subject);
    for (const Gate& gate : gates.all) {
      if (needs_magnitude(gate.metric) && file.find("magnitude/" + name) == nullptr) {
        throw InputError(gate.source,
                         fmt::format("{} needs the magnitude of every element of '{}', and {} does not hold it",
                                     to_string(gate.metric), name, file.path()),
                         fmt::format("add a tensor 'magnitude/{}' to it, or {}", name, kSoundGates));
      }
      if (gate.metric == Metric::vs_reference && file.find(kReference + ("/" + name)) == nullptr) {
        throw InputError(gate.source,
                         fmt::format("vs_reference needs what a reference computed for '{}', and {} does not hold it",
                                     name, file.path()),
                         fmt::format("add a tensor 'reference/{}' to it, or {}", name, kSoundGates));
      }
      if (needs_finer_gold(gate.metric) && !(unit_roundoff(gold.dtype) < unit_roundoff(dtype_of(c, spec.tensor)))) {
        throw InputError(gate.source,
                         fmt::format("{} needs a gold in a wider dtype than the output's, and '{}' in {} is {}",
                                     to_string(gate.metric), name, file.path(), info(gold.dtype).name),
                         fmt::format("give it in a wider dtype, or {}", kSoundGates));
      }
    }
  }
}

Case case_of_own_data(const RunOptions& options) {
  if (!options.has("--op") || options.ops.size() != 1)
    throw InputError("--op", "does not name one operator", "say whose inputs these are; any name will do with --gold");
  const std::string name = options.ops.front();
  if (options.passes.size() != 1 || options.passes.front() == "all")
    throw InputError("--pass", "does not name one pass", "say whether these are inputs of forward or of backward");
  const SafetensorsReader inputs(options.inputs_file);
  if (const Operator* op = find_operator(name)) {
    if (!options.numerics.empty())
      throw InputError("--class", fmt::format("has no effect on '{}', whose outputs have a class already", name),
                       "leave it out");
    if (options.has("--dtype"))
      throw InputError("--dtype", "has no effect on the tensors of --inputs, which have their own", "leave it out");
    return case_of_inputs(inputs, *op, *parse_passes("--pass", *op, options.passes).front(), options.attrs,
                          options.shard_bounds);
  }
  if (options.gold_file.empty() || options.numerics.empty()) {
    std::vector<std::string> known;
    for (const Operator* op : operators()) known.emplace_back(op->name);
    const std::string nearest = did_you_mean(name, known);
    throw InputError("--op", fmt::format("unknown operator '{}'", name),
                     fmt::format("{}{}an operator of your own needs --gold FILE and --class CLASS", nearest,
                                 nearest.empty() ? "" : " "));
  }
  if (!is_candidate_name(name)) throw InputError("--op", fmt::format("'{}' is no name", name), kCandidateNameHint);
  if (options.passes.front() != "forward" && options.passes.front() != "backward")
    throw InputError("--pass", fmt::format("unknown pass '{}'", options.passes.front()), "use forward or backward");
  if (!options.shard_bounds.empty())
    throw InputError("--shard-bounds", "an operator of your own cannot be tensor-parallel", "leave it out");
  if (!options.attrs.empty())
    throw InputError(fmt::format("attribute '{}'", options.attrs.begin()->first),
                     "an operator of your own has no attributes", "give it as an input");
  if (std::find(options.checks.begin(), options.checks.end(), "invariance") != options.checks.end())
    throw InputError("--check", "invariance compares rows, and the rows of an operator of your own are not known",
                     "leave it out: --check accuracy,determinism,memory");
  const SafetensorsReader gold(options.gold_file);
  std::vector<SafetensorsEntry> outputs;
  for (const SafetensorsEntry& entry : gold.entries()) {
    if (!OwnGold::is_companion(gold, entry.name)) outputs.push_back(entry);
  }
  if (outputs.empty()) throw InputError(gold.path(), "holds no tensors", "give the gold of every output");
  // An fp64 gold may belong to narrower outputs: of the dtype of the reference beside it, of --dtype, or of the dtype
  // of the first floating-point input.
  const auto number = std::find_if(inputs.entries().begin(), inputs.entries().end(),
                                   [](const SafetensorsEntry& entry) { return info(entry.dtype).is_float; });
  const DType narrower = options.has("--dtype")             ? parse_dtypes("--dtype", options.dtypes).front()
                         : number != inputs.entries().end() ? number->dtype
                                                            : DType::f64;
  for (SafetensorsEntry& output : outputs) {
    const SafetensorsEntry* reference = gold.find(kReference + ("/" + output.name));
    if (output.dtype == DType::f64) output.dtype = reference == nullptr ? narrower : reference->dtype;
  }
  // Static, because forked processes and the report refer to it until the end.
  static std::unique_ptr<const OwnOperator> own;
  own = std::make_unique<const OwnOperator>(name, options.passes.front(), parse_numerics(options.numerics).value(),
                                            options.terms, inputs.entries(), outputs);
  add_operator(own->op());
  validate(own->as_case());
  return own->as_case();
}

}  // namespace checkop
