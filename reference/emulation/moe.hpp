// SPDX-License-Identifier: Apache-2.0
// Code shared by the emulations of a mixture of experts: the rows that a token's slots name, and their faults.
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

#include "emulation/common.hpp"

namespace checkop::emulation {

inline constexpr int64_t kNone = -1;  ///< in place of an expert or a row

inline constexpr FaultSpec kDroppedWraps{"dropped_wraps", "position -1 reads the last row", "nonfinite"};
inline constexpr FaultSpec kDroppedIsRowZero{"dropped_is_row_zero", "position -1 reads row 0"};
inline constexpr FaultSpec kFirstSlotAlone{"first_slot_alone", "only a token's first slot counts"};
inline constexpr FaultSpec kLastSlotOverwrites{"last_slot_overwrites", "of a token's slots, the last one remains"};
inline constexpr FaultSpec kAveraged{"averaged", "the slots of a token are averaged"};
inline constexpr FaultSpec kRowPositionsShifted{"positions_shifted", "every position is one row late"};
inline constexpr FaultSpec kNeighboursSlots{"neighbours_slots", "every second token takes the slots of the one before"};

/// The fault of a kernel that then reads what is left out.
constexpr FaultSpec reads_left_out(FaultSpec fault) {
  fault.kind = "nonfinite";
  return fault;
}

/// Input `index`, positions, as the emulated kernel reads them out of `rows` rows.
inline std::vector<int64_t> positions_taken(const EmulationArgs& args, int index, int64_t rows) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<int64_t> given = args.integers(index);
  std::vector<int64_t> positions = given;
  const auto topk = static_cast<size_t>(args.in(index).shape.back());
  for (size_t slot = 0; slot < given.size(); ++slot) {
    int64_t& position = positions[slot];
    if (a.has(kNeighboursSlots.name) && slot / topk % 2 == 1) position = given[slot - topk];
    if (a.has(kRowPositionsShifted.name) && position != kNone) position = (position + 1) % rows;
    if (a.has(kDroppedWraps.name) && position == kNone) position = rows - 1;
    if (a.has(kDroppedIsRowZero.name) && position == kNone) position = 0;
  }
  return positions;
}

/// The numbers of those slots of a token that have a row and that the emulated kernel adds up, in their order.
inline std::vector<int64_t> slots_of_token(const Arithmetic& a, const std::vector<int64_t>& positions, int64_t token,
                                           int64_t topk) {
  std::vector<int64_t> slots;
  for (int64_t slot = token * topk; slot < (token + 1) * topk; ++slot)
    if (positions[static_cast<size_t>(slot)] != kNone) slots.push_back(slot);
  if (slots.size() > 1 && a.has(kFirstSlotAlone.name)) slots.resize(1);
  if (slots.size() > 1 && a.has(kLastSlotOverwrites.name)) slots.erase(slots.begin(), slots.end() - 1);
  return slots;
}

}  // namespace checkop::emulation
