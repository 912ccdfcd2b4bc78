// SPDX-License-Identifier: Apache-2.0
// Emulates rope as kernels compute it.
#include "emulation/rope.hpp"

#include <array>

namespace checkop {
namespace rope {
namespace {

using namespace emulation;

constexpr FaultSpec kPositionOfHead{"position_of_head", "a head's number serves as the row of `positions`"};
constexpr FaultSpec kPositionsOfFirst{"positions_of_first", "the positions of the first sequence serve for all",
                                      "accuracy", "", "batch_positions"};
constexpr FaultSpec kBatchPositionsIgnored{"batch_positions_ignored", "`positions` serve in place of batch_positions",
                                           "accuracy", "", "batch_positions"};

constexpr FaultSpec kRowForPosition{"row_for_position", "a token's place in the sequence serves as its position",
                                    "accuracy", "", "-batch_positions"};

constexpr int kOfBatchPositions = 2, kOfThreePositions = 3;

/// Rotates input `of` by sign*positions; the positions of all sequences are input `by`.
void rotate(const EmulationArgs& args, int of, int by, float sign) {
  const Arithmetic& a = args.arithmetic;
  const Shape& shape = args.in(of).shape;
  const int64_t heads = shape[1], seq = shape[2];
  const bool has_three = args.has(kOfThreePositions),
             has_batch = has_three || (args.has(kOfBatchPositions) && !a.has(kBatchPositionsIgnored.name));
  std::vector<Positions> positions = read_positions(args.in(has_three   ? kOfThreePositions
                                                            : has_batch ? kOfBatchPositions
                                                                        : by),
                                                    has_three);
  for (int64_t s = 0; a.has(kRowForPosition.name) && !has_batch && s < seq; ++s)
    positions[static_cast<size_t>(s)] = {s, s, s};
  const Turns turns(args, args.attrs, shape[3]);
  std::vector<std::vector<PairTurn>> table;
  for (const Positions& each : positions) table.push_back(turns.at(each, sign));
  const Matrix x = matrix(args, of);
  const bool by_head = a.has(kPositionOfHead.name), of_first = a.has(kPositionsOfFirst.name);
  Matrix y = x;
  args.parallel_for(shape[0] * heads, [&](int64_t head) {
    const int64_t start = has_batch && !of_first ? head / heads * seq : 0;
    for (int64_t s = 0; s < seq; ++s) {
      const int64_t row = head * seq + s;
      turns.apply(table[static_cast<size_t>(start + (by_head ? head % heads % seq : s))], x.row(row), y.row(row));
    }
  });
  store(y, args.out(0));
}

void forward(const EmulationArgs& args) { rotate(args, 0, 1, 1); }
void backward(const EmulationArgs& args) { rotate(args, 1, 0, -1); }

constexpr auto kFaults =
    joined(kTurnFaults, std::array{kPositionOfHead, kPositionsOfFirst, kBatchPositionsIgnored, kRowForPosition});

}  // namespace
}  // namespace rope

extern const Emulation kRopeForward, kRopeBackward;
const Emulation kRopeForward{rope::forward, rope::kFaults};
const Emulation kRopeBackward{rope::backward, rope::kFaults};

}  // namespace checkop
