// SPDX-License-Identifier: Apache-2.0
// Reads and draws groups of rows.
#include "row_groups.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "left_out.hpp"
#include "moe.hpp"

namespace checkop {

RowGroups::RowGroups(int64_t rows_, const Tensor& given) : rows(rows_), offsets(static_cast<size_t>(given.count())) {
  decode_int(given.dtype, given.bytes.data(), offsets.data(), offsets.size());
}

std::vector<char> RowGroups::used_rows() const {
  std::vector<char> used(static_cast<size_t>(rows));
  std::fill_n(used.begin(), end(), 1);
  return used;
}

std::vector<char> RowGroups::used_experts() const {
  std::vector<char> used;
  for (int64_t e = 0; e < experts(); ++e) used.push_back(count(e) > 0 ? 1 : 0);
  return used;
}

void RowGroups::require_order(int64_t align) const {
  const auto refuse = [&](size_t i, int64_t value, const std::string& rule) {
    throw InputError("input 'offsets'", fmt::format("element {} is {}, {}", i, value, rule),
                     align == 1 ? "give offsets that start with 0, do not decrease, and end within the rows"
                                : fmt::format("give multiples of {} that start with 0, do not decrease, and end within "
                                              "the rows",
                                              align));
  };
  if (offsets.front() != 0) refuse(0, offsets.front(), "not 0");
  for (size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) refuse(i, offsets[i], "below the one before it");
    if (offsets[i] % align != 0) refuse(i, offsets[i], fmt::format("not a multiple of {}", align));
  }
  if (end() > rows) refuse(offsets.size() - 1, end(), fmt::format("beyond the {} rows", rows));
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

}  // namespace checkop
