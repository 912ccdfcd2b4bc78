// SPDX-License-Identifier: Apache-2.0
// Emulates moe_permute as kernels compute it: rows by counting, then copies; backward: sums over the slots of a token.
#include <array>
#include <numeric>

#include "emulation/moe.hpp"
#include "emulation/moved_rows.hpp"

namespace checkop {
namespace moe_permute {
namespace {

using namespace emulation;

constexpr FaultSpec kDroppedCounted{"dropped_counted", "a slot without an expert goes to the last one", "nonfinite"};
constexpr FaultSpec kDroppedLeaveRows{"dropped_leave_rows", "slots without an expert leave rows before the first one"};
constexpr FaultSpec kSlotsFirst{"slots_first", "an expert's rows are ordered by slot, then by token"};
constexpr FaultSpec kLatestFirst{"latest_first",
                                 "an expert's rows are in the order of arrival, here the last one first"};
constexpr FaultSpec kAlignIgnored{"align_ignored", "experts begin right behind each other"};
constexpr FaultSpec kOffsetsUnaligned{"offsets_unaligned", "offsets count slots, without the padding between experts"};
constexpr FaultSpec kCountsForOffsets{"counts_for_offsets", "offsets has the rows of each expert, not their sums"};
constexpr FaultSpec kFirstOffsetLost{"first_offset_lost", "offsets begins with the end of the first expert"};
constexpr FaultSpec kLastExpertLost{"last_expert_lost", "the last expert's slots are not moved"};
constexpr FaultSpec kExpertsTruncated{"experts_truncated", "the highest bit of ids is lost"};
constexpr FaultSpec kRowOfSlot{"row_of_slot", "a slot's number is taken for its token's, modulo the tokens",
                               "nonfinite"};
constexpr FaultSpec kTokensForSlots{"tokens_for_slots", "src has tokens, not slots"};
constexpr FaultSpec kPaddingRepeated{"padding_repeated", "rows of padding are not zero but the row before them"};
constexpr FaultSpec kPaddingIsSlotZero{"padding_is_slot_zero", "src is 0, not -1, for rows of padding"};
constexpr FaultSpec kPositionsInverted{"positions_inverted",
                                       "positions has the slot of each row for the row of each slot"};

/// Rows in the order of the emulated kernel.
struct Order {
  std::vector<int64_t> slot_of_row, row_of_slot, offsets;

  Order(const Arithmetic& a, std::vector<int64_t> ids, int64_t topk, int64_t experts, int64_t align, int64_t rows)
      : slot_of_row(static_cast<size_t>(rows), kNone), row_of_slot(ids.size(), kNone) {
    const auto bit = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(experts - 1, 1))));
    int64_t leading = 0;
    for (int64_t& id : ids) {
      if (a.has(kDroppedLeaveRows.name) && id == kNone) ++leading;
      if (a.has(kDroppedCounted.name) && id == kNone) id = experts - 1;
      if (a.has(kExpertsTruncated.name) && id != kNone) id &= ~bit;
    }
    const auto slots = std::ssize(ids), tokens = slots / topk;
    const int64_t gap = a.has(kAlignIgnored.name) ? 1 : align;
    int64_t row = leading, unaligned = leading;
    for (int64_t expert = 0; expert < experts; ++expert) {
      offsets.push_back(a.has(kOffsetsUnaligned.name) ? unaligned : row);
      for (int64_t i = 0; i < slots; ++i) {
        int64_t slot = i;
        if (a.has(kSlotsFirst.name)) slot = i % tokens * topk + i / tokens;
        if (a.has(kLatestFirst.name)) slot = slots - 1 - i;
        if (ids[static_cast<size_t>(slot)] != expert) continue;
        ++unaligned;
        if (row >= rows || (a.has(kLastExpertLost.name) && expert == experts - 1)) continue;
        slot_of_row[static_cast<size_t>(row)] = slot;
        row_of_slot[static_cast<size_t>(slot)] = row++;
      }
      row = leading + (row - leading + gap - 1) / gap * gap;
    }
    offsets.push_back(a.has(kOffsetsUnaligned.name) ? unaligned : row);
    if (a.has(kFirstOffsetLost.name)) std::copy(offsets.begin() + 1, offsets.end(), offsets.begin());
    if (a.has(kCountsForOffsets.name)) std::adjacent_difference(offsets.begin(), offsets.end(), offsets.begin());
  }
};

void store_integers(const std::vector<int64_t>& values, std::vector<double>& to) {
  to.assign(values.begin(), values.end());
}

void forward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Matrix x = through_kernel(a, args.in(0).dtype, matrix(args, 0));
  const int64_t topk = args.in(1).shape.back(), rows = std::ssize(args.out(1)), tokens = x.rows();
  Order order(a, args.integers(1), topk, std::ssize(args.out(3)) - 1, static_cast<int64_t>(args.attrs[0]), rows);
  int64_t last = kNone;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t& slot = order.slot_of_row[static_cast<size_t>(row)];
    int64_t token = slot == kNone ? kNone : a.has(kRowOfSlot.name) ? slot % tokens : slot / topk;
    if (slot == kNone && a.has(kPaddingRepeated.name)) token = last;
    if (token != kNone) std::copy_n(x.row(last = token), x.columns, args.out(0).begin() + row * x.columns);
    if (slot == kNone && a.has(kPaddingIsSlotZero.name)) slot = 0;
    if (slot != kNone && a.has(kTokensForSlots.name)) slot /= topk;
  }
  if (a.has(kPositionsInverted.name)) {
    order.row_of_slot = order.slot_of_row;
    order.row_of_slot.resize(args.out(2).size());
  }
  store_integers(order.slot_of_row, args.out(1));
  store_integers(order.row_of_slot, args.out(2));
  store_integers(order.offsets, args.out(3));
}

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Matrix grad = matrix(args, 1);
  const int64_t topk = args.in(0).shape.back();
  const std::vector<int64_t> positions = positions_taken(args, 0, grad.rows());
  args.parallel_for(std::ssize(positions) / topk, [&](int64_t token) {
    const std::vector<int64_t> own = slots_of_token(a, positions, token, topk);
    const auto n = std::ssize(own);
    const float scale = a.has(kAveraged.name) && n > 0 ? 1 / static_cast<float>(n) : 1.0F;
    for (int64_t h = 0; h < grad.columns; ++h)
      args.out(0)[static_cast<size_t>(token * grad.columns + h)] = scale * a.sum(n, [&](int64_t i) {
        return grad.row(positions[static_cast<size_t>(own[static_cast<size_t>(i)])])[h];
      });
  });
}

constexpr std::array kForwardFaults{
    kDroppedCounted,   kDroppedLeaveRows,  kSlotsFirst,        kLatestFirst,       kAlignIgnored,   kOffsetsUnaligned,
    kCountsForOffsets, kFirstOffsetLost,   kLastExpertLost,    kRowOfSlot,         kTokensForSlots, kExpertsTruncated,
    kPaddingRepeated,  kPaddingIsSlotZero, kPositionsInverted, kSubnormalsFlushed, kRangeOfHalf};
constexpr std::array kBackwardFaults{faults::kLastTileSkipped,
                                     faults::kBf16Accumulator,
                                     faults::kBf16Partials,
                                     faults::kPartialLost,
                                     kDroppedWraps,
                                     kDroppedIsRowZero,
                                     kFirstSlotAlone,
                                     kLastSlotOverwrites,
                                     kAveraged,
                                     reads_left_out(kRowPositionsShifted),
                                     kNeighboursSlots};

}  // namespace
}  // namespace moe_permute

extern const Emulation kMoePermuteForward, kMoePermuteBackward;
const Emulation kMoePermuteForward{moe_permute::forward, moe_permute::kForwardFaults};
const Emulation kMoePermuteBackward{moe_permute::backward, moe_permute::kBackwardFaults};

}  // namespace checkop
