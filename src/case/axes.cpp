// SPDX-License-Identifier: Apache-2.0
// Names of axes and of their violations.
#include "case/axes.hpp"

#include <array>
#include <cstdlib>

namespace checkop {
namespace {

struct AxisName {
  Axis axis;
  std::string_view name, violation;
};

constexpr std::array<AxisName, kAxes> kNames{{
    {Axis::repetition, "repetition", "launches on the same data disagree"},
    {Axis::first_call, "first_call", "the first launch and a later one disagree"},
    {Axis::outputs, "outputs", "the result depends on what lay in the outputs before"},
    {Axis::workspace, "workspace", "the result depends on what lies in the workspace or on its size"},
    {Axis::alignment, "alignment", "the result depends on the alignment of the tensors"},
    {Axis::layout, "layout", "the result depends on how the inputs lie in memory"},
    {Axis::after_shapes, "after_shapes", "the result depends on launches of other shapes before"},
    {Axis::contention, "contention", "the result depends on other work on the device"},
    {Axis::graph, "graph", "a replayed graph and a launch disagree"},
    {Axis::ranks, "ranks", "the result depends on the number of ranks"},
    {Axis::pages, "pages", "the result depends on which pages hold the keys or on what lies in others"},
    {Axis::phase, "phase", "a query's bits depend on the queries that are launched with it"},
    {Axis::documents, "documents", "the bits of a sequence or group depend on the others that are packed with it"},
    {Axis::micro_batch, "micro_batch", "bits depend on what else is in the micro-batch, though denom is the same"},
    {Axis::message, "message", "an element's bits depend on the length of the message or on its place in it"},
    {Axis::row_stride, "row_stride", "a row's bits depend on the distance between rows or on what lies between them"},
    {Axis::neighbours, "neighbours", "a row's bits depend on what the other rows hold"},
    {Axis::position, "position", "a row's bits depend on its place in the batch"},
    {Axis::grouping, "grouping", "a row's bits depend on how the batch's dimensions share the rows"},
    {Axis::batch, "batch", "a row's bits depend on the number of rows"},
    {Axis::chunks, "chunks", "bits depend on where the batch is split into launches"},
    {Axis::padding, "padding", "a row's bits depend on rows behind the last one"},
}};

constexpr bool names_are_in_order() {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i].axis != static_cast<Axis>(i) || kNames[i].name.empty() || kNames[i].violation.empty()) return false;
  return true;
}
static_assert(names_are_in_order(), "every Axis has its names in kNames, in the order of the enum");

constexpr std::array<Axis, kAxes> kAll = [] {
  std::array<Axis, kAxes> all{};
  for (size_t i = 0; i < all.size(); ++i) all[i] = kNames[i].axis;
  return all;
}();

AxisSet kept(AxisSet axes, bool invariance) {
  AxisSet some;
  for (const Axis axis : kAll) {
    if (axes.has(axis) && is_of_invariance(axis) == invariance) some.insert(axis);
  }
  return some;
}

enum class Kind : uint8_t { of_launches, of_ranks, of_rearrangements, of_rows };

// Without a default, so that a new axis does not compile until it has a kind.
Kind kind_of(Axis axis) {
  switch (axis) {
    case Axis::repetition:
    case Axis::first_call:
    case Axis::outputs:
    case Axis::workspace:
    case Axis::alignment:
    case Axis::layout:
    case Axis::after_shapes:
    case Axis::contention:
    case Axis::graph:
      return Kind::of_launches;
    case Axis::ranks:
      return Kind::of_ranks;
    case Axis::pages:
    case Axis::phase:
    case Axis::documents:
    case Axis::micro_batch:
    case Axis::message:
      return Kind::of_rearrangements;
    case Axis::row_stride:
    case Axis::neighbours:
    case Axis::position:
    case Axis::grouping:
    case Axis::batch:
    case Axis::chunks:
    case Axis::padding:
      return Kind::of_rows;
  }
  std::abort();  // no Axis
}

}  // namespace

bool is_of_rows(Axis axis) { return kind_of(axis) == Kind::of_rows; }

bool is_of_rearrangements(Axis axis) { return kind_of(axis) == Kind::of_rearrangements; }

bool is_of_invariance(Axis axis) { return kind_of(axis) != Kind::of_launches; }

std::string_view to_string(Axis axis) { return kNames[static_cast<size_t>(axis)].name; }
std::string_view describe(Axis axis) { return kNames[static_cast<size_t>(axis)].violation; }

std::optional<Axis> parse_axis(std::string_view name) {
  for (const AxisName& each : kNames) {
    if (each.name == name) return each.axis;
  }
  return {};
}

std::span<const Axis> all_axes() { return kAll; }

AxisSet of_invariance(AxisSet axes) { return kept(axes, true); }
AxisSet of_launches(AxisSet axes) { return kept(axes, false); }

std::string known_axes() {
  std::string text;
  for (const AxisName& each : kNames) text.append(text.empty() ? "" : ", ").append(each.name);
  return text;
}

}  // namespace checkop
