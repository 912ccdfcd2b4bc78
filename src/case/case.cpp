// SPDX-License-Identifier: Apache-2.0
// Sizes, names and validation of a case.
#include "case/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/error.hpp"
#include "case/rank_parts.hpp"

namespace checkop {
namespace {

void append_new(std::vector<std::string_view>& names, std::string_view dims) {
  for (const std::string_view name : names_in(dims)) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
}

int64_t size_of(const Case& c, std::string_view dim) {
  auto found = c.dims.find(dim);
  if (found == c.dims.end()) found = c.dims.find(usual_size_of(dim));
  if (found == c.dims.end()) throw std::out_of_range(fmt::format("the case has no size '{}'", dim));
  return found->second;
}

std::string flag_name(std::string_view name) {
  std::string flag(name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

}  // namespace

std::string_view to_string(InputMode mode) {
  switch (mode) {
    case InputMode::random:
      return "random";
    case InputMode::constant:
      return "constant";
    case InputMode::integer:
      return "integer";
    case InputMode::peaked:
      return "peaked";
    case InputMode::extreme:
      return "extreme";
    case InputMode::wide:
      return "wide";
    case InputMode::captured:
      return "captured";
  }
  return "?";
}

std::vector<std::string_view> dims_of(const Operator& op) {
  std::vector<std::string_view> names;
  for (const Pass& pass : op.passes) {
    for (const TensorSpec& spec : pass.inputs) append_new(names, spec.dims);
    for (const OutputSpec& spec : pass.outputs) append_new(names, spec.tensor.dims);
  }
  if (!op.parallel_dim.empty()) names.push_back(kWorldSize);
  return names;
}

std::string_view usual_size_of(std::string_view dim) { return dim == "v_dim" ? "head_dim" : ""; }

void drop_usual_sizes(Case& c) {
  std::erase_if(c.dims, [&](const auto& dim) {
    const auto usual = c.dims.find(usual_size_of(dim.first));
    return usual != c.dims.end() && usual->second == dim.second;
  });
}

std::vector<std::string_view> dims_of(const Case& c) {
  std::vector<std::string_view> names = dims_of(*c.op);
  std::erase_if(names, [&](std::string_view dim) { return !usual_size_of(dim).empty() && !c.dims.contains(dim); });
  return names;
}

std::vector<std::pair<std::string_view, double>> chosen_attrs(const Case& c) {
  std::vector<std::pair<std::string_view, double>> chosen;
  for (size_t i = 0; i < c.attrs.size(); ++i) {
    if (c.attrs[i] != c.op->attrs[i].fallback) chosen.emplace_back(c.op->attrs[i].name, c.attrs[i]);
  }
  return chosen;
}

bool ignored_every_counts(const Case& c) {
  const auto inputs = c.pass->inputs;
  const bool masked = std::any_of(inputs.begin(), inputs.end(), [&](const TensorSpec& spec) {
    return spec.fill == Fill::mask && is_present(c, spec);
  });
  return c.ignored_every != Case().ignored_every &&
         (has_attr(*c.op, "ignore_index") || draws_left_out(*c.op) || (masked && c.ignored_every <= 1));
}

bool has_ignored_runs(const Case& c) { return c.ignored_run != 1 && has_attr(*c.op, "ignore_index"); }

std::string case_name(const Case& c) {
  std::string name = fmt::format("{}-{}-", c.op->name, info(c.dtype).name);
  const char* separator = "";
  for (const std::string_view dim : dims_of(c)) {
    if (dim == kWorldSize) separator = "@";
    if (dim == kWorldSize && !c.part_bounds.empty()) {
      name += fmt::format("@{}", fmt::join(c.part_bounds, "-"));
      continue;
    }
    name += fmt::format("{}{}", separator, c.dims.find(dim)->second);
    separator = "x";
  }
  for (const std::string& optional : c.optionals) name += "+" + optional;
  if (c.input_mode != InputMode::random) name += fmt::format("~{}", to_string(c.input_mode));
  const Case usual;
  if (c.input_mode == InputMode::constant) name += fmt::format("{}t{}", c.constant_value, c.token_value);
  if (ignored_every_counts(c)) {
    name += fmt::format("~ignored{}", c.ignored_every);
  }
  if (has_ignored_runs(c)) name += fmt::format("~runs{}", c.ignored_run);
  for (const auto& [attr, value] : chosen_attrs(c)) name += fmt::format("+{}={}", attr, value);
  if (c.grad_mode != usual.grad_mode) name += "~ones";
  if (c.seed != usual.seed) name += fmt::format("#{}", c.seed);
  if (c.grad_seed != usual.grad_seed) name += fmt::format("g{}", c.grad_seed);
  return name;
}

std::string case_flags(const Case& c) {
  std::string flags = fmt::format("--op {} --pass {} --dtype {}", c.op->name, c.pass->name, info(c.dtype).name);
  for (const std::string_view dim : dims_of(c)) {
    flags += fmt::format(" --{} {}", flag_name(dim), c.dims.find(dim)->second);
  }
  if (!c.part_bounds.empty()) flags += fmt::format(" --shard-bounds {}", fmt::join(c.part_bounds, ","));
  for (const auto& [attr, value] : chosen_attrs(c)) flags += fmt::format(" --{} {}", flag_name(attr), value);
  if (!c.optionals.empty()) flags += fmt::format(" --with {}", fmt::join(c.optionals, "+"));
  if (c.input_mode != InputMode::random) flags += fmt::format(" --input-mode {}", to_string(c.input_mode));
  if (c.input_mode == InputMode::constant) {
    flags += fmt::format(" --constant-value {} --token-value {}", c.constant_value, c.token_value);
  }
  if (ignored_every_counts(c)) {
    flags += fmt::format(" --ignored-every {}", c.ignored_every);
  }
  if (has_ignored_runs(c)) flags += fmt::format(" --ignored-run {}", c.ignored_run);
  if (c.grad_mode == GradMode::ones) flags += " --grad-mode ones";
  flags += fmt::format(" --seed {}", c.seed);
  if (c.pass->name == "backward") flags += fmt::format(" --grad-seed {}", c.grad_seed);
  return flags;
}

int64_t extent_of(const Case& c, std::string_view extent) {
  // A rank's case has its own part as a size of this name; see rank_case().
  if (const auto part = c.dims.find(extent); part != c.dims.end()) return part->second;
  return evaluate_extent(extent, [&c](std::string_view dim) { return size_of(c, dim); });
}

Shape shape_of(const Case& c, const TensorSpec& spec) {
  const std::vector<std::string_view> extents = split_dims(spec.dims);
  Shape shape;
  shape.reserve(extents.size());
  for (const std::string_view extent : extents) shape.push_back(extent_of(c, extent));
  return shape;
}

bool is_carried(const Case& c, const TensorSpec& output) {
  return !output.carry.empty() && c.optionals.contains(output.carry);
}

DType dtype_of(const Case& c, const TensorSpec& spec) {
  return is_carried(c, spec) ? DType::f32 : spec.dtype.value_or(c.dtype);
}

bool is_present(const Case& c, const TensorSpec& spec) {
  if (!spec.optional) return true;
  if (!spec.follows.empty()) return c.optionals.contains(spec.follows);
  // A gradient output dNAME is present when its input NAME is.
  return c.optionals.contains(spec.name) || (spec.name.starts_with('d') && c.optionals.contains(spec.name.substr(1)));
}

int64_t row_count(const Case& c) {
  int64_t rows = 1;
  for (const std::string_view dim : split_dims(c.op->row_dims)) rows *= c.dims.find(dim)->second;
  return rows;
}

bool has_empty_dim(const Case& c) {
  return !c.op->may_be_empty.empty() && c.dims.find(c.op->may_be_empty)->second == 0;
}

int64_t tensor_bytes(const Case& c) {
  constexpr int64_t kMost = int64_t{1} << 48;
  int64_t total = 0;
  const auto count = [&](const TensorSpec& spec) {
    if (!is_present(c, spec)) return;
    const auto bytes = static_cast<int64_t>(info(dtype_of(c, spec)).bytes);
    const int64_t elements = element_count(shape_of(c, spec));
    if (elements > kMost || (total += elements * bytes) > kMost) {
      throw InputError(
          case_name(c),
          fmt::format("tensor '{}' {} makes the case larger than 2^48 bytes", spec.name, to_string(shape_of(c, spec))),
          "choose smaller sizes");
    }
  };
  for (const TensorSpec& spec : c.pass->inputs) count(spec);
  for (const OutputSpec& spec : c.pass->outputs) count(spec.tensor);
  return total;
}

void validate(const Case& c) {
  const auto of_rows = split_dims(c.op->row_dims);
  for (const std::string_view dim : dims_of(*c.op)) {
    const bool may_be_none =
        std::find(of_rows.begin(), of_rows.end(), dim) != of_rows.end() || dim == c.op->may_be_empty;
    const int64_t extent = size_of(c, dim), least = may_be_none ? 0 : 1;
    if (extent >= least) continue;
    throw InputError(
        "--" + flag_name(dim), fmt::format("expected an integer >= {}, got {}", least, extent),
        !c.op->may_be_empty.empty() ? fmt::format("give a size of at least 1; only {} may be 0", c.op->may_be_empty)
        : of_rows.empty()
            ? fmt::format("{} reduces over the whole batch, so the batch can't be empty", c.op->name)
            : fmt::format("give a size of at least 1; only {} may be 0, for no rows", fmt::join(of_rows, " and ")));
  }
  tensor_bytes(c);
  if (c.input_mode == InputMode::constant) {
    std::byte stored[8];
    double value = c.constant_value + 0.01 * static_cast<double>(c.pass->inputs.size());
    info(c.dtype).encode(&value, stored, 1);
    info(c.dtype).decode(stored, &value, 1);
    if (!std::isfinite(value)) {
      throw InputError("--constant-value", fmt::format("{} is not finite in {}", c.constant_value, info(c.dtype).name),
                       "give a smaller number");
    }
  }
  if (c.ignored_every < 0) {
    throw InputError("--ignored-every", fmt::format("expected an integer >= 0, got {}", c.ignored_every),
                     "0 plants none, 1 ignores every row");
  }
  if (c.ignored_run < 1) {
    throw InputError("--ignored-run", fmt::format("expected an integer >= 1, got {}", c.ignored_run),
                     "1 ignores single rows");
  }
  validate_parts(c);
  if (c.op->validate != nullptr) {
    c.op->validate({[&](std::string_view dim) { return c.dims.find(dim)->second; }, c.attrs,
                    [&](std::string_view input) { return c.optionals.contains(input); }});
  }
}

Case slice_rows(const Case& c, int64_t begin, int64_t end) {
  Case slice = c;
  const auto names = split_dims(c.op->row_dims);
  for (const std::string_view dim : names) slice.dims.find(dim)->second = 1;
  slice.dims.find(names.back())->second = end - begin;
  return slice;
}

}  // namespace checkop
