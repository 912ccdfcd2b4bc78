// SPDX-License-Identifier: Apache-2.0
// A checkop_call answered with the gold: for candidates that are right, or wrong in a known way.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "check_operator.h"
#include "emulation.hpp"
#include "operator.hpp"

namespace checkop {

/// Runs body(element of the tensor's memory, element in row-major order, elements) for each run of its last dimension.
template <class Body>
void for_each_run(const checkop_tensor& t, const Body& body) {
  const Shape shape(t.shape, t.shape + t.rank);
  const int64_t count = element_count(shape), run = t.rank == 0 ? 1 : shape.back();
  for (int64_t first = 0; first < count; first += run) {
    int64_t place = 0, rest = first / run;
    for (int32_t d = t.rank - 1; d-- > 0; rest /= shape[static_cast<size_t>(d)]) {
      place += rest % shape[static_cast<size_t>(d)] * t.strides[d];
    }
    body(place, first, run);
  }
}

/// A copy of a call's tensor, with an empty name when it is absent.
inline Tensor copy_of(const checkop_tensor& t, std::string_view name) {
  if (t.data == nullptr && t.rank == 0) return {};
  Tensor copy(std::string(name), static_cast<DType>(t.dtype), Shape(t.shape, t.shape + t.rank));
  const size_t width = info(copy.dtype).bytes;
  for_each_run(t, [&](int64_t place, int64_t first, int64_t n) {
    std::memcpy(copy.bytes.data() + static_cast<size_t>(first) * width,
                static_cast<const std::byte*>(t.data) + static_cast<size_t>(place) * width,
                static_cast<size_t>(n) * width);
  });
  return copy;
}

inline std::vector<Tensor> inputs_of(const Pass& pass, const checkop_call& call) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < pass.inputs.size(); ++i) inputs.push_back(copy_of(call.inputs[i], pass.inputs[i].name));
  return inputs;
}

inline int64_t count_of(const checkop_tensor& t) { return element_count(Shape(t.shape, t.shape + t.rank)); }

/// Runs the pass's gold on the call's inputs and attributes after edit(inputs, attrs).
template <class Edit>
Values gold_values(const Pass& pass, const checkop_call& call, Edit edit) {
  std::vector<Tensor> inputs = inputs_of(pass, call);
  std::vector<double> attrs;
  for (int32_t i = 0; i < call.n_attrs; ++i) attrs.push_back(call.attrs[i].value);
  edit(inputs, attrs);
  std::vector<const Tensor*> present;
  for (const Tensor& tensor : inputs) present.push_back(tensor.name.empty() ? nullptr : &tensor);
  Values values(pass.outputs.size());
  for (size_t i = 0; i < values.size(); ++i)
    if (call.outputs[i].data != nullptr) values[i].resize(static_cast<size_t>(count_of(call.outputs[i])));
  std::vector<Shape> output_shapes;
  for (int32_t i = 0; i < call.n_outputs; ++i)
    output_shapes.emplace_back(call.outputs[i].shape, call.outputs[i].shape + call.outputs[i].rank);
  const auto keep = [&](const GoldRows& rows) {
    std::vector<double>& to = values[static_cast<size_t>(rows.output)];
    if (!to.empty())
      std::copy_n(rows.value, rows.n_rows * rows.columns, &to[static_cast<size_t>(rows.first_row * rows.columns)]);
  };
  pass.gold({present, attrs, /*threads=*/1, keep, output_shapes});
  return values;
}

inline Values gold_values(const Pass& pass, const checkop_call& call) {
  return gold_values(pass, call, [](std::vector<Tensor>&, std::vector<double>&) {});
}

/// Stores `values` with one rounding.
inline void store(const checkop_tensor& t, const std::vector<double>& values) {
  const DTypeInfo& type = info(static_cast<DType>(t.dtype));
  for_each_run(t, [&](int64_t place, int64_t first, int64_t n) {
    type.encode(values.data() + first, static_cast<std::byte*>(t.data) + static_cast<size_t>(place) * type.bytes,
                static_cast<size_t>(n));
  });
}

/// Calls `body`; what it throws becomes the call's message.
template <class Body>
checkop_status answer(const checkop_call& call, Body body) {
  try {
    body();
    return CHECKOP_OK;
  } catch (const std::exception& error) {
    std::snprintf(call.message, call.message_bytes, "%s", error.what());
    return CHECKOP_FAILED;
  }
}

using Launch = checkop_status (*)(const checkop_call*);

template <checkop_status (*launch)(size_t, const checkop_call*), size_t index>
checkop_status launch_at(const checkop_call* call) {
  return launch(index, call);
}
template <checkop_status (*launch)(size_t, const checkop_call*), size_t... index>
constexpr std::array<Launch, sizeof...(index)> numbered(std::index_sequence<index...>) {
  return {&launch_at<launch, index>...};
}

/// Launch functions 0 ... n - 1 that call launch(number, call): the ABI does not tell a kernel which one it is.
template <size_t n, checkop_status (*launch)(size_t, const checkop_call*)>
constexpr std::array<Launch, n> numbered_launches() {
  return numbered<launch>(std::make_index_sequence<n>{});
}

/// The plugin that holds `kernels`; nullptr, which no host accepts, when there were fewer launch functions than needed.
inline const checkop_plugin* plugin_of(checkop_plugin& plugin, const std::vector<checkop_kernel>& kernels,
                                       size_t room) {
  if (kernels.size() > room) return nullptr;
  plugin = {CHECKOP_ABI_VERSION, static_cast<int32_t>(kernels.size()), kernels.data()};
  return &plugin;
}

}  // namespace checkop
