// SPDX-License-Identifier: Apache-2.0
// Functions that answer questions from the operators' tables.
#include "operator/operator.hpp"

#include <algorithm>
#include <set>

#include "operator/operator_added.hpp"

namespace checkop {
namespace {

/// Splits `text` at each character of `separators`; empty for an empty text.
std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  if (!text.empty()) parts.reserve(4);  // most lists are shorter
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(separators), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::vector<const Operator*>& added() {
  static std::vector<const Operator*> operators;
  return operators;
}

bool is_number(std::string_view factor) {
  return factor.find_first_not_of("0123456789") == std::string_view::npos && !factor.empty() && factor.size() < 10;
}

int64_t number(std::string_view digits) {
  int64_t value = 0;
  for (const char digit : digits) value = 10 * value + (digit - '0');
  return value;
}

}  // namespace

std::string_view to_string(Numerics numerics) {
  switch (numerics) {
    case Numerics::exact:
      return "exact";
    case Numerics::pointwise:
      return "pointwise";
    case Numerics::reduction:
      return "reduction";
    case Numerics::contraction:
      return "contraction";
    case Numerics::logprob:
      return "logprob";
    case Numerics::composite:
      return "composite";
  }
  return "?";
}

std::optional<Numerics> parse_numerics(std::string_view name) {
  for (const Numerics numerics : {Numerics::exact, Numerics::pointwise, Numerics::reduction, Numerics::contraction,
                                  Numerics::logprob, Numerics::composite}) {
    if (to_string(numerics) == name) return numerics;
  }
  return {};
}

const Operator* find_operator(std::string_view name) {
  const auto table = operators();
  const auto is_it = [&](const Operator* op) { return op->name == name; };
  if (const auto found = std::find_if(table.begin(), table.end(), is_it); found != table.end()) return *found;
  const auto found = std::find_if(added().begin(), added().end(), is_it);
  return found == added().end() ? nullptr : *found;
}

void add_operator(const Operator& op) { added().push_back(&op); }

const Pass* find_pass(const Operator& op, std::string_view name) {
  const auto found = std::find_if(op.passes.begin(), op.passes.end(), [&](const Pass& p) { return p.name == name; });
  return found == op.passes.end() ? nullptr : &*found;
}

std::vector<std::string_view> optionals_of(const Pass& pass) {
  std::vector<std::string_view> names;
  for (const TensorSpec& spec : pass.inputs) {
    if (spec.optional) names.push_back(spec.name);
  }
  for (const OutputSpec& output : pass.outputs) {
    const TensorSpec& spec = output.tensor;
    const auto is_followed = [&](std::string_view name) {
      return spec.follows == name || (spec.name.starts_with('d') && spec.name.substr(1) == name);
    };
    if (spec.optional && std::none_of(names.begin(), names.end(), is_followed)) names.push_back(spec.name);
  }
  return names;
}

std::vector<const Recipe*> recipes_of(const Pass& pass, const TensorSpec& output, DType case_dtype) {
  std::vector<const Recipe*> found;
  for (const Recipe& recipe : pass.recipes) {
    if (lists(recipe.outputs, output.name) && lists(recipe.dtypes, info(case_dtype).name)) found.push_back(&recipe);
  }
  return found;
}

std::vector<std::vector<std::string_view>> families_of(const Pass& pass, const std::vector<std::string_view>& names) {
  const auto has = [&](std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  for (const Recipe& recipe : pass.recipes) {
    if (!has(recipe.name)) continue;
    for (const std::string_view excluded : split_dims(recipe.excludes)) {
      if (!has(excluded)) continue;
      std::vector<std::vector<std::string_view>> all;
      for (const std::string_view left_out : {excluded, recipe.name}) {
        std::vector<std::string_view> rest = names;
        std::erase(rest, left_out);
        for (auto& family : families_of(pass, rest)) all.push_back(std::move(family));
      }
      return all;
    }
  }
  return {names};
}

std::vector<std::string_view> recipes_of(const Operator& op) {
  std::vector<std::string_view> names;
  for (const Pass& pass : op.passes) {
    for (const Recipe& recipe : pass.recipes) {
      if (std::find(names.begin(), names.end(), recipe.name) == names.end()) names.push_back(recipe.name);
    }
  }
  return names;
}

std::vector<std::string> all_recipes() {
  std::set<std::string> names;
  for (const Operator* op : operators()) {
    for (const std::string_view name : recipes_of(*op)) names.emplace(name);
  }
  return {names.begin(), names.end()};
}

bool has_attr(const Operator& op, std::string_view name) {
  return std::any_of(op.attrs.begin(), op.attrs.end(), [&](const AttrSpec& attr) { return attr.name == name; });
}

bool draws_left_out(const Operator& op) {
  const auto inputs = op.passes.front().inputs;
  return !op.left_out.empty() && !has_attr(op, "ignore_index") &&
         std::none_of(inputs.begin(), inputs.end(), [](const TensorSpec& spec) { return spec.fill == Fill::mask; });
}

std::vector<std::string_view> split_dims(std::string_view dims) { return split(dims, " "); }

bool lists(std::string_view list, std::string_view word) {
  const std::vector<std::string_view> words = split_dims(list);
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool lists(std::span<const std::string> list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::vector<std::string_view> names_in(std::string_view dims) {
  std::vector<std::string_view> names = split(dims, " *+/()");
  std::erase_if(names, [](std::string_view name) { return name.empty() || is_number(name) || name == kWorldSize; });
  return names;
}

std::string_view dim_over_ranks(std::string_view extent) {
  const size_t slash = extent.find('/');
  return slash != std::string_view::npos && extent.substr(slash + 1) == kWorldSize ? extent.substr(0, slash) : "";
}

int64_t evaluate_extent(std::string_view extent, const std::function<int64_t(std::string_view)>& value_of) {
  constexpr uint64_t kMost = uint64_t{1} << 62;
  if (!dim_over_ranks(extent).empty()) return value_of(dim_over_ranks(extent));
  const auto over = [](int64_t value, std::string_view divisor) {
    const int64_t by = number(divisor);
    return value / by + (value % by != 0 ? 1 : 0);
  };
  const auto product = [&](std::string_view term) {
    Shape factors;
    for (const std::string_view factor : split(term, "*")) {
      const size_t slash = std::min(factor.find('/'), factor.size());
      const std::string_view whole = factor.substr(0, slash);
      const int64_t value = is_number(whole) ? number(whole) : value_of(whole);
      factors.push_back(slash == factor.size() ? value : over(value, factor.substr(slash + 1)));
    }
    return element_count(factors);
  };
  uint64_t sum = 0;
  for (const std::string_view term : split(extent, "+")) {
    const size_t close = term.find(')');  // "(batch*seq)/128"
    const int64_t value = close == std::string_view::npos
                              ? product(term)
                              : over(product(term.substr(1, close - 1)), term.substr(close + 2));
    sum = std::min(sum + static_cast<uint64_t>(value), kMost);
  }
  return static_cast<int64_t>(sum);
}

bool is_per_row(const Operator& op, const TensorSpec& spec) {
  return !op.row_dims.empty() && spec.dims.starts_with(op.row_dims) &&
         (spec.dims.size() == op.row_dims.size() || spec.dims[op.row_dims.size()] == ' ');
}

bool is_rearranged(const Rearrangement& by, const TensorSpec& output) {
  const auto dims = split_dims(by.dims), of_output = split_dims(output.dims);
  return !of_output.empty() && std::find(dims.begin(), dims.end(), of_output.front()) != dims.end();
}

bool is_rearranged(const Operator& op, const TensorSpec& output) {
  return std::any_of(op.rearrangements.begin(), op.rearrangements.end(),
                     [&](const Rearrangement& each) { return is_rearranged(each, output); });
}

MatrixView matrix_view(const Operator& op, const TensorSpec& spec, const Shape& shape) {
  const size_t leading = is_per_row(op, spec) ? split_dims(op.row_dims).size() : std::min<size_t>(1, shape.size());
  const Shape rows(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(leading));
  const Shape columns(shape.begin() + static_cast<std::ptrdiff_t>(leading), shape.end());
  return {element_count(rows), element_count(columns)};
}

MatrixView judged_view(const Operator& op, const TensorSpec& spec, const Shape& shape) {
  const bool single = shape.size() < 2 || (is_per_row(op, spec) && spec.dims == op.row_dims);
  const int64_t columns = single || shape.back() == 0 ? 1 : shape.back();
  return {element_count(shape) / columns, columns};
}

std::string_view to_string(LeftOut content) { return content == LeftOut::finite ? "finite" : "nonfinite"; }

Tensor* FillArgs::find(std::string_view name) const {
  const auto found = std::find_if(inputs.begin(), inputs.end(), [&](const Tensor& t) { return t.name == name; });
  return found == inputs.end() ? nullptr : &*found;
}

}  // namespace checkop
