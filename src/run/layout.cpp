// SPDX-License-Identifier: Apache-2.0
// Strides of each arrangement, and the bytes of a buffer that has them.
#include "run/layout.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "device/buffers.hpp"

namespace checkop {
namespace {

bool is_input(const Case& c, const TensorSpec& spec, size_t& index) {
  const auto inputs = c.pass->inputs;
  const auto found =
      std::find_if(inputs.begin(), inputs.end(), [&](const TensorSpec& s) { return s.name == spec.name; });
  index = static_cast<size_t>(found - inputs.begin());
  return found != inputs.end();
}

/// Strides of a tensor whose dimensions lie in memory in `order`, the last the densest, with `extents` elements each.
Shape strides_in(const std::vector<size_t>& order, const Shape& extents, int64_t densest = 1) {
  Shape strides(extents.size());
  for (size_t i = order.size(); i-- > 0; densest *= extents[order[i]]) strides[order[i]] = densest;
  return strides;
}

std::vector<size_t> row_major(size_t rank) {
  std::vector<size_t> order(rank);
  for (size_t i = 0; i < rank; ++i) order[i] = i;
  return order;
}

/// The first row dimension with more than one row; the number of row dimensions if there is none.
size_t dim_of_rows(const Case& c, const Shape& shape) {
  const size_t dims = split_dims(c.op->row_dims).size();
  size_t d = 0;
  while (d < dims && shape[d] < 2) ++d;
  return d;
}

void place_input(const Case& c, const TensorSpec& spec, size_t index, Arrangement arrangement, Placement& to) {
  const size_t rank = to.shape.size();
  constexpr int64_t kBefore = 1, kBehind = 2;  // around a slice, so that its rows are not aligned
  switch (arrangement) {
    case Arrangement::contiguous:
      break;
    case Arrangement::columns_apart:
      to.strides = strides_in(row_major(rank), to.shape, 2);
      to.elements *= rank == 0 ? 1 : 2;
      break;
    case Arrangement::transposed:
      if (rank < 2) break;
      {
        std::vector<size_t> order = row_major(rank);
        std::swap(order[rank - 2], order[rank - 1]);
        to.strides = strides_in(order, to.shape);
      }
      break;
    case Arrangement::slice: {
      if (rank == 0 || to.elements == 0) break;
      const size_t leading = rank < 2 ? 0 : rank - 2;  // cutting these too would change no stride
      Shape larger = to.shape;
      for (size_t d = leading; d < rank; ++d) larger[d] += kBefore + kBehind;
      to.strides = strides_in(row_major(rank), larger);
      to.elements = element_count(larger);
      for (size_t d = leading; d < rank; ++d) to.first += kBefore * to.strides[d];
      break;
    }
    case Arrangement::shifted_even:
    case Arrangement::shifted_odd:
      if (index % 2 != (arrangement == Arrangement::shifted_odd ? 1 : 0) || to.elements == 0) break;
      to.first = 1;
      to.elements += 1;
      break;
    case Arrangement::expanded_rows:
      if (!is_per_row(*c.op, spec) || c.op->row_dims.empty()) break;
      if (const size_t d = dim_of_rows(c, to.shape); d < split_dims(c.op->row_dims).size()) {
        Shape one = to.shape;
        one[d] = 1;
        to.strides = strides_in(row_major(rank), one);
        to.strides[d] = 0;
        to.elements = element_count(one);
      }
      break;
    case Arrangement::expanded_upstream:
      if (spec.fill != Fill::upstream || to.elements < 2) break;
      std::fill(to.strides.begin(), to.strides.end(), 0);
      to.elements = 1;
      break;
    case Arrangement::other_integers:
      if (to.dtype == DType::i64) {
        to.dtype = DType::i32;
      } else if (to.dtype == DType::i32) {
        to.dtype = DType::i64;
      }
      break;
  }
}

/// Calls body(index in the contiguous tensor, index in the buffer, stride, elements) for each run of the last
/// dimension.
template <class Body>
void for_each_run(const Placement& placement, const Body& body) {
  const size_t rank = placement.shape.size();
  const int64_t n = element_count(placement.shape), run = rank == 0 ? 1 : placement.shape.back();
  const int64_t stride = rank == 0 ? 1 : placement.strides.back();
  Shape at(rank, 0);
  int64_t there = placement.first;
  for (int64_t i = 0; i < n; i += run) {
    body(i, there, stride, run);
    for (size_t d = rank; d-- > 0;) {
      if (d + 1 == rank) continue;
      there += placement.strides[d];
      if (++at[d] < placement.shape[d]) break;
      there -= placement.shape[d] * placement.strides[d];
      at[d] = 0;
    }
  }
}

/// Where elements share memory, they must be equal.
template <size_t width>
void scatter(const Placement& placement, const std::byte* from, std::byte* to) {
  for_each_run(placement, [&](int64_t i, int64_t there, int64_t stride, int64_t n) {
    const std::byte* const begin = from + static_cast<size_t>(i) * width;
    std::byte* const place = to + static_cast<size_t>(there) * width;
    if (stride == 1) {
      std::memcpy(place, begin, static_cast<size_t>(n) * width);
    } else {
      for (int64_t k = 0; k < n; ++k)
        std::memcpy(place + static_cast<size_t>(k * stride) * width, begin + static_cast<size_t>(k) * width, width);
    }
  });
}

template <class To, class From>
void convert(const Placement& placement, const std::byte* from, std::byte* to) {
  for_each_run(placement, [&](int64_t i, int64_t there, int64_t stride, int64_t n) {
    for (int64_t k = 0; k < n; ++k) {
      From value;
      std::memcpy(&value, from + static_cast<size_t>(i + k) * sizeof(From), sizeof(From));
      // A number that is no valid id stays invalid: left-out rows may hold any number.
      using Limits = std::numeric_limits<To>;
      const To stored = std::in_range<To>(value) ? static_cast<To>(value) : value < 0 ? Limits::min() : Limits::max();
      std::memcpy(to + static_cast<size_t>(there + k * stride) * sizeof(To), &stored, sizeof(To));
    }
  });
}

}  // namespace

std::string_view describe(Arrangement arrangement) {
  switch (arrangement) {
    case Arrangement::contiguous:
      return "contiguous inputs";
    case Arrangement::columns_apart:
      return "inputs with a gap behind each element";
    case Arrangement::transposed:
      return "inputs stored transposed";
    case Arrangement::slice:
      return "inputs cut out of larger tensors";
    case Arrangement::shifted_even:
      return "every second input, from the first on, at a storage offset of one element";
    case Arrangement::shifted_odd:
      return "every second input, from the second on, at a storage offset of one element";
    case Arrangement::expanded_rows:
      return "rows expanded with stride 0";
    case Arrangement::expanded_upstream:
      return "upstream gradients expanded from one element with strides 0";
    case Arrangement::other_integers:
      return "ids in the other integer type, int32 or int64";
  }
  return "";
}

bool is_expanded(Arrangement arrangement) {
  return arrangement == Arrangement::expanded_rows || arrangement == Arrangement::expanded_upstream;
}

Placement placement_of(const Case& c, const TensorSpec& spec, const TensorLayout& layout) {
  Placement placement;
  placement.dtype = dtype_of(c, spec);
  placement.shape = shape_of(c, spec);
  const size_t rank = placement.shape.size();
  placement.strides = strides_in(row_major(rank), placement.shape);
  placement.elements = element_count(placement.shape);
  if (layout.row_padding > 0 && rank >= 2 && is_per_row(*c.op, spec)) {
    Shape padded = placement.shape;
    padded.back() += layout.row_padding;
    placement.strides = strides_in(row_major(rank), padded);
    placement.elements = element_count(padded);
  }
  if (size_t index; is_input(c, spec, index)) place_input(c, spec, index, layout.inputs, placement);
  return placement;
}

bool changes_inputs(const Case& c, Arrangement arrangement) {
  const auto inputs = c.pass->inputs;
  return std::any_of(inputs.begin(), inputs.end(), [&](const TensorSpec& spec) {
    return is_present(c, spec) && placement_of(c, spec, {0, 0, arrangement}) != placement_of(c, spec, {});
  });
}

void equalise(const Placement& placement, std::byte* content) {
  if (std::find(placement.strides.begin(), placement.strides.end(), 0) == placement.strides.end()) return;
  const size_t width = info(placement.dtype).bytes;
  std::vector<int64_t> firsts(static_cast<size_t>(placement.elements), -1);
  for_each_run(placement, [&](int64_t begin, int64_t there, int64_t stride, int64_t n) {
    for (int64_t k = 0; k < n; ++k) {
      const int64_t i = begin + k;
      int64_t& first = firsts[static_cast<size_t>(there + k * stride)];
      if (first < 0) first = i;
      std::memmove(content + static_cast<size_t>(i) * width, content + static_cast<size_t>(first) * width, width);
    }
  });
}

std::vector<std::byte> arrange(const Placement& placement, DType dtype, const std::byte* from) {
  const size_t width = info(placement.dtype).bytes;
  std::vector<std::byte> to(static_cast<size_t>(placement.elements) * width);
  if (info(placement.dtype).is_float) {
    const uint64_t gap = poison_of(placement.dtype).guard;
    for (size_t at = 0; at < to.size(); at += width) std::memcpy(&to[at], &gap, width);
  }
  if (dtype != placement.dtype) {
    dtype == DType::i64 ? convert<int32_t, int64_t>(placement, from, to.data())
                        : convert<int64_t, int32_t>(placement, from, to.data());
    return to;
  }
  switch (width) {
    case 1:
      scatter<1>(placement, from, to.data());
      break;
    case 2:
      scatter<2>(placement, from, to.data());
      break;
    case 4:
      scatter<4>(placement, from, to.data());
      break;
    default:
      scatter<8>(placement, from, to.data());
  }
  return to;
}

}  // namespace checkop
