// SPDX-License-Identifier: Apache-2.0
// Emulates logp as kernels compute it.
#include <array>

#include "emulation/ignored_rows.hpp"
#include "emulation/ranks.hpp"
#include "recipes.hpp"

namespace checkop {
namespace {

using namespace emulation;

template <class Row>
void for_each_row(const EmulationArgs& args, const Row& row) {
  const Matrix z = matrix(args, 0);
  const std::vector<int64_t> ids = args.integers(1);
  const auto ignore_index = static_cast<int64_t>(args.attrs[0]);
  args.parallel_for(z.rows(), [&](int64_t r) {
    const TakenRow taken = take_row(args.arithmetic, ids[static_cast<size_t>(r)], ignore_index, z.columns);
    if (!taken.skipped) row(z, r, taken.id, taken.scale);
  });
}

void forward(const EmulationArgs& args) {
  for_each_row(args, [&](const Matrix& z, int64_t r, int64_t id, float scale) {
    const SoftmaxRow row = rank_softmax_row(args, z.row(r), z.columns);
    const float logp = row.logp(target_of(args, z.row(r), column_of(args, id)));
    args.out(0)[static_cast<size_t>(r)] =
        scale * args.arithmetic.rounded_if(args.arithmetic.rounds(recipe::kLogp), logp);
  });
}

void backward(const EmulationArgs& args) {
  const std::vector<float> g = args.floats(2);
  for_each_row(args, [&](const Matrix& z, int64_t r, int64_t id, float scale) {
    logp_gradient_row(args.arithmetic, rank_softmax_row(args, z.row(r), z.columns), z.row(r), z.columns,
                      column_of(args, id), scale * g[static_cast<size_t>(r)],
                      &args.out(0)[static_cast<size_t>(r * z.columns)]);
  });
}

constexpr std::array kForwardFaults{
    faults::kLastTileSkipped, faults::kBf16Accumulator, faults::kBf16Partials, faults::kPartialLost,
    faults::kBf16Exponential, kPaddedColumnCounted,     kSumNotRescaled,       kMaximumNotSubtracted,
    kMaximumOfFirstTile,      kTileOfInfinities,        kWrongLabel,           kIgnoredRowCounted,
    kIgnoredAsIdZero,         kIgnoredRowMultiplied};
constexpr std::array kBackwardFaults{
    faults::kLastTileSkipped, faults::kBf16Accumulator, faults::kBf16Partials, faults::kPartialLost,
    faults::kBf16Exponential, kPaddedColumnCounted,     kSumNotRescaled,       kMaximumNotSubtracted,
    kMaximumOfFirstTile,      kTileOfInfinities,        kWrongLabel,           kSoftmaxTermDropped,
    kSoftmaxSignFlipped,      kIgnoredRowCounted,       kIgnoredAsIdZero,      kIgnoredRowMultiplied};

constexpr auto kTpForwardFaults =
    joined(kForwardFaults, std::array{kRankLost, kRankTwice, kLocalMax, kTargetTwice, kShardOffset});
constexpr auto kTpBackwardFaults = joined(kBackwardFaults, std::array{kRankLost, kRankTwice, kLocalMax, kShardOffset});

}  // namespace

extern const Emulation kLogpForward, kLogpBackward, kTpLogpForward, kTpLogpBackward;
const Emulation kLogpForward{forward, kForwardFaults};
const Emulation kLogpBackward{backward, kBackwardFaults};
const Emulation kTpLogpForward{forward, kTpForwardFaults};
const Emulation kTpLogpBackward{backward, kTpBackwardFaults};

}  // namespace checkop
