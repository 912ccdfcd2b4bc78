// SPDX-License-Identifier: Apache-2.0
// Reads and draws groups of rows.
#include "row_groups.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "left_out.hpp"
#include "moe.hpp"
#include "rearranged.hpp"

namespace checkop {

RowGroups::RowGroups(int64_t rows_, const Tensor& offsets) : rows(rows_) {
  const std::vector<int64_t> bounds = integers_of(offsets);
  begins.assign(bounds.begin(), bounds.end() - 1);
  ends.assign(bounds.begin() + 1, bounds.end());
}

RowGroups RowGroups::of(const Tensor& per_row, const Tensor& given) {
  if (per_row.shape.size() == 2) return {per_row.shape.front(), given};
  RowGroups groups;
  groups.capacity = per_row.shape[1];
  for (const int64_t count : integers_of(given)) {
    groups.begins.push_back(groups.rows);
    groups.ends.push_back(groups.rows + count);
    groups.rows += groups.capacity;
  }
  return groups;
}

int64_t RowGroups::used() const {
  int64_t sum = 0;
  for (int64_t e = 0; e < experts(); ++e) sum += count(e);
  return sum;
}

std::vector<char> RowGroups::used_rows() const {
  std::vector<char> used(static_cast<size_t>(rows));
  for (int64_t e = 0; e < experts(); ++e) std::fill_n(used.begin() + first(e), count(e), 1);
  return used;
}

std::vector<char> RowGroups::used_experts() const {
  std::vector<char> used;
  for (int64_t e = 0; e < experts(); ++e) used.push_back(count(e) > 0 ? 1 : 0);
  return used;
}

void RowGroups::require_order(int64_t align) const {
  for (int64_t e = 0; capacity != kSuccessive && e < experts(); ++e) {
    if (count(e) >= 0 && count(e) <= capacity) continue;
    throw InputError("input 'counts'", fmt::format("element {} is {}, outside [0, {}]", e, count(e), capacity),
                     "give as many rows as an expert has room for, or fewer");
  }
  if (capacity != kSuccessive) return;
  const auto refuse = [&](int64_t i, int64_t value, const std::string& rule) {
    throw InputError("input 'offsets'", fmt::format("element {} is {}, {}", i, value, rule),
                     align == 1 ? "give offsets that start with 0, do not decrease, and end within the rows"
                                : fmt::format("give multiples of {} that start with 0, do not decrease, and end within "
                                              "the rows",
                                              align));
  };
  for (int64_t e = 0; e < experts(); ++e) {
    const int64_t end_of = first(e) + count(e);
    if (e == 0 && first(e) != 0) refuse(0, first(e), "not 0");
    if (count(e) < 0) refuse(e + 1, end_of, "below the one before it");
    if (end_of % align != 0) refuse(e + 1, end_of, fmt::format("not a multiple of {}", align));
  }
  if (end() > rows) refuse(experts(), end(), fmt::format("beyond the {} rows", rows));
}

std::vector<int64_t> rows_within(const RowSet& rows, int64_t first, int64_t count) {
  std::vector<int64_t> within;
  for (int64_t row = 0; row < count; ++row)
    if (rows.has(first + row)) within.push_back(row);
  return within;
}

RowGroups draw_row_groups(const FillArgs& args, std::initializer_list<std::string_view> of_rows, int64_t align) {
  const int64_t rows = args.dim("rows"), experts = args.dim("experts"), units = rows / align;
  const int64_t left_out = args.ignored_every == 0 ? 0 : units / (2 * args.ignored_every);
  std::vector<int64_t> ids = draw_experts(args, units, 1, experts, 0);
  ids.resize(static_cast<size_t>(units - left_out));
  for (int64_t& id : ids) id = id == kNoExpert ? 0 : id;
  std::vector<int64_t> offsets = ExpertOrder(ids, experts, 1, units).offsets;
  for (int64_t& offset : offsets) offset *= align;
  Tensor& given = *args.find("offsets");
  store_integers(offsets, given);
  RowGroups groups(rows, given);
  for (const std::string_view name : of_rows)
    if (Tensor* const tensor = args.find(name); tensor != nullptr) plant_unused_rows(args, *tensor, groups.used_rows());
  return groups;
}

void draw_row_counts(const FillArgs& args, std::initializer_list<std::string_view> of_rows) {
  const int64_t experts = args.dim("experts"), capacity = args.dim("capacity");
  std::vector<int64_t> counts;
  for (int64_t e = 0; e < experts; ++e) {
    const double share = args.uniform("rows of experts", static_cast<uint64_t>(e));
    int64_t count = static_cast<int64_t>(share * static_cast<double>(capacity + 1));
    if (e == experts / 2) count = capacity;
    if (e % 4 == 3) count = 0;
    if (args.mode == InputMode::constant) count = e == 0 ? capacity : 0;
    counts.push_back(args.ignored_every == 0 ? capacity : count);
  }
  Tensor& given = *args.find("counts");
  store_integers(counts, given);
  for (const std::string_view name : of_rows)
    if (Tensor* const tensor = args.find(name); tensor != nullptr)
      plant_unused_rows(args, *tensor, RowGroups::of(*tensor, given).used_rows());
}

namespace {

constexpr std::string_view kRoomDims = "experts capacity";

std::vector<int64_t> counts_of(const RearrangeArgs& args) {
  for (size_t i = 0; i < args.inputs.size(); ++i)
    if (args.pass.inputs[i].name == "counts") return integers_of(*args.inputs[i]);
  return {};
}

/// The inputs with room for `capacity` rows of each expert, of which it has counts[e]. In the rest of the room lie
/// copies of its rows, also of those that it no longer has.
Rearranged with_room(const RearrangeArgs& args, int64_t capacity, const std::vector<int64_t>& counts) {
  const int64_t room = args.in(0).shape[1];
  std::vector<int64_t> from, rows;
  for (size_t e = 0; e < counts.size(); ++e) {
    const int64_t first = static_cast<int64_t>(e) * room;
    for (int64_t i = 0; i < capacity; ++i) {
      from.push_back(first + i % room);
      rows.push_back(i < counts[e] ? first + i : -1);
    }
  }
  Rearranged other;
  other.dims = {{"capacity", capacity}};
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    const TensorSpec& spec = args.pass.inputs[i];
    const Tensor& given = *args.inputs[i];
    Tensor& own = other.inputs.emplace_back();
    if (spec.name == "counts") own = of_integers(given, given.shape, counts);
    if (!spec.dims.starts_with(kRoomDims)) continue;
    const auto bytes = static_cast<size_t>(given.shape.back()) * info(given.dtype).bytes;
    own = with_blocks(given, {given.shape[0], capacity, given.shape[2]}, from, bytes);
  }
  other.rows = {{std::string(kRoomDims), std::move(rows)}};
  return other;
}

std::optional<Rearranged> with_more_room(const RearrangeArgs& args) {
  return with_room(args, 2 * args.in(0).shape[1] + 3, counts_of(args));
}

/// A gradient that sums an expert's rows then sums other rows, so it is not compared.
std::optional<Rearranged> with_fewer_rows(const RearrangeArgs& args) {
  std::vector<int64_t> counts = counts_of(args);
  for (int64_t& count : counts) count = (count + 1) / 2;
  Rearranged other = with_room(args, args.in(0).shape[1], counts);
  other.rows["experts"] = std::vector<int64_t>(counts.size(), -1);
  return other;
}

}  // namespace

const std::array<Rearrangement, 2> kRooms{
    Rearrangement{"documents", "experts with more room", "experts", 1, with_more_room},
    Rearrangement{"documents", "experts with half of their rows", "experts", 1, with_fewer_rows},
};

}  // namespace checkop
