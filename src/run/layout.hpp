// SPDX-License-Identifier: Apache-2.0
// Layout: where in its buffer, and as which element type, a candidate finds a tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "case/case.hpp"

namespace checkop {

/// How inputs lie in memory. Outputs are always contiguous in arrangements other than `contiguous`.
enum class Arrangement : uint8_t {
  contiguous,
  columns_apart,      ///< every element of the last dimension has a gap behind it
  transposed,         ///< the last two dimensions are exchanged in memory
  slice,              ///< cut out of a larger tensor, which goes on before and behind the last two dimensions
  shifted_even,       ///< the first, third, ... input begins one element further
  shifted_odd,        ///< the second, fourth, ...
  expanded_rows,      ///< per-row inputs have stride 0 along the first row dimension with more than one row
  expanded_upstream,  ///< upstream gradients have only strides 0
  other_integers,     ///< int32 in place of int64, int64 in place of int32
};
inline constexpr std::array kArrangements{
    Arrangement::columns_apart,     Arrangement::transposed,    Arrangement::slice,
    Arrangement::shifted_even,      Arrangement::shifted_odd,   Arrangement::expanded_rows,
    Arrangement::expanded_upstream, Arrangement::other_integers};
std::string_view describe(Arrangement arrangement);  ///< "inputs stored transposed"
/// Whether elements share memory, so that inputs need equal values.
bool is_expanded(Arrangement arrangement);

/// Placement of tensors in their buffers.
struct TensorLayout {
  size_t offset = 0;        ///< bytes past a 256-byte boundary, rounded up to whole elements
  int64_t row_padding = 0;  ///< elements behind each run of the last dimension, in per-row tensors of rank 2 or more
  Arrangement inputs = Arrangement::contiguous;
};

/// One tensor in its buffer.
struct Placement {
  DType dtype = DType::f32;
  Shape shape, strides;  ///< in elements
  int64_t first = 0;     ///< the element of the buffer with which the tensor begins
  int64_t elements = 0;  ///< of the buffer

  bool operator==(const Placement&) const = default;
};
Placement placement_of(const Case& c, const TensorSpec& spec, const TensorLayout& layout);

/// Whether `arrangement` changes where some input of the case lies, or its type.
bool changes_inputs(const Case& c, Arrangement arrangement);

/// Where elements share memory in `placement`, gives all of them the value of the first. `content`: the contiguous
/// tensor.
void equalise(const Placement& placement, std::byte* content);

/// The content of a buffer that holds the contiguous tensor `from`, of type `dtype`, as `placement` says. Gaps hold
/// NaN, or 0 in integers, which is a valid id, position or mask.
std::vector<std::byte> arrange(const Placement& placement, DType dtype, const std::byte* from);

}  // namespace checkop
