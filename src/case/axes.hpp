// SPDX-License-Identifier: Apache-2.0
// Axes: the things that the bits of a result must not depend on.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace checkop {

/// Ordered as violations are reported: first axes that spoil every comparison, then axes that change one thing, then
/// axes that change several. A kernel that breaks `batch` also breaks `padding`, but not `neighbours`.
enum class Axis : uint8_t {
  repetition,    ///< the same launch repeated
  first_call,    ///< the first launch compared with a later one
  outputs,       ///< old contents of the outputs
  workspace,     ///< contents and size of the workspace
  alignment,     ///< alignment of the tensors
  layout,        ///< strides, storage offsets and integer types of the inputs
  after_shapes,  ///< launches of other shapes before this one
  contention,    ///< other work that occupies some SMs
  graph,         ///< replay from a CUDA graph
  ranks,         ///< number of tensor-parallel ranks
  pages,         ///< pages of a cache that rows lie in
  phase,         ///< queries of a sequence in one launch
  documents,     ///< other sequences, or groups, that are packed into the same tensors
  micro_batch,   ///< entries of the batch that are launched together, where the loss is divided by a given number
  message,       ///< length of a message between ranks, and where an element lies in it
  row_stride,    ///< distance between rows, and the memory between them
  neighbours,    ///< values of the other rows
  position,      ///< position of a row in the batch
  grouping,      ///< how the rows are divided over the batch's dimensions
  batch,         ///< number of rows
  chunks,        ///< where a batch is split into launches
  padding,       ///< extra rows after the last one
};
inline constexpr int kAxes = 22;

std::string_view to_string(Axis axis);
std::string_view describe(Axis axis);  ///< "a row's bits depend on what the other rows hold"
std::optional<Axis> parse_axis(std::string_view name);
std::span<const Axis> all_axes();
/// Row axes apply only to outputs with one row per row of the batch; `chunks` also applies to sums that are carried
/// from chunk to chunk. All other axes apply to every output.
bool is_of_rows(Axis axis);
/// Invariance axes are checked by the invariance check, not by the determinism check: the row axes, `ranks`, and those
/// of rearrangements.
bool is_of_invariance(Axis axis);
/// Axes of an operator's own rearrangements; see Rearrangement.
bool is_of_rearrangements(Axis axis);

class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) insert(axis);
  }
  static constexpr AxisSet all() { return AxisSet((1U << kAxes) - 1); }
  static constexpr AxisSet from_bits(uint32_t bits) { return AxisSet(bits & all().bits_); }

  constexpr bool has(Axis axis) const { return (bits_ >> static_cast<unsigned>(axis) & 1U) != 0; }
  constexpr void insert(Axis axis) { bits_ |= 1U << static_cast<unsigned>(axis); }
  constexpr uint32_t bits() const { return bits_; }
  constexpr AxisSet operator|(AxisSet other) const { return AxisSet(bits_ | other.bits_); }
  constexpr bool operator==(const AxisSet&) const = default;

 private:
  constexpr explicit AxisSet(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = 0;
};

/// Which axes to check, and how thoroughly.
struct AxisPlan {
  bool all = false;  ///< false: cheap contexts only; see plan_contexts() in run/invariance/contexts.hpp
  int runs = 20;     ///< number of launches for `repetition`
  AxisSet axes = AxisSet::all();
  bool layouts = false;  ///< without `all`: also contexts of `layout`, for the cost of a launch or two
};

/// The invariance axes among `axes`; of_launches() gives the others.
AxisSet of_invariance(AxisSet axes);
AxisSet of_launches(AxisSet axes);
std::string known_axes();  ///< "repetition, first_call, ..." for messages

}  // namespace checkop
