// SPDX-License-Identifier: Apache-2.0
// Answers a checkop_call with the gold, for candidates that are right or wrong in a known way.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "abi/check_operator.h"
#include "operator/emulation.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// Calls body(offset in the tensor's memory, row-major offset, length), in elements, for each run without gaps.
template <class Body>
void for_each_run(const checkop_tensor& t, const Body& body) {
  const Shape shape(t.shape, t.shape + t.rank);
  const int64_t count = element_count(shape), width = t.rank == 0 ? 1 : shape.back();
  const int64_t run = t.rank > 0 && t.strides[t.rank - 1] != 1 ? 1 : width;
  for (int64_t first = 0; first < count; first += run) {
    int64_t place = first % width * (run == width ? 1 : t.strides[t.rank - 1]), rest = first / width;
    for (int32_t d = t.rank - 1; d-- > 0; rest /= shape[static_cast<size_t>(d)]) {
      place += rest % shape[static_cast<size_t>(d)] * t.strides[d];
    }
    body(place, first, run);
  }
}

/// A copy of a call's tensor, with the integer type that `spec` has; an absent tensor gets an empty name.
inline Tensor copy_of(const checkop_tensor& t, const TensorSpec& spec) {
  if (t.data == nullptr && t.rank == 0) return {};
  Tensor copy(std::string(spec.name), static_cast<DType>(t.dtype), Shape(t.shape, t.shape + t.rank));
  const size_t width = info(copy.dtype).bytes;
  for_each_run(t, [&](int64_t place, int64_t first, int64_t n) {
    std::memcpy(copy.bytes.data() + static_cast<size_t>(first) * width,
                static_cast<const std::byte*>(t.data) + static_cast<size_t>(place) * width,
                static_cast<size_t>(n) * width);
  });
  if (copy.dtype == spec.dtype.value_or(copy.dtype)) return copy;
  Tensor converted(copy.name, *spec.dtype, copy.shape);
  for (int64_t i = 0; i < copy.count(); ++i) converted.set(i, copy.at(i));
  return converted;
}

inline int64_t count_of(const checkop_tensor& t) { return element_count(Shape(t.shape, t.shape + t.rank)); }

/// The tensor-parallel parts of a call's tensors: converts between the part of one rank and the whole tensor.
class Parts {
 public:
  /// Exchanges the extents of all ranks: every rank must construct it. Throws std::runtime_error if one does not.
  Parts(const Pass& pass, const checkop_call& call) : call_(call) {
    if (call.shard_total == 0) return;
    for (const Operator* op : operators()) {
      for (const Pass& each : op->passes)
        if (&each == &pass) dim_ = op->parallel_dim;
    }
    const auto n = static_cast<size_t>(call.world_size);
    std::vector<int64_t> ends(n, call.shard_end);
    gather(&call.shard_end, ends.data(), sizeof(int64_t));
    bounds_ = {0};
    bounds_.insert(bounds_.end(), ends.begin(), ends.end());
    int64_t own = 0;  // along an extent such as "numel/world_size", of which a pass has one at most
    const auto look = [&](const TensorSpec& spec, const checkop_tensor& t) {
      const size_t axis = axis_of(spec);
      if (axis < split_dims(spec.dims).size() && is_even(spec, axis)) own = t.shape[axis];
    };
    for (size_t i = 0; i < pass.inputs.size(); ++i) look(pass.inputs[i], call.inputs[i]);
    for (size_t i = 0; i < pass.outputs.size(); ++i) look(pass.outputs[i].tensor, call.outputs[i]);
    gather(&own, ends.data(), sizeof(int64_t));
    even_bounds_ = {0};
    for (const int64_t extent : ends) even_bounds_.push_back(even_bounds_.back() + extent);
  }

  const std::vector<int64_t>& bounds() const { return bounds_; }  ///< empty: no tensor is divided

  Shape whole_shape(const TensorSpec& spec, Shape shape) const {
    if (const size_t axis = axis_of(spec); axis < shape.size()) shape[axis] = bounds_of(spec, axis).back();
    return shape;
  }

  /// The whole tensor. `own` is this rank's part; every rank must call this.
  Tensor whole(const TensorSpec& spec, Tensor own) const {
    const size_t axis = axis_of(spec);
    if (axis >= own.shape.size()) return own;
    const std::vector<int64_t>& bounds = bounds_of(spec, axis);
    Tensor all(own.name, own.dtype, whole_shape(spec, own.shape));
    const size_t row = info(own.dtype).bytes * static_cast<size_t>(inner(own.shape, axis));
    const auto outer = static_cast<size_t>(
        element_count(Shape(own.shape.begin(), own.shape.begin() + static_cast<std::ptrdiff_t>(axis))));
    int64_t longest = 0;
    for (size_t r = 0; r + 1 < bounds.size(); ++r) longest = std::max(longest, bounds[r + 1] - bounds[r]);
    const size_t most = outer * row * static_cast<size_t>(longest);
    std::vector<std::byte> send(most), received(most * (bounds.size() - 1));
    std::copy_n(own.bytes.data(), own.bytes.size(), send.data());
    gather(send.data(), received.data(), most);
    for (size_t r = 0; r + 1 < bounds.size(); ++r) {
      const size_t part = row * static_cast<size_t>(bounds[r + 1] - bounds[r]);
      for (size_t o = 0; o < outer; ++o) {
        std::copy_n(received.data() + r * most + o * part, part,
                    all.bytes.data() + (o * static_cast<size_t>(bounds.back()) + static_cast<size_t>(bounds[r])) * row);
      }
    }
    return all;
  }

  /// This rank's part of `values`, which are an output's values of all ranks.
  std::vector<double> own(const TensorSpec& spec, const Shape& part, const std::vector<double>& values) const {
    const size_t axis = axis_of(spec);
    if (axis >= part.size() || values.empty()) return values;
    const std::vector<int64_t>& bounds = bounds_of(spec, axis);
    const int64_t row = inner(part, axis), length = row * part[axis], whole = row * bounds.back();
    std::vector<double> kept;
    for (auto at = values.begin() + row * bounds[static_cast<size_t>(call_.rank)];
         std::ssize(kept) < element_count(part);) {
      kept.insert(kept.end(), at, at + length);
      if (std::ssize(kept) < element_count(part)) at += whole;
    }
    return kept;
  }

 private:
  size_t axis_of(const TensorSpec& spec) const {
    const auto dims = split_dims(spec.dims);
    const auto is_divided = [&](std::string_view dim) { return dim == dim_ || !dim_over_ranks(dim).empty(); };
    return bounds_.empty() ? dims.size()
                           : static_cast<size_t>(std::find_if(dims.begin(), dims.end(), is_divided) - dims.begin());
  }
  static bool is_even(const TensorSpec& spec, size_t axis) {
    return !dim_over_ranks(split_dims(spec.dims)[axis]).empty();
  }
  const std::vector<int64_t>& bounds_of(const TensorSpec& spec, size_t axis) const {
    return is_even(spec, axis) ? even_bounds_ : bounds_;
  }
  static int64_t inner(const Shape& shape, size_t axis) {
    return element_count(Shape(shape.begin() + static_cast<std::ptrdiff_t>(axis) + 1, shape.end()));
  }
  void gather(const void* send, void* receive, size_t bytes) const {
    auto* const comm = static_cast<checkop_host_comm*>(call_.comm);
    if (call_.world_size == 1 && bytes > 0) std::memcpy(receive, send, bytes);
    if (call_.world_size > 1 && comm->all_gather(comm, send, receive, bytes) != 0)
      throw std::runtime_error(comm->error(comm));
  }

  const checkop_call& call_;
  std::string_view dim_;
  std::vector<int64_t> bounds_;       ///< of the operator's parallel dimension
  std::vector<int64_t> even_bounds_;  ///< of an extent such as "numel/world_size"
};

/// The whole inputs of all ranks.
inline std::vector<Tensor> inputs_of(const Pass& pass, const checkop_call& call, const Parts& parts) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < pass.inputs.size(); ++i)
    inputs.push_back(parts.whole(pass.inputs[i], copy_of(call.inputs[i], pass.inputs[i])));
  return inputs;
}
inline std::vector<Tensor> inputs_of(const Pass& pass, const checkop_call& call) {
  return inputs_of(pass, call, Parts(pass, call));
}

inline Shape shape_of(const checkop_tensor& t) { return {t.shape, t.shape + t.rank}; }

/// Storage for the whole outputs of all ranks.
inline Values room_for(const Pass& pass, const checkop_call& call, const Parts& parts) {
  Values values(pass.outputs.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (call.outputs[i].data == nullptr) continue;
    const Shape shape = parts.whole_shape(pass.outputs[i].tensor, shape_of(call.outputs[i]));
    values[i].resize(static_cast<size_t>(element_count(shape)));
  }
  return values;
}

/// This rank's part of `values`, which are those of all ranks.
inline Values own_values(const Pass& pass, const checkop_call& call, const Parts& parts, const Values& values) {
  Values own;
  for (size_t i = 0; i < values.size(); ++i)
    own.push_back(parts.own(pass.outputs[i].tensor, shape_of(call.outputs[i]), values[i]));
  return own;
}

/// Runs the pass's gold on the whole inputs and the attributes of the call, after edit(inputs, attrs).
template <class Edit>
Values gold_values(const Pass& pass, const checkop_call& call, Edit edit) {
  const Parts parts(pass, call);
  std::vector<Tensor> inputs = inputs_of(pass, call, parts);
  std::vector<double> attrs;
  for (int32_t i = 0; i < call.n_attrs; ++i) attrs.push_back(call.attrs[i].value);
  edit(inputs, attrs);
  std::vector<const Tensor*> present;
  for (const Tensor& tensor : inputs) present.push_back(tensor.name.empty() ? nullptr : &tensor);
  Values values = room_for(pass, call, parts);
  std::vector<Shape> output_shapes;
  for (size_t i = 0; i < pass.outputs.size(); ++i)
    output_shapes.push_back(parts.whole_shape(pass.outputs[i].tensor, shape_of(call.outputs[i])));
  const auto keep = [&](const GoldRows& rows) {
    std::vector<double>& to = values[static_cast<size_t>(rows.output)];
    if (!to.empty())
      std::copy_n(rows.value, rows.n_rows * rows.columns, &to[static_cast<size_t>(rows.first_row * rows.columns)]);
  };
  pass.gold({present, attrs, /*threads=*/1, keep, output_shapes});
  return own_values(pass, call, parts, values);
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

/// Calls `body`. An exception becomes the call's message and CHECKOP_FAILED.
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

/// Launch functions 0 ... n - 1 that call launch(number, call). The ABI does not tell a launch function its number.
template <size_t n, checkop_status (*launch)(size_t, const checkop_call*)>
constexpr std::array<Launch, n> numbered_launches() {
  return numbered<launch>(std::make_index_sequence<n>{});
}

/// The plugin that holds `kernels`; nullptr, which every host refuses, if there are more kernels than launch functions.
inline const checkop_plugin* plugin_of(checkop_plugin& plugin, const std::vector<checkop_kernel>& kernels,
                                       size_t room) {
  if (kernels.size() > room) return nullptr;
  plugin = {CHECKOP_ABI_VERSION, static_cast<int32_t>(kernels.size()), kernels.data()};
  return &plugin;
}

}  // namespace checkop
