// SPDX-License-Identifier: Apache-2.0
// Questions about operators that their tables answer.
#include "operator.hpp"

#include <algorithm>

namespace checkop {

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

const Operator* find_operator(std::string_view name) {
  const auto table = operators();
  const auto found = std::find_if(table.begin(), table.end(), [&](const Operator* op) { return op->name == name; });
  return found == table.end() ? nullptr : *found;
}

const Pass* find_pass(const Operator& op, std::string_view name) {
  const auto found = std::find_if(op.passes.begin(), op.passes.end(), [&](const Pass& p) { return p.name == name; });
  return found == op.passes.end() ? nullptr : &*found;
}

bool has_attr(const Operator& op, std::string_view name) {
  return std::any_of(op.attrs.begin(), op.attrs.end(), [&](const AttrSpec& attr) { return attr.name == name; });
}

std::vector<std::string_view> split_dims(std::string_view dims) {
  std::vector<std::string_view> names;
  while (!dims.empty()) {
    const size_t end = std::min(dims.find(' '), dims.size());
    names.push_back(dims.substr(0, end));
    dims.remove_prefix(std::min(end + 1, dims.size()));
  }
  return names;
}

bool is_per_row(const Operator& op, const TensorSpec& spec) {
  return !op.row_dims.empty() && spec.dims.starts_with(op.row_dims) &&
         (spec.dims.size() == op.row_dims.size() || spec.dims[op.row_dims.size()] == ' ');
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

Tensor* FillArgs::find(std::string_view name) const {
  const auto found = std::find_if(inputs.begin(), inputs.end(), [&](const Tensor& t) { return t.name == name; });
  return found == inputs.end() ? nullptr : &*found;
}

}  // namespace checkop
