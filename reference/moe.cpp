// SPDX-License-Identifier: Apache-2.0
// Reads, orders and draws the experts of tokens.
#include "moe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.hpp"
#include "left_out.hpp"

namespace checkop {
namespace {

/// Whether slot `slot` of token `token` has no expert.
bool is_dropped(const FillArgs& args, int64_t token, int64_t slot) {
  if (args.ignored_every == 0) return false;
  const double share = 1.0 / static_cast<double>(args.ignored_every);
  return args.uniform("tokens without an expert", static_cast<uint64_t>(token)) < share ||
         args.uniform("slots without an expert", static_cast<uint64_t>(slot)) < share;
}

}  // namespace

void validate_topk(const CaseSizes& sizes) {
  const int64_t topk = sizes.dim("topk"), experts = sizes.dim("experts");
  if (topk > experts) {
    throw InputError("--topk", fmt::format("{} of {} experts cannot be chosen", topk, experts),
                     "give at most the number of experts");
  }
}

std::vector<int64_t> read_slots(const Tensor& slots, int64_t end) {
  std::vector<int64_t> values(static_cast<size_t>(slots.count()));
  decode_int(slots.dtype, slots.bytes.data(), values.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= -1 && values[i] < end) continue;
    throw InputError("input '" + slots.name + "'",
                     fmt::format("element {} is {}, neither in [0, {}) nor -1", i, values[i], end),
                     "give -1 to a slot that has none");
  }
  return values;
}

ExpertOrder::ExpertOrder(const std::vector<int64_t>& ids, int64_t experts, int64_t align, int64_t rows)
    : slot_of_row(static_cast<size_t>(rows), kNoRow),
      row_of_slot(ids.size(), kNoRow),
      offsets(static_cast<size_t>(experts) + 1) {
  for (const int64_t id : ids) offsets[static_cast<size_t>(id) + 1] += id == kNoExpert ? 0 : 1;
  for (size_t e = 1; e < offsets.size(); ++e) offsets[e] = offsets[e - 1] + (offsets[e] + align - 1) / align * align;
  std::vector<int64_t> next = offsets;
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    if (ids[slot] == kNoExpert) continue;
    const int64_t row = next[static_cast<size_t>(ids[slot])]++;
    slot_of_row.at(static_cast<size_t>(row)) = static_cast<int64_t>(slot);
    row_of_slot[slot] = row;
  }
}

std::vector<int64_t> draw_experts(const FillArgs& args, int64_t tokens, int64_t topk, int64_t experts, int64_t first) {
  std::vector<int64_t> ids;
  const bool cold = experts - experts / 4 >= topk;  // whether the others are enough
  for (int64_t token = 0; token < tokens; ++token) {
    const auto own = std::ssize(ids);
    const auto is_free = [&](int64_t expert) {
      return !(cold && expert % 4 == 3) && std::find(ids.begin() + own, ids.end(), expert) == ids.end();
    };
    for (int64_t s = 0; s < topk; ++s) {
      const auto slot = static_cast<uint64_t>(token * topk + s);
      int64_t expert = s == token % topk && args.uniform("popular experts", slot) < 0.5
                           ? experts / 2
                           : static_cast<int64_t>(args.uniform("experts", slot) * static_cast<double>(experts));
      if (args.mode == InputMode::constant) expert = (first + s) % experts;
      while (args.mode != InputMode::constant && !is_free(expert)) expert = (expert + 1) % experts;
      ids.push_back(expert);
    }
  }
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    const auto number = static_cast<int64_t>(slot);
    if (is_dropped(args, number / topk, number)) ids[slot] = kNoExpert;
  }
  return ids;
}

std::vector<int64_t> draw_rows(const FillArgs& args, int64_t tokens, int64_t topk, int64_t rows) {
  // Multiples of a number without a common factor with `rows` visit every row once.
  int64_t step = rows * 5 / 8 + 1;
  while (std::gcd(step, rows) != 1) ++step;
  std::vector<int64_t> found(static_cast<size_t>(tokens * topk), kNoRow);
  for (int64_t slot = 0; slot < std::min<int64_t>(std::ssize(found), rows); ++slot)
    if (!is_dropped(args, slot / topk, slot)) found[static_cast<size_t>(slot)] = (slot + 1) * step % rows;
  return found;
}

void store_integers(const std::vector<int64_t>& values, Tensor& to) {
  encode_int(to.dtype, values.data(), to.bytes.data(), values.size());
}

std::vector<char> rows_in_use(const std::vector<int64_t>& rows_of_slots, int64_t rows) {
  std::vector<char> used(static_cast<size_t>(rows));
  for (const int64_t row : rows_of_slots)
    if (row != kNoRow) used[static_cast<size_t>(row)] = 1;
  return used;
}

void plant_unused_rows(const FillArgs& args, Tensor& features, const std::vector<char>& used) {
  for (size_t row = 0; row < used.size(); ++row) {
    const auto number = static_cast<int64_t>(row);
    if (used[row] == 0) plant_payload(args, features, features.shape.back(), number, payload_kind(args, row));
  }
}

}  // namespace checkop
