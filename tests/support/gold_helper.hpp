// SPDX-License-Identifier: Apache-2.0
// For tests of the gold: small cases of any operator, inputs that do not depend on other code, and all gold rows as
// vectors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "case/case.hpp"
#include "case/inputs.hpp"
#include "judge/gold.hpp"

namespace checkop {

/// Equality by which a NaN equals another.
inline bool is_same(double a, double b) { return a == b || (a != a && b != b); }

/// Every element of one output as a row-major matrix. Empty for an output that the case does not have.
struct GoldOutput {
  std::string name;
  int64_t rows = 0, columns = 0;
  std::vector<double> value, magnitude, rounding;
};

/// The gold of `c`, in the order of the pass's outputs. Throws when a row is emitted twice or not at all.
inline std::vector<GoldOutput> collect_gold(const Case& c, const std::vector<Tensor>& inputs, unsigned threads) {
  std::vector<GoldOutput> outputs;
  std::vector<std::vector<char>> seen;
  for (const OutputSpec& spec : c.pass->outputs) {
    GoldOutput output{std::string(spec.tensor.name), 0, 0, {}, {}, {}};
    if (is_present(c, spec.tensor)) {
      const MatrixView view = judged_view(*c.op, spec.tensor, shape_of(c, spec.tensor));
      const auto count = static_cast<size_t>(view.rows * view.columns);
      output.rows = view.rows, output.columns = view.columns;
      output.value.resize(count), output.magnitude.resize(count), output.rounding.resize(count);
    }
    seen.emplace_back(static_cast<size_t>(output.rows), 0);
    outputs.push_back(std::move(output));
  }
  // Rows are disjoint, so the threads write to different elements without a lock.
  run_gold(c, inputs, threads, [&](const GoldRows& rows) {
    GoldOutput& output = outputs.at(static_cast<size_t>(rows.output));
    const int64_t cut = rows.columns / output.columns, first = rows.first_row * cut, end = first + rows.n_rows * cut;
    if (rows.columns != output.columns * cut || first < 0 || end > output.rows) {
      throw std::out_of_range("gold rows outside of output " + output.name);
    }
    for (int64_t r = first; r < end; ++r) {
      if (seen[static_cast<size_t>(rows.output)][static_cast<size_t>(r)]++ != 0) {
        throw std::logic_error("gold row " + std::to_string(r) + " of " + output.name + " came twice");
      }
    }
    const auto count = static_cast<size_t>(rows.n_rows * rows.columns);
    const auto at = rows.first_row * rows.columns;
    std::copy_n(rows.value, count, output.value.begin() + at);
    std::copy_n(rows.magnitude, count, output.magnitude.begin() + at);
    std::copy_n(rows.rounding, count, output.rounding.begin() + at);
  });
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (std::count(seen[i].begin(), seen[i].end(), 0) != 0) {
      throw std::logic_error("the gold left out rows of " + outputs[i].name);
    }
  }
  return outputs;
}

using Dims = std::map<std::string, int64_t, std::less<>>;

/// Extents for dimensions that can't have an arbitrary size, chosen for tests of every operator.
struct OwnExtent {
  std::string_view op, dim;
  int64_t extent;
};
inline constexpr OwnExtent kOwnExtents[] = {
    {"rope", "head_dim", 6},  // even
    {"qk_norm_rope", "head_dim", 6},
    {"attention", "q_heads", 6},  // a multiple of kv_heads
    {"attention", "kv_heads", 2},
    {"kv_cache_attention", "q_heads", 6},
    {"kv_cache_attention", "kv_heads", 2},
    {"kv_cache_attention", "q_seq", 3},  // one new key per query
    {"kv_cache_attention", "new_seq", 3},
    {"varlen_attention", "q_heads", 6},
    {"varlen_attention", "kv_heads", 2},
    {"paged_attention", "q_heads", 6},
    {"paged_attention", "kv_heads", 2},
    {"moe_permute", "topk", 2},  // a row for each slot
    {"moe_permute", "rows", 264},
    {"moe_combine", "topk", 2},
    {"moe_combine", "rows", 264},
    {"tp_logp", "world_size", 1},  // ranks need each other
    {"tp_linear_logp", "world_size", 1},
    {"all_reduce", "world_size", 1},
    {"reduce_scatter", "world_size", 1},
    {"all_gather", "world_size", 1},
};

/// A size for every dimension of `op`: its own extent above, otherwise extent_of(dim).
template <class ExtentOf>
Dims dims_with(const Operator& op, ExtentOf extent_of) {
  Dims dims;
  for (const std::string_view dim : dims_of(op)) dims.emplace(dim, extent_of(dim));
  for (const OwnExtent& own : kOwnExtents) {
    if (own.op == op.name) dims.at(std::string(own.dim)) = own.extent;
  }
  return dims;
}

/// Extents `smallest`, `smallest` + 1, ... in the order of the operator's dimensions, so that few are equal.
inline Dims test_dims(const Operator& op, int64_t smallest) {
  return dims_with(op, [&](std::string_view) { return smallest++; });
}

/// A case with the operator's default attributes. `optionals` as in Case::optionals.
inline Case gold_case(std::string_view op, std::string_view pass, DType dtype, const Dims& dims,
                      const std::set<std::string, std::less<>>& optionals = {}) {
  Case c;
  c.op = find_operator(op);
  if (c.op == nullptr) throw std::logic_error("no operator " + std::string(op));
  c.pass = find_pass(*c.op, pass);
  if (c.pass == nullptr) throw std::logic_error("no pass " + std::string(pass));
  c.dtype = dtype;
  c.dims = dims;
  c.optionals = optionals;
  for (const AttrSpec& attr : c.op->attrs) c.attrs.push_back(attr.fallback);
  return c;
}

/// The case with each extent raised by 0 to 3, only as far as its operator's rules require, such as an even batch.
inline Case fitted(Case c) {
  constexpr int64_t kChoices = 4;
  const Dims dims = c.dims;
  int64_t combinations = 1;
  for (size_t i = 0; i < dims.size(); ++i) combinations *= kChoices;
  for (int64_t combination = 0; combination < combinations; ++combination) {
    int64_t rest = combination;
    for (auto& [name, extent] : c.dims) extent = dims.at(name) + rest % kChoices, rest /= kChoices;
    try {
      validate(c);
      return c;
    } catch (const InputError&) {
    }
  }
  throw std::logic_error("no sizes suit operator " + std::string(c.op->name));
}

/// The same case for the other pass.
inline Case with_pass(Case c, std::string_view pass) {
  c.pass = find_pass(*c.op, pass);
  return c;
}

/// An input of `c`, filled by element(index); an input that `c` does not have gets an empty name.
template <class Element>
Tensor gold_input(const Case& c, const TensorSpec& spec, Element element) {
  if (!is_present(c, spec)) return {};
  Tensor tensor(std::string(spec.name), dtype_of(c, spec), shape_of(c, spec));
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, element(i));
  return tensor;
}

/// Ids in range, everything else multiples of 1/64 in [-2, 2], which every dtype holds exactly.
/// A tensor's values depend only on its name and `seed`, so both passes get the same.
inline std::vector<Tensor> gold_inputs(const Case& c, uint32_t seed = 1) {
  std::vector<Tensor> inputs;
  for (const TensorSpec& spec : c.pass->inputs) {
    uint32_t own_seed = seed;
    for (const char letter : spec.name) own_seed = own_seed * 31 + static_cast<unsigned char>(letter);
    std::mt19937 random(own_seed);
    if (spec.fill == Fill::positions || spec.fill == Fill::mask) {
      const int64_t last = spec.fill == Fill::mask ? 2 : shape_of(c, spec).back();
      inputs.push_back(gold_input(c, spec, [&](int64_t i) { return static_cast<double>((i + 1) % last); }));
      continue;
    }
    const int64_t range = spec.fill == Fill::ids ? c.dims.at(std::string(spec.fan_in)) : 257;
    inputs.push_back(gold_input(c, spec, [&](int64_t) {
      const auto drawn = static_cast<int64_t>(random() % static_cast<uint64_t>(range));
      return spec.fill == Fill::ids ? static_cast<double>(drawn) : static_cast<double>(drawn - 128) / 64.0;
    }));
  }
  if (c.op->refine != nullptr) {
    const auto number = [](std::string_view name, uint64_t i) {
      return static_cast<double>((i * 5 + name.size()) % 7) / 8.0 - 0.375;
    };
    FillArgs args{inputs, c.attrs, number, [&](std::string_view name, uint64_t i) { return 0.5 + number(name, i); }};
    args.dim = [&](std::string_view dim) { return c.dims.find(dim)->second; };
    c.op->refine(args);
  }
  fill_saved(c, 1, inputs);
  return inputs;
}

inline std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.count()));
  info(tensor.dtype).decode(tensor.bytes.data(), values.data(), values.size());
  return values;
}

/// Index of `name` among the pass's inputs or outputs.
inline size_t input_index(const Pass& pass, std::string_view name) {
  for (size_t i = 0; i < pass.inputs.size(); ++i) {
    if (pass.inputs[i].name == name) return i;
  }
  throw std::logic_error("no input " + std::string(name));
}

inline size_t output_index(const Pass& pass, std::string_view name) {
  for (size_t i = 0; i < pass.outputs.size(); ++i) {
    if (pass.outputs[i].tensor.name == name) return i;
  }
  throw std::logic_error("no output " + std::string(name));
}

}  // namespace checkop
