// SPDX-License-Identifier: Apache-2.0
// Operators and golds from files.
#include "session/own_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.hpp"
#include "base/parallel.hpp"

namespace checkop {
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
                   "give the gold of this output");
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

Tensor companion(const SafetensorsReader& file, const std::string& group, const std::string& name, const Shape& shape) {
  const SafetensorsEntry* entry = file.find(group + "/" + name);
  if (entry == nullptr) return {};
  require_fit(file, *entry, shape);
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

bool needs_finer_gold(Metric metric) { return metric == Metric::vs_baseline || metric == Metric::max_vs_baseline; }

constexpr const char* kSoundGates =
    "give a contract whose class has atol_rtol, ulp, bits, rel_l2, block_rel_l2 or cosine";

}  // namespace

GivenOperator::GivenOperator(const std::string& name, const std::string& pass, Numerics numerics, int64_t terms,
                             const std::vector<SafetensorsEntry>& inputs,
                             const std::vector<SafetensorsEntry>& outputs) {
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

std::string_view GivenOperator::keep(std::string text) { return texts_.emplace_back(std::move(text)); }

TensorSpec GivenOperator::spec_of(const SafetensorsEntry& entry) {
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

GivenGold::GivenGold(const SafetensorsReader& file, const Case& c) {
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
    output.columns = std::max<int64_t>(1, judged_view(*c.op, spec.tensor, shape).columns);
  }
}

GoldReplay GivenGold::replay() const {
  return [this](unsigned threads, const GoldSink& sink) {
    constexpr int64_t kElements = 1 << 14;  // per block: enough work for a task
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Output& output = outputs_[i];
      const int64_t rows = output.value.count() / output.columns,
                    of_block = std::max<int64_t>(1, kElements / output.columns);
      if (output.value.name.empty()) continue;
      parallel_for(threads, (rows + of_block - 1) / of_block, [&](int64_t block) {
        const int64_t first = block * of_block, n_rows = std::min(of_block, rows - first), at = first * output.columns;
        const auto n = static_cast<size_t>(n_rows * output.columns);
        std::vector<double> value(n), magnitude(n), rounding(n);
        decode(output.value, at, n, value.data());
        if (!output.magnitude.name.empty()) decode(output.magnitude, at, n, magnitude.data());
        if (!output.rounding.name.empty()) {
          decode(output.rounding, at, n, rounding.data());
        } else {
          std::transform(value.begin(), value.end(), rounding.begin(), [](double x) { return std::abs(x); });
        }
        sink({static_cast<int>(i), first, n_rows, output.columns, value.data(), magnitude.data(), rounding.data()});
      });
    }
  };
}

std::vector<DType> GivenGold::dtypes() const {
  std::vector<DType> all;
  for (const Output& output : outputs_) all.push_back(output.value.dtype);
  return all;
}

bool GivenGold::is_companion(const SafetensorsReader& file, const std::string& name) {
  for (const std::string_view group : {"magnitude/", "rounding/"}) {
    if (name.starts_with(group) && file.find(name.substr(group.size())) != nullptr) return true;
  }
  return false;
}

void GivenGold::require_sound(const SafetensorsReader& file, const Case& c, const Contract& contract,
                              const Subject& subject) {
  for (const OutputSpec& spec : c.pass->outputs) {
    if (!is_present(c, spec.tensor)) continue;
    const std::string name(spec.tensor.name);
    const SafetensorsEntry& gold = file.at(name);
    const Gates gates = contract.gates_for(c, spec, subject);
    const auto is_identity = [](const Gate& gate) { return gate.metric == Metric::identities; };
    if (c.pass->identities == nullptr && std::all_of(gates.all.begin(), gates.all.end(), is_identity))
      throw InputError(gates.source, fmt::format("asks for identities alone, and '{}' has none", name), kSoundGates);
    for (const Gate& gate : gates.all) {
      if (needs_magnitude(gate.metric) && file.find("magnitude/" + name) == nullptr) {
        throw InputError(gate.source,
                         fmt::format("{} needs the magnitude of every element of '{}', and {} does not hold it",
                                     to_string(gate.metric), name, file.path()),
                         fmt::format("add a tensor 'magnitude/{}' to it, or {}", name, kSoundGates));
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

}  // namespace checkop
