// SPDX-License-Identifier: Apache-2.0
// What the bits of a result must not depend on.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace checkop {

/// In the order in which a violation is named: what spoils every comparison comes first, then what changes one thing
/// alone, then what changes several. A kernel that breaks `batch` breaks `padding` too, but not `neighbours`.
enum class Axis : uint8_t {
  repetition,    ///< the same launch again
  first_call,    ///< the first launch against a later one
  outputs,       ///< what lay in the outputs before
  workspace,     ///< what lies in the workspace, and how large it is
  alignment,     ///< where tensors begin
  after_shapes,  ///< after launches of other shapes
  contention,    ///< while other work holds some multiprocessors
  graph,         ///< replayed from a graph
  ranks,         ///< how many tensor-parallel ranks there are
  row_stride,    ///< the distance between rows, and what lies between them
  neighbours,    ///< what the other rows hold
  position,      ///< where in the batch a row is
  grouping,      ///< how the batch's dimensions share the rows
  batch,         ///< how many rows there are
  chunks,        ///< where a batch is cut into launches
  padding,       ///< rows behind the last one
};
inline constexpr int kAxes = 16;

std::string_view to_string(Axis axis);
std::string_view describe(Axis axis);  ///< "a row's bits depend on what the other rows hold"
std::optional<Axis> parse_axis(std::string_view name);
std::span<const Axis> all_axes();
/// Of rows: asked only of outputs that have one row per row of the batch; `chunks` also of sums that are carried on
/// from chunk to chunk. The others are asked of every output.
inline bool is_of_rows(Axis axis) { return axis >= Axis::row_stride; }
/// Of invariance: asked by that check and not by determinism. Those of rows, and `ranks`.
inline bool is_of_invariance(Axis axis) { return axis >= Axis::ranks; }

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

/// How much of the axes to look at.
struct AxisPlan {
  bool all = false;  ///< false: what is cheap; see plan_contexts() in invariance.hpp
  int runs = 20;     ///< launches of `repetition`
  AxisSet axes = AxisSet::all();
};

/// Those of `axes` that are of invariance, or those that are not.
AxisSet of_invariance(AxisSet axes);
AxisSet of_launches(AxisSet axes);
std::string known_axes();  ///< "repetition, first_call, ..." for messages

}  // namespace checkop
